"""What the kernels of mixers need to know of a batch, in the part of a step's block that is theirs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from engine.program.device.step_data import Extent
from engine.program.executor import Batch, Ints


@dataclass(frozen=True)
class MixerLayout:
    """Places in words of 4 bytes, for a step of up to `tokens` tokens, and so of as many sequences at most.

    Of each token: where in the tables the pages (window pages) of its sequence begin, and the state slot to which the
    state behind it is saved or -1. Of each sequence that has tokens: the first of them, its state slot, and whether it
    begins anew. At last how many tokens the longest sequence has, those before the step among them.
    """

    tokens: int

    @property
    def size(self) -> int:
        return 6 * self.tokens + 3

    @property
    def first_pages(self) -> int:
        return 0

    @property
    def first_windows(self) -> int:
        return self.tokens

    @property
    def saves(self) -> int:
        return 2 * self.tokens

    @property
    def slots(self) -> int:
        return 3 * self.tokens

    @property
    def fresh(self) -> int:
        return 4 * self.tokens

    @property
    def sequences(self) -> int:
        return 5 * self.tokens

    @property
    def starts(self) -> int:
        return 5 * self.tokens + 1

    @property
    def longest(self) -> int:
        return 6 * self.tokens + 2


def write_batch(layout: MixerLayout, batch: Batch, data: NDArray[np.uint8]) -> None:
    """Put a checked batch into the block."""
    words = data.view(np.int32)
    count = len(batch.tokens)
    lengths = np.diff(batch.seq_starts)
    words[layout.longest] = batch.positions.max(initial=-1) + 1
    words[layout.first_pages :][:count] = np.repeat(_firsts(batch.page_tables), lengths)
    if batch.window_tables:
        words[layout.first_windows :][:count] = np.repeat(_firsts(batch.window_tables), lengths)
    if len(batch.states):
        kept = np.flatnonzero(lengths)
        words[layout.sequences] = len(kept)
        words[layout.starts :][: len(kept)] = starts = batch.seq_starts[kept]
        words[layout.starts + len(kept)] = count
        words[layout.slots :][: len(kept)] = batch.states[kept]
        words[layout.fresh :][: len(kept)] = batch.positions[starts] == 0
        saves = words[layout.saves :][:count]
        saves[:] = -1
        saves[batch.saves[:, 0]] = batch.saves[:, 1]


def word_address(extent: Extent, place: int) -> int:
    """The device address of a word of the block."""
    return extent.mixers + 4 * place


def _firsts(tables: tuple[Ints, ...]) -> Ints:
    """Where each table begins among all of them, end to end."""
    return np.cumsum([0, *(len(table) for table in tables[:-1])], dtype=np.int32)
