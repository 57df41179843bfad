"""The routed experts of a layer on a device and the CPU at once: the launches of one MoE layer, in their order.

`HybridExperts(driver, ops, banks, *, top_k, max_tokens, main, threads=None, isa="", patience=30.0, signals="memory")`
    ops     the program's operations of kind "experts", one a MoE layer
    banks   a `BankOnDevice(bank, shards, slots, cache)` a bank, in order: the records as the CPU reads them (a `Bank`
            whose shards are the pinned host memory), the table of shard addresses for `fill`, the `SlotArena`, and the
            `ExpertCache`
    main    the stream that the rest of the step runs on; link and side streams are made here
It owns the mailbox, the worker and all buffers between its launches, sized for `max_tokens`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class MoeBuffers:
    """Device addresses of what one MoE layer reads and writes. Strides are in values, ids and weights lie dense."""

    x: int  # f32 [bucket][x_stride]
    x_stride: int
    ids: int  # i32 [bucket][top_k]
    weights: int  # f32 [bucket][top_k]
    rows: int  # i32, the live tokens: the first so many
    y: int  # f32 [bucket][y_stride]
    y_stride: int


class LayerExperts(Protocol):
    """What an executor calls."""

    def launch(self, layer: int, bucket: int, buffers: MoeBuffers) -> None:
        """Issues one MoE layer for up to `bucket` tokens: on the main stream, and beside it on link and side.

        It joins the main stream again before it returns, so it may be captured. What is issued depends on which banks
        have slots: after a resize from or to no slots (`shape` changes), capture again.
        """

    @property
    def shape(self) -> tuple[bool, ...]:
        """For each bank whether it has slots: what is issued depends on it and on nothing else that may change."""

    def begin_step(self) -> None:
        """Wakes the worker; before anything of a step runs. BusyError if it is still stuck in an older step."""

    def end_step(self) -> None:
        """Lets the worker sleep; when the device is done with a step. FreetokenError if the worker failed in it."""

    def close(self) -> None:
        """Ends the worker and frees all memory; no launch may be under way."""
