"""How far one next-token distribution is from another."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Distance:
    """Mean divergence in nats, and how often the most likely token is the yardstick's."""

    divergence: float
    largest: float
    same_choice: float


def distance(yardstick: NDArray[np.float32], logits: NDArray[np.float32], block: int = 128) -> Distance:
    """Compare logits [T, vocab] row by row, in float64, `block` rows at a time."""
    divergences, same = [], 0
    for start in range(0, len(yardstick), block):
        exact = _log_softmax(yardstick[start : start + block])
        other = _log_softmax(logits[start : start + block])
        divergences.append((np.exp(exact) * (exact - other)).sum(axis=1))
        same += int((exact.argmax(axis=1) == other.argmax(axis=1)).sum())
    every = np.concatenate(divergences)
    return Distance(float(every.mean()), float(every.max()), same / len(yardstick))


def _log_softmax(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    shifted = logits.astype(np.float64) - logits.max(axis=1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True)))
