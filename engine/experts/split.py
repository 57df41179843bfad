"""How the misses of a layer are divided: q of m are filled over the link, the CPU computes the other m - q in place.

If both branches shared the host's memory perfectly, a step with q fills would take
max(q S / B_P, (m - q) S / (B_H - B_P)) with records of S bytes (Eq. 2 of arXiv 2608.16157). That is smallest at
q* = m B_P / B_H (Eq. 3), the largest number of fills that cost no time. Everything here is pure; what reads clocks and
counters lives elsewhere.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

TABLE, CARRY, FILL, CPU = RULES = ("table", "carry", "fill", "cpu")
CARRIED = -1  # an entry of a table that leaves its number of misses to the second rule
MOST_TABLED = 64  # misses; a longer table would change q / m by less than a hundredth
FIXED_ONE = 1 << 16  # the device keeps fractions as 16.16 fixed point
_MOST_SLOWED = 0.85  # share of its rate that the CPU is taken to lose beside the link, where that is not measured
_FILL_FIRST = 0.5  # the fraction from which even a single miss is always filled
_NOISE = 1e-9  # of m * f: where the product is whole but for rounding, its neighbours do not compete


@dataclass(frozen=True)
class Branch:
    """Fitted time of one branch: `latency + per_record * n` seconds for n >= 1 records, nothing for none.

    A launch costs about as much as a small record, so a rate alone would misjudge one or two misses.
    """

    latency: float
    per_record: float

    def __post_init__(self) -> None:
        if not (0 <= self.latency < math.inf and 0 < self.per_record < math.inf):
            raise ValueError(f"not a branch: {self.latency} s and {self.per_record} s a record")

    def seconds(self, records: int) -> float:
        """Time for so many records."""
        return self.latency + self.per_record * records if records else 0.0

    def scaled(self, factor: float) -> Branch:
        """The branch that takes so many times as long."""
        return Branch(self.latency * factor, self.per_record * factor)

    def of_size(self, factor: float) -> Branch:
        """The same branch with records so many times as large: a launch stays what it is."""
        return Branch(self.latency, self.per_record * factor)

    @staticmethod
    def of_rate(record_bytes: int, gb_per_second: float, latency: float = 0.0) -> Branch:
        """The branch that moves records at a bandwidth of 1e9 bytes a second."""
        return Branch(latency, record_bytes / (gb_per_second * 1e9))

    @staticmethod
    def fit(records: Sequence[int], seconds: Sequence[float]) -> Branch:
        """Least squares through measured points of at least one record each; the latency is not below zero."""
        count = len(records)
        if count == 0 or min(records) < 1:
            raise ValueError("a branch is fitted to points of at least one record")
        mean_n, mean_s = math.fsum(records) / count, math.fsum(seconds) / count
        spread = math.fsum((n - mean_n) ** 2 for n in records)
        slope = math.fsum((n - mean_n) * (s - mean_s) for n, s in zip(records, seconds, strict=True))
        slope = slope / spread if spread else mean_s / mean_n
        latency = mean_s - slope * mean_n
        if latency < 0 or slope <= 0:  # noise, or one size only: the line through the origin
            return Branch(0.0, mean_s / mean_n)
        return Branch(latency, slope)


def fraction(link: float, host: float) -> float:
    """Eq. 3: f = q* / m = B_P / B_H from bandwidths that were measured one at a time; 1 where the link is no slower."""
    if not (0 <= link < math.inf and 0 < host < math.inf):
        raise ValueError(f"not bandwidths: link {link}, host {host}")
    return min(link / host, 1.0)


def fraction_together(link: float, cpu: float) -> float:
    """f = p / (p + c) from what each branch got while both ran. It needs no model of sharing, so it is preferred."""
    if not (0 <= link < math.inf and 0 <= cpu < math.inf and link + cpu > 0):
        raise ValueError(f"not bandwidths: link {link}, CPU {cpu}")
    return link / (link + cpu)


@dataclass(frozen=True)
class Timing:
    """Fitted times of both branches of a step: each alone, and how far they slow each other.

    A second during which the other branch runs too costs the link `fill_slowed` seconds of its own, and the CPU
    `cpu_slowed`: 1 - p / B_P and 1 - c / B_H, of what each gets together and alone. Both are 0 where the branches were
    fitted while both ran. Under Eq. 2 the CPU loses B_P / B_H of the time: a step then is as long for any q up to q*.
    """

    fill: Branch
    cpu: Branch
    fill_slowed: float = 0.0
    cpu_slowed: float = 0.0

    def __post_init__(self) -> None:
        if not (0 <= self.fill_slowed < 1 and 0 <= self.cpu_slowed < 1):
            raise ValueError(f"branches slowed by {self.fill_slowed} and {self.cpu_slowed}")

    @property
    def fraction(self) -> float:
        """f = p / (p + c), of the rates while both run."""
        link = (1 - self.fill_slowed) / self.fill.per_record
        return fraction_together(link, (1 - self.cpu_slowed) / self.cpu.per_record)

    def times(self, misses: int, fills: int) -> tuple[float, float]:
        """Seconds until the fills and until the CPU have ended. The one that ends first was slowed all the time."""
        fill, cpu = self.fill.seconds(fills), self.cpu.seconds(misses - fills)
        if not fill or not cpu:
            return fill, cpu
        first = fill / (1 - self.fill_slowed)
        if first <= cpu + self.cpu_slowed * first:
            return first, cpu + self.cpu_slowed * first
        first = cpu / (1 - self.cpu_slowed)
        return fill + self.fill_slowed * first, first

    def seconds(self, misses: int, fills: int) -> float:
        """Time until both have ended."""
        return max(self.times(misses, fills))

    def nearest(self, misses: int, share: float) -> int:
        """The first rule: of the two integers around m f the one with the smaller fitted time, the larger on a tie.

        At least 1, since a fill buys hits to come, and at most m.
        """
        return self._faster(misses, misses * share)

    def balanced(self, misses: int) -> int:
        """The first rule around the point where both branches end together, launches included.

        Without launches that point is m f; with them it is farther off the fewer the misses are.
        """
        fill_launch, fill_record = (x / (1 - self.fill_slowed) for x in (self.fill.latency, self.fill.per_record))
        cpu_launch, cpu_record = (x / (1 - self.cpu_slowed) for x in (self.cpu.latency, self.cpu.per_record))
        together = (cpu_launch - fill_launch + cpu_record * misses) / (fill_record + cpu_record)
        return self._faster(misses, min(max(together, 0.0), float(misses)))

    def _faster(self, misses: int, around: float) -> int:
        if misses == 0:
            return 0
        low = min(max(math.floor(around + _NOISE), 1), misses)
        high = min(max(math.ceil(around - _NOISE), 1), misses)
        return high if self.seconds(misses, high) <= self.seconds(misses, low) * (1 + _NOISE) else low

    def of_size(self, factor: float) -> Timing:
        """The same branches with records so many times as large."""
        return Timing(self.fill.of_size(factor), self.cpu.of_size(factor), self.fill_slowed, self.cpu_slowed)

    def scaled(self, fill: float, cpu: float) -> Timing:
        """The same branches, so many times as slow.

        A CPU that is slower because its memory gives less is slowed more by the link, which goes on taking what it
        took: of a total (1 - cpu_slowed) B_H + p that shrinks with B_H, the CPU has what the link leaves.
        """
        link_of_host = (1 - self.fill_slowed) * self.cpu.per_record / self.fill.per_record  # p / B_H
        slowed = self.cpu_slowed + link_of_host * max(cpu - 1, 0.0)
        most = max(self.cpu_slowed, _MOST_SLOWED)
        return Timing(self.fill.scaled(fill), self.cpu.scaled(cpu), self.fill_slowed, min(slowed, most))


def carried(misses: int, share: int, carry: int) -> tuple[int, int]:
    """The second rule: q and the new carry, which keeps what m f leaves over for the layers to come.

    `share` and `carry` are 16.16 fixed point, `share` at most one, so q is never above m.
    """
    total = carry + misses * share
    return total >> 16, total & (FIXED_ONE - 1)


@dataclass(frozen=True)
class Split:
    """The division in force, as the cache uploads it; it takes effect at the next step.

    rule: `table` (q = table[m], or where that is `CARRIED` the second rule; beyond the end the last entry and
    `fraction` of the rest), `carry` (the second rule with `fraction`), `fill` (q = m) or `cpu` (q = 0). `why` tells
    people where it comes from; it does not count when two splits are compared.
    """

    rule: str
    fraction: float
    table: tuple[int, ...] = ()
    why: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        if self.rule not in RULES:
            raise ValueError(f"{self.rule!r} is no rule; there are {', '.join(RULES)}")
        if not 0 <= self.fraction <= 1:
            raise ValueError(f"a fraction of {self.fraction}")
        if (self.rule == TABLE) != bool(self.table):
            raise ValueError("a table belongs to the rule `table`, and to no other")
        if any(fills != CARRIED and not 0 <= fills <= misses for misses, fills in enumerate(self.table)):
            raise ValueError("a table holds between none and m fills for m misses, or leaves them to the second rule")
        if self.table[-1:] == (CARRIED,):
            raise ValueError("what lies beyond a table goes on from its last entry, so that is a number")

    @property
    def fixed(self) -> int:
        """The fraction as the device keeps it: 16.16 fixed point."""
        return round(self.fraction * FIXED_ONE)

    def fills(self, misses: int, carry: int = 0) -> tuple[int, int]:
        """q for so many misses and the carry for the next layer, to the bit what the device's plan computes.

        The plan also clamps q to the victims that there are.
        """
        if self.rule == FILL:
            return misses, carry
        if self.rule == CPU:
            return 0, carry
        if self.carries(misses):
            return carried(misses, self.fixed, carry)
        last = len(self.table) - 1
        if misses <= last:
            return self.table[misses], carry
        return self.table[last] + ((misses - last) * self.fixed >> 16), carry

    def carries(self, misses: int) -> bool:
        """Whether the second rule divides so many misses."""
        return self.rule == CARRY or self.table[misses : misses + 1] == (CARRIED,)

    @staticmethod
    def timed(share: float, timing: Timing, most: int = MOST_TABLED) -> Split:
        """The first rule with branches fitted alone and together, tabled for up to `most` misses."""
        return Split(TABLE, share, tuple(timing.nearest(m, share) for m in range(most + 1)))

    @staticmethod
    def of_fraction(share: float, why: str = "") -> Split:
        """The default where nothing but a fraction above 0 is known: branches without latency that agree with it."""
        if share == 1:
            return Split.all_fill(why)
        return Split.usual(Timing(Branch(0.0, 1 - share), Branch(0.0, share)), why=why)

    @staticmethod
    def balanced(timing: Timing, why: str = "") -> Split:
        """The division at which the fitted branches end together."""
        return Split(TABLE, timing.fraction, tuple(timing.balanced(m) for m in range(MOST_TABLED + 1)), why)

    @staticmethod
    def usual(timing: Timing, why: str = "") -> Split:
        """What is the default where branches have been measured: both rules, each where it is better.

        Few misses, m f <= 1, are most of what there is at real hit rates. The first rule fills one of them every time;
        where the link is the slower branch (f < 1/2) that makes the CPU wait, so these are left to the second rule.
        """
        split = Split.balanced(timing, why)
        if split.fraction >= _FILL_FIRST:
            return split
        few = math.floor(1 / split.fraction + _NOISE) if split.fraction * MOST_TABLED > 1 else MOST_TABLED - 1
        return Split(TABLE, split.fraction, (0, *[CARRIED] * few, *split.table[few + 1 :]), why)

    @staticmethod
    def carry(share: float, why: str = "") -> Split:
        """The second rule."""
        return Split(CARRY, share, why=why)

    @staticmethod
    def all_fill(why: str = "") -> Split:
        """Every miss is filled, as where the CPU is too weak to help."""
        return Split(FILL, 1.0, why=why)

    @staticmethod
    def all_cpu(why: str = "") -> Split:
        """No miss is filled, as where the link is too slow to help; it overrides the minimum of one."""
        return Split(CPU, 0.0, why=why)


# Where Eq. 2 holds with f and we take g, a step is max(g / f, (1 - g) / (1 - f)) times as long as it need be. The
# machines of the paper have f between 0.25 and 0.91, and no g does better by all of them than 2.96; 3/4 gives 3.02. It
# leans to fills, the mistake that buys hits, and the closed loop corrects it while serving.
DEFAULT_FRACTION = 0.75
DEFAULT_SPLIT = Split.of_fraction(
    DEFAULT_FRACTION, "no profile of this machine: three quarters are filled until steps have been measured"
)
