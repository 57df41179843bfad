"""How many times as slow as a probe said each branch of a step really is, learned from steps."""

from __future__ import annotations

import math
from collections.abc import Mapping

from engine.experts.split import Branch, Timing

_OUTLIER = math.log(4.0)  # a step that took more times what was expected is a hiccup, and counts as so much


class Slowness:
    """Two factors, of the fills and of the CPU, each moved a little toward what a step shows.

    The probe's fits keep their form, launches and mutual slowing included; so two numbers learned from sums over all
    layers are enough, and a step whose layers are all alike cannot lead them astray.
    """

    def __init__(self, probed: Timing | None) -> None:
        self._probed = probed
        self.factors = [1.0, 1.0]
        self.idle = [0, 0]  # steps with misses since each branch last worked
        self.surprise = [0.0, 0.0]  # logarithm of what each branch took in the last step over what was expected

    @property
    def timing(self) -> Timing | None:
        """Both branches as steps show them; None until one has been seen, where no probe spoke before."""
        return None if self._probed is None else self._probed.scaled(*self.factors)

    def learn(self, layers: Mapping[tuple[int, int], int], took: tuple[float, float], gain: float) -> None:
        """Take in a step: layers by (misses, fills), seconds of both branches over all of them, and the share of the
        logarithmic difference that counts. A time that cannot be is passed over.
        """
        records = (
            sum(fills * count for (_, fills), count in layers.items()),
            sum((misses - fills) * count for (misses, fills), count in layers.items()),
        )
        if not any(records):
            return
        seen = [records[i] > 0 and 0 < took[i] < math.inf for i in (0, 1)]
        self.idle = [0 if seen[i] else self.idle[i] + 1 for i in (0, 1)]
        if self._probed is None and all(seen):
            self._probed = _perfectly_shared(took[0] / records[0], took[1] / records[1])
        timing = self.timing
        if timing is None:
            return
        expected = [0.0, 0.0]
        for (misses, fills), count in layers.items():
            for branch, seconds in enumerate(timing.times(misses, fills)):
                expected[branch] += count * seconds
        for branch in (0, 1):
            if seen[branch]:
                surprise = min(max(math.log(took[branch] / expected[branch]), -_OUTLIER), _OUTLIER)
                self.surprise[branch] = surprise
                self.factors[branch] *= math.exp(gain * surprise)


def _perfectly_shared(fill: float, cpu: float) -> Timing:
    """Without a probe: branches that took so many seconds a record together, as if they shared memory by Eq. 2."""
    slowed = cpu / (fill + cpu)  # B_P / B_H = p / (p + c)
    return Timing(Branch(0.0, fill), Branch(0.0, cpu * (1 - slowed)), 0.0, slowed)
