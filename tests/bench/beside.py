"""Two things measured in turns, so that a machine that is busy slows both alike."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

WARM_UPS = 2


@dataclass(frozen=True)
class Rates:
    """Gigabytes moved a second, medians; our time over the loop's, with its range."""

    ours: float
    loop: float
    ratio: float
    low: float
    high: float


def beside(loop: Callable[[], float], ours: Callable[[], float], moved: float, rounds: int) -> Rates:
    """So many rounds of both, which return the seconds in which they move `moved` bytes, after two to warm up."""
    pairs = [(ours(), loop()) for _ in range(WARM_UPS + rounds)][WARM_UPS:]
    ratios = [mine / other for mine, other in pairs]
    mine, other = (1e-9 * moved / median(side) for side in zip(*pairs, strict=True))
    return Rates(mine, other, median(ratios), min(ratios), max(ratios))
