"""A virtual machine, for claims of speed where no chip is: how long both branches take while they share memory.

The model is not Eq. 2, on purpose: a rule that was derived from Eq. 2 proves nothing on a clock that obeys it. Eq. 2
grants the link all of B_P and the CPU what is left of B_H, from the first byte to the last. Here

- both streams and whatever else runs (`hog`) claim from one memory controller. Its throughput depends on the mix: reads
  of the link among those of the CPU cost it turnarounds, most when each has half (`conflict`);
- claims are served by weight (`priority`), so the CPU gives way more than the link does, though the link is slowed too;
  nobody is given more than it asks for, and what one leaves goes to the others;
- a stream never starves below `floor`;
- each branch starts only after its launch (`fill_latency`, `cpu_latency`), and one that outlives the other goes on
  alone, at the rate it has alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from engine.experts.split import Branch, Timing

_ALONE = (1, 2, 4, 8, 16)  # records of one branch that a probe would time while the other rests
_TOGETHER = (4, 8, 12, 16, 24, 32, 48)  # and misses of the steps that it would time


@dataclass(frozen=True)
class VirtualMachine:
    """Bandwidths in GB/s (1e9 bytes a second), latencies in seconds.

    link: B_P, fills alone. host: B_H, experts on the CPU alone. ceiling: what the controller gives one kind of traffic;
    above `host` where the CPU cannot use all of it. conflict: share of the ceiling that a half-and-half mix loses.
    """

    name: str
    link: float
    host: float
    fill_latency: float
    cpu_latency: float
    ceiling: float
    conflict: float = 0.12
    priority: float = 4.0
    floor: float = 0.5
    hog: float = 0.0
    about: str = ""

    def __post_init__(self) -> None:
        positive = (self.link, self.host, self.ceiling, self.priority, self.floor)
        if not all(0 < value < math.inf for value in positive):
            raise ValueError(f"{self.name}: bandwidths, priority and floor are above zero")
        if not all(0 <= value < math.inf for value in (self.fill_latency, self.cpu_latency, self.hog)):
            raise ValueError(f"{self.name}: latencies and the hog are not below zero")
        if not 0 <= self.conflict < 1:
            raise ValueError(f"{self.name}: a conflict of {self.conflict}")

    def hogged(self, gb_per_second: float) -> VirtualMachine:
        """The same machine while other programs ask its memory for so much more."""
        return replace(self, hog=gb_per_second)

    def rates(self, filling: bool, computing: bool) -> tuple[float, float]:
        """GB/s of the link and of the CPU while the branches named are busy; 0 for one that is not."""
        link, host = self.link * filling, self.host * computing
        asked = link + host + self.hog
        if asked == 0:
            return 0.0, 0.0
        mix = link / asked
        ceiling = self.ceiling * (1 - self.conflict * 4 * mix * (1 - mix))
        got_link, got_host, _ = _share(ceiling, (link, host, self.hog), (self.priority, 1.0, 1.0))
        return max(got_link, min(self.floor, link)), max(got_host, min(self.floor, host))

    def times(self, misses: int, fills: int, record_bytes: int) -> tuple[float, float]:
        """When the fills of `fills` records and the CPU's work on the other misses end, in seconds; 0 without any."""
        if not 0 <= fills <= misses:
            raise ValueError(f"{fills} fills of {misses} misses")
        now = 0.0
        starts = [self.fill_latency, self.cpu_latency]
        left = [fills * record_bytes / 1e9, (misses - fills) * record_bytes / 1e9]
        ends = [0.0, 0.0]
        while left[0] > 0 or left[1] > 0:
            busy = [left[i] > 0 and now >= starts[i] for i in (0, 1)]
            speeds = self.rates(*busy)
            nexts = [now + left[i] / speeds[i] for i in (0, 1) if busy[i]]
            nexts += [starts[i] for i in (0, 1) if left[i] > 0 and not busy[i]]
            then = min(nexts)
            for i in (0, 1):
                if busy[i]:
                    done = now + left[i] / speeds[i] <= then
                    left[i] = 0.0 if done else left[i] - (then - now) * speeds[i]
                    ends[i] = then
            now = then
        return ends[0], ends[1]

    def seconds(self, misses: int, fills: int, record_bytes: int) -> float:
        """Time until both branches have ended."""
        return max(self.times(misses, fills, record_bytes))

    def best(self, misses: int, record_bytes: int) -> tuple[int, float]:
        """The best of all divisions by trying each: q, the larger on a tie, and its seconds."""
        seconds, minus = min((self.seconds(misses, q, record_bytes), -q) for q in range(misses + 1))
        return -minus, seconds


def calibrate(machine: VirtualMachine, record_bytes: int) -> Timing:
    """What a probe would find: each branch alone, then both at once near their balance, with a line fitted to each."""
    fill = Branch.fit(_ALONE, [machine.times(n, n, record_bytes)[0] for n in _ALONE])
    cpu = Branch.fit(_ALONE, [machine.times(n, 0, record_bytes)[1] for n in _ALONE])
    fills, fill_seconds, rests, cpu_seconds = [], [], [], []
    for m in _TOGETHER:
        timed = [(q, *machine.times(m, q, record_bytes)) for q in range(1, m)]
        q, fill_end, cpu_end = min(timed, key=lambda point: abs(point[1] - point[2]))
        fills.append(q)
        fill_seconds.append(fill_end)
        rests.append(m - q)
        cpu_seconds.append(cpu_end)
    both_fill, both_cpu = Branch.fit(fills, fill_seconds), Branch.fit(rests, cpu_seconds)
    return Timing(
        fill,
        cpu,
        max(0.0, 1 - fill.per_record / both_fill.per_record),
        max(0.0, 1 - cpu.per_record / both_cpu.per_record),
    )


def _share(supply: float, claims: Sequence[float], weights: Sequence[float]) -> list[float]:
    """Supply divided by weight, none above its claim; what a satisfied claim leaves goes to the others."""
    got = [0.0] * len(claims)
    open_claims = [i for i, claim in enumerate(claims) if claim > 0]
    while open_claims:
        weight = sum(weights[i] for i in open_claims)
        satisfied = [i for i in open_claims if claims[i] <= supply * weights[i] / weight]
        if not satisfied:
            for i in open_claims:
                got[i] = supply * weights[i] / weight
            break
        for i in satisfied:
            got[i] = claims[i]
        supply -= sum(claims[i] for i in satisfied)
        open_claims = [i for i in open_claims if i not in satisfied]
    return got
