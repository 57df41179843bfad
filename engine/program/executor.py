"""What every executor promises: token ids and cache pages in, logits out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int32]
Floats = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Batch:
    """Tokens of one step, from one or several sequences laid end to end.

    Sequence `s` owns the tokens `seq_starts[s] .. seq_starts[s + 1]`; their positions follow each other without a gap,
    and everything before the first of them is already in the cache. Position `p` lives in page
    `page_tables[s][p // page_tokens]`, at slot `p % page_tokens`; a page table may be longer than needed.
    """

    tokens: Ints  # [T] token ids
    positions: Ints  # [T] absolute position in the token's sequence
    seq_starts: Ints  # [S + 1], ascending from 0 to T
    page_tables: tuple[Ints, ...]  # S arrays of page numbers
    rows: Ints  # [R] indices into `tokens` whose logits are wanted; may be empty

    def __post_init__(self) -> None:
        for name in ("tokens", "positions", "seq_starts", "rows"):
            _check_ints(name, getattr(self, name))
        for table in self.page_tables:
            _check_ints("page_tables", table)
        if len(self.positions) != len(self.tokens):
            raise ValueError(f"{len(self.positions)} positions for {len(self.tokens)} tokens")
        if len(self.seq_starts) != len(self.page_tables) + 1:
            raise ValueError(f"{len(self.seq_starts)} sequence bounds for {len(self.page_tables)} page tables")


def _check_ints(name: str, array: Ints) -> None:
    if array.dtype != np.int32 or array.ndim != 1 or not array.flags.c_contiguous:
        raise TypeError(f"{name} must be a contiguous int32 array of one dimension, not {array.dtype} {array.shape}")


class Executor(Protocol):
    """Runs a program over batches. One thread at a time may call it."""

    @property
    def page_tokens(self) -> int:
        """Positions that one cache page holds."""
        ...

    @property
    def kv_pages(self) -> int:
        """Pages there are; page numbers are 0 .. kv_pages - 1."""
        ...

    def resize_kv(self, pages: int) -> None:
        """Grow or shrink the cache; pages below both counts keep their contents.

        Raises DoesNotFitError, and changes nothing, when the memory is not there.
        """
        ...

    def step(self, batch: Batch) -> Floats:
        """Append the batch to the cache and return logits [R, vocab_size], one row for each of `batch.rows`."""
        ...

    def trace(self, batch: Batch) -> list[Floats]:
        """Like `step`, but return the residual stream [T, hidden_size] after each decoder layer."""
        ...

    def copy_page(self, source: int, target: int) -> None:
        """Copy the keys and values of one page onto another, in every layer."""
        ...

    def counters(self) -> Mapping[str, float]:
        """Totals since the start: `steps`, `experts_run`, `expert_bytes`, and seconds.

        The seconds are `expert_seconds`, `dense_seconds` and `attention_seconds` where an executor can tell them apart,
        `step_seconds` of whole steps on a device.
        """
        ...


class RoutedExecutor(Executor, Protocol):
    """An executor whose routing can be written down, and replaced by what was written down before."""

    def record_routing(self, on: bool) -> None:
        """Keep, or stop keeping, the experts that every step chooses. Costs a copy of the ids a layer."""
        ...

    def routing(self) -> Ints:
        """The experts of the last step's tokens, [MoE layers, T, top_k], in the order in which routes chose them.

        Raises ValueError unless that step was recorded.
        """
        ...

    def force_routing(self, ids: Ints | None) -> None:
        """Have the next steps run experts `ids` [MoE layers, T, top_k] instead of those the router chooses; None ends
        it.

        A step under force must have T tokens. The weights are the router's own scores of these experts, treated as
        those of chosen ones are (softmax over the chosen, normalised, scaled); groups play no part. Raises ValueError,
        and changes nothing, for another shape, an id out of range or one that a token has twice.
        """
        ...
