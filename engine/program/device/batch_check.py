"""Whether a batch fits, before anything of its step is done."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from engine.program.executor import Batch, Ints


@dataclass(frozen=True)
class BatchLimits:
    """What the parts of a batch must stay within."""

    max_tokens: int
    vocabulary: int
    page_tokens: int
    pages: int


def check_batch(batch: Batch, limits: BatchLimits) -> None:
    """ValueError that says what does not fit."""
    count = len(batch.tokens)
    if count > limits.max_tokens or len(batch.rows) > count:
        raise ValueError(
            f"a step of {count} tokens and {len(batch.rows)} rows; there is room for {limits.max_tokens} tokens"
        )
    starts = batch.seq_starts
    if starts[0] != 0 or starts[-1] != count or (np.diff(starts) < 0).any():
        raise ValueError("the parts of the batch do not fit together")
    _check_range("token", batch.tokens, limits.vocabulary)
    _check_range("wanted row", batch.rows, count)
    for index, pages in enumerate(batch.page_tables):
        begin, end = int(starts[index]), int(starts[index + 1])
        if begin < end:
            _check_sequence(f"sequence {index}", batch.positions[begin:end], pages, limits)


def _check_sequence(name: str, positions: Ints, pages: Ints, limits: BatchLimits) -> None:
    if positions[0] < 0:
        raise ValueError(f"{name} starts at position {positions[0]}")
    if (np.diff(positions) != 1).any():
        raise ValueError(f"{name} has a gap in its positions")
    needed = int(positions[-1]) // limits.page_tokens + 1
    if len(pages) < needed:
        raise ValueError(f"{name} needs {needed} pages and has {len(pages)}")
    _check_range(f"page of {name}", pages[:needed], limits.pages)


def _check_range(what: str, values: Ints, end: int) -> None:
    if len(values) and not (values.min() >= 0 and values.max() < end):
        wrong = next(int(value) for value in values if not 0 <= value < end)
        raise ValueError(f"{what} {wrong} of {end}")
