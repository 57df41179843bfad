"""Straight lines through what was measured, and what turns are off them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class DecodeFit:
    """Seconds a token at a context: `base + slope * context`, of which relative errors are least in squares."""

    base: float
    slope: float

    @staticmethod
    def of(points: Sequence[tuple[float, float]]) -> DecodeFit:
        """Through (context, seconds a token)."""
        contexts, seconds = np.array(points, float).T
        base, slope = _least_squares(np.stack([np.ones_like(contexts), contexts], 1), seconds)
        return DecodeFit(base, slope)

    def departure(self, context: float, seconds: float) -> float:
        """How far a time is off the line, as a share of it."""
        return seconds / (self.base + self.slope * context) - 1


@dataclass(frozen=True)
class PrefillFit:
    """Seconds that a prompt takes: a part for the request, one for every token, one for every token that it sees."""

    base: float
    per_token: float
    per_pair: float

    @staticmethod
    def of(points: Sequence[tuple[int, float]]) -> PrefillFit:
        """Through (tokens, seconds) of prompts of which nothing had been computed."""
        tokens, seconds = np.array(points, float).T
        return PrefillFit(*_least_squares(np.stack([np.ones_like(tokens), tokens, tokens**2 / 2], 1), seconds))

    def cost(self, new: int, depth: int) -> float:
        """Seconds for `new` tokens after `depth` tokens."""
        return self.base + self.per_token * new + self.per_pair * new * (depth + new / 2)


def _least_squares(terms: np.ndarray, seconds: np.ndarray) -> list[float]:
    """Coefficients with the least squares of relative errors."""
    solution, *_ = np.linalg.lstsq(terms / seconds[:, None], np.ones_like(seconds), rcond=None)
    return [float(each) for each in solution]
