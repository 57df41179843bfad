"""How many misses layers usually have, and what a split would cost on them."""

from __future__ import annotations

from collections.abc import Iterable

from engine.experts.split import FIXED_ONE, Split, Timing

_RARE = 0.01  # share of layers below which a number of misses is not worth a change of its own
_NEAR = 0.02  # difference of fractions that changes fewer than one record in fifty
_HEAVY = 1e100  # weights are scaled down before they grow beyond what a float holds


class UsualMisses:
    """Layers counted by their misses, those of `memory` steps ago a third (1/e) as much as those of now."""

    def __init__(self, memory: int) -> None:
        self._growth = 1 + 1 / memory
        self._weight = 1.0  # of a layer of the step to come: it grows instead of the older ones shrinking
        self._layers: dict[int, float] = {}

    def add(self, layers: Iterable[tuple[int, int]]) -> None:
        """Take in a step: pairs of misses and the number of layers that had them."""
        self._weight *= self._growth
        for misses, count in layers:
            if misses:
                self._layers[misses] = self._layers.get(misses, 0.0) + count * self._weight
        if self._weight > _HEAVY:
            self._layers = {misses: weight / self._weight for misses, weight in self._layers.items()}
            self._weight = 1.0

    def __bool__(self) -> bool:
        return bool(self._layers)

    def common(self) -> list[int]:
        """The numbers of misses that are not rare."""
        enough = _RARE * sum(self._layers.values())
        return [misses for misses, weight in self._layers.items() if weight >= enough]

    def cost(self, split: Split, timing: Timing) -> float:
        """Mean seconds of a layer that misses; 0 before any did."""
        total = sum(self._layers.values())
        return sum(w * seconds(split, timing, m) for m, w in self._layers.items()) / total if total else 0.0

    def filled(self, split: Split) -> float:
        """Mean fills of a layer that misses."""
        total = sum(self._layers.values())
        return sum(w * _mean_fills(split, m) for m, w in self._layers.items()) / total if total else 0.0

    def alike(self, one: Split, other: Split) -> bool:
        """Whether both divide every common number of misses alike."""
        near = abs(one.fraction - other.fraction) < _NEAR
        return all(
            near and one.carries(m) == other.carries(m)
            if one.carries(m) or other.carries(m)
            else one.fills(m) == other.fills(m)
            for m in self.common()
        )

    def saving(self, new: Split, old: Split, timing: Timing) -> tuple[float, float]:
        """Shares of the time that `new` saves: over all layers, and over the number of misses that it helps most."""
        before = self.cost(old, timing)
        if before == 0:
            return 0.0, 0.0
        most = max(1 - seconds(new, timing, m) / seconds(old, timing, m) for m in self.common())
        return 1 - self.cost(new, timing) / before, most


def _mean_fills(split: Split, misses: int) -> float:
    return misses * split.fraction if split.carries(misses) else split.fills(misses)[0]


def seconds(split: Split, timing: Timing, misses: int) -> float:
    """Time of a layer with `misses` under `split`; where the remainder is carried, the mean over all carries."""
    if not split.carries(misses):
        return timing.seconds(misses, split.fills(misses)[0])
    low, rest = divmod(misses * split.fixed, FIXED_ONE)
    above = rest / FIXED_ONE
    return (1 - above) * timing.seconds(misses, low) + (above * timing.seconds(misses, low + 1) if above else 0.0)
