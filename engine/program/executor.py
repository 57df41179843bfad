"""What every executor promises: token ids and cache pages in, logits out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from engine.memory.blocks import BlockKind, ContextRoom

Ints = NDArray[np.int32]
Floats = NDArray[np.float32]
Bytes = NDArray[np.uint8]


def _none() -> Ints:
    return np.zeros(0, np.int32)


def _no_saves() -> Ints:
    return np.zeros((0, 2), np.int32)


@dataclass(frozen=True, eq=False)
class Batch:
    """Tokens of one step, from one or several sequences laid end to end.

    Sequence `s` owns the tokens `seq_starts[s] .. seq_starts[s + 1]`; their positions follow each other without a gap,
    and everything before the first of them is already in the cache. Position `p` lives in page
    `page_tables[s][p // page_tokens]`, at slot `p % page_tokens`; a page table may be longer than needed. A window
    table has the same indices, and -1 for pages that lie before everything that its sequence still sees.

    A recurrent operation continues from its sequence's state slot and leaves there the state after the last token. A
    sequence that begins at position 0 begins from zeros, whatever the slot holds. Saves are in ascending order of
    tokens, and no saved slot is another sequence's or saved to twice.
    """

    tokens: Ints  # [T] token ids
    positions: Ints  # [T] absolute position in the token's sequence
    seq_starts: Ints  # [S + 1], ascending from 0 to T
    page_tables: tuple[Ints, ...]  # S arrays of page numbers
    rows: Ints  # [R] indices into `tokens` whose logits are wanted; may be empty
    window_tables: tuple[Ints, ...] = ()  # S arrays of window pages, of programs with a reach
    states: Ints = field(default_factory=_none)  # [S] state slots, of recurrent programs
    saves: Ints = field(default_factory=_no_saves)  # [N, 2]: after token `saves[i, 0]` the state goes to slot [i, 1]
    more: int = 0  # tokens that the next step is going to read of the same prompts, as far as anybody knows

    def __post_init__(self) -> None:
        for name in ("tokens", "positions", "seq_starts", "rows", "states"):
            _check_ints(name, getattr(self, name))
        for name in ("page_tables", "window_tables"):
            for table in getattr(self, name):
                _check_ints(name, table)
        _check_ints("saves", self.saves, dimensions=2)
        if len(self.positions) != len(self.tokens):
            raise ValueError(f"{len(self.positions)} positions for {len(self.tokens)} tokens")
        if len(self.seq_starts) != len(self.page_tables) + 1:
            raise ValueError(f"{len(self.seq_starts)} sequence bounds for {len(self.page_tables)} page tables")


def _check_ints(name: str, array: Ints, dimensions: int = 1) -> None:
    if array.dtype != np.int32 or array.ndim != dimensions or not array.flags.c_contiguous:
        raise TypeError(
            f"{name} must be a contiguous int32 array of {dimensions} dimensions, not {array.dtype} {array.shape}"
        )


class Executor(Protocol):
    """Runs a program over batches. One thread at a time may call it."""

    @property
    def page_tokens(self) -> int:
        """Positions that one cache page holds."""
        ...

    @property
    def room(self) -> ContextRoom:
        """Blocks of context memory that there are; each kind is numbered from 0."""
        ...

    @property
    def block_bytes(self) -> Mapping[BlockKind, int]:
        """Bytes of one block of each kind, in all layers together; 0 for a kind that the program does not use."""
        ...

    def resize_context(self, room: ContextRoom) -> None:
        """Grow or shrink context memory; blocks below both counts keep their contents.

        Kinds that the program does not use are taken for 0. Raises NoRoomError, and changes nothing, when the memory
        is not there.
        """
        ...

    def copy_block(self, kind: BlockKind, source: int, target: int) -> None:
        """Copy one block onto another of its kind, in every layer. Raises IndexError for one that is not there."""
        ...

    def read_block(self, kind: BlockKind, block: int) -> Bytes:
        """The contents of a block, `block_bytes[kind]` bytes, in a form that only `write_block` understands."""
        ...

    def write_block(self, kind: BlockKind, block: int, data: Bytes) -> None:
        """Fill a block with what `read_block` gave, here or in another executor of the same program and layout."""
        ...

    def step(self, batch: Batch) -> Floats:
        """Append the batch to the cache and return logits [R, vocab_size], one row for each of `batch.rows`."""
        ...

    def trace(self, batch: Batch) -> list[Floats]:
        """Like `step`, but return the residual stream [T, hidden_size] after each decoder layer."""
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
