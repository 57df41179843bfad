"""Whether a batch fits, before anything of its step is done: as the native executor sees it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from engine.memory.blocks import ContextRoom
from engine.program.executor import Batch, Ints
from engine.program.ir import Program


@dataclass(frozen=True)
class Sight:
    """How far back an attention operation looks; 0: no such bound."""

    window: int  # positions
    chunk: int  # nothing before the last multiple of it

    def oldest(self, position: int) -> int:
        """The oldest position that a token there sees."""
        by_window = position - self.window + 1 if self.window else 0
        by_chunk = position - position % self.chunk if self.chunk else 0
        return max(0, by_window, by_chunk)


@dataclass(frozen=True)
class BatchNeeds:
    """What kinds of blocks a program reads; `sights` are of the operations that read window pages."""

    paged: bool
    sights: tuple[Sight, ...]
    recurrent: bool

    @staticmethod
    def of(program: Program) -> BatchNeeds:
        """Those of a program."""
        attends = ("attention", "compressed_attention")
        reaching = [op for op in program.ops if op.kind in attends and program.caches[int(op.attrs["cache"])].reach]
        sights = {Sight(int(op.attrs["window"]), int(op.attrs.get("chunk", 0))) for op in reaching}
        paged = any(not cache.reach for cache in program.caches)
        return BatchNeeds(paged, tuple(sights), bool(program.states))


@dataclass(frozen=True)
class BatchLimits:
    """What the parts of a batch must stay within."""

    max_tokens: int
    vocabulary: int
    page_tokens: int
    room: ContextRoom
    needs: BatchNeeds


def check_batch(batch: Batch, limits: BatchLimits) -> None:
    """ValueError that says what does not fit."""
    count = len(batch.tokens)
    if count > limits.max_tokens or len(batch.rows) > count:
        raise ValueError(
            f"a step of {count} tokens and {len(batch.rows)} rows; there is room for {limits.max_tokens} tokens"
        )
    starts, sequences = batch.seq_starts, len(batch.page_tables)
    if starts[0] != 0 or starts[-1] != count or (np.diff(starts) < 0).any():
        raise ValueError("the parts of the batch do not fit together")
    if limits.needs.sights and len(batch.window_tables) != sequences:
        raise ValueError(f"{len(batch.window_tables)} tables of window pages for {sequences} sequences")
    if limits.needs.recurrent and len(batch.states) != sequences:
        raise ValueError(f"{len(batch.states)} states for {sequences} sequences")
    _check_range("token", batch.tokens, limits.vocabulary)
    _check_range("wanted row", batch.rows, count)
    for index in np.flatnonzero(np.diff(starts)):
        _check_sequence(batch, int(index), limits)
    if limits.needs.recurrent:
        _check_states(batch, limits.room.states)


def _check_sequence(batch: Batch, index: int, limits: BatchLimits) -> None:
    name = f"sequence {index}"
    positions = batch.positions[batch.seq_starts[index] : batch.seq_starts[index + 1]]
    if positions[0] < 0:
        raise ValueError(f"{name} starts at position {positions[0]}")
    if (np.diff(positions) != 1).any():
        raise ValueError(f"{name} has a gap in its positions")
    first, end = int(positions[0]), int(positions[-1]) // limits.page_tokens + 1
    if limits.needs.paged:
        _check_table(name, "page", batch.page_tables[index], 0, end, limits.room.pages)
    if limits.needs.sights:
        oldest = min(first, *(sight.oldest(first) for sight in limits.needs.sights))
        table = batch.window_tables[index]
        _check_table(name, "window page", table, oldest // limits.page_tokens, end, limits.room.windows)


def _check_table(name: str, what: str, table: Ints, first: int, end: int, blocks: int) -> None:
    if len(table) < end:
        raise ValueError(f"{name} needs {end} {what}s and has {len(table)}")
    _check_range(f"{what} of {name}", table[first:end], blocks)


def _check_states(batch: Batch, slots: int) -> None:
    """No slot is two sequences' or saved to by another, and saves ascend."""
    own = batch.states[np.diff(batch.seq_starts) > 0]
    _check_range("state", own, slots)
    tokens, saved = batch.saves[:, 0], batch.saves[:, 1]
    _check_range("save after token", tokens, len(batch.tokens))
    _check_range("save to state", saved, slots)
    if (np.diff(tokens) <= 0).any():
        raise ValueError("saves are not in the order of their tokens")
    used, counts = np.unique(np.concatenate((own, saved)), return_counts=True)
    if (counts > 1).any():
        raise ValueError(f"state {used[counts > 1][0]} is used twice")


def _check_range(what: str, values: Ints, end: int) -> None:
    if len(values) and not (values.min() >= 0 and values.max() < end):
        wrong = next(int(value) for value in values if not 0 <= value < end)
        raise ValueError(f"{what} {wrong} of {end}")
