"""What measured divisions of misses say: fitted times of both branches, and how far Eq. 2 is from them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from engine.base.profile import SharedRun
from engine.experts.split import Branch, Timing

_MOST_SLOWED = 0.95  # share of its rate; a branch that gets nothing at all is not one to divide misses with


def fit_timing(runs: Sequence[SharedRun]) -> Timing:
    """Each branch as a + b n from its runs alone; how far they slow each other from those together.

    A branch that takes t beside the other and a alone, for a shared time of o, was slowed by s where t - a = s o. Least
    squares of (t - a) / t = s o / t over all runs: an error of measurement is a share of t, and the runs count most in
    which the branch was never alone. ValueError where no run has either branch alone.
    """
    filled = [run for run in runs if run.fills == run.misses]
    computed = [run for run in runs if run.fills == 0]
    fill = Branch.fit([run.misses for run in filled], [run.fill_seconds for run in filled])
    cpu = Branch.fit([run.misses for run in computed], [run.cpu_seconds for run in computed])
    both = [run for run in runs if 0 < run.fills < run.misses]
    shared = [min(run.fill_seconds, run.cpu_seconds) for run in both]
    return Timing(
        fill,
        cpu,
        _slowed([fill.seconds(run.fills) for run in both], [run.fill_seconds for run in both], shared),
        _slowed([cpu.seconds(run.misses - run.fills) for run in both], [run.cpu_seconds for run in both], shared),
    )


def _slowed(alone: Sequence[float], took: Sequence[float], shared: Sequence[float]) -> float:
    share = [o / t for o, t in zip(shared, took, strict=True)]
    lost = [1 - a / t for a, t in zip(alone, took, strict=True)]
    weight = math.fsum(x * x for x in share)
    found = math.fsum(x * y for x, y in zip(share, lost, strict=True)) / weight if weight else 0.0
    return min(max(found, 0.0), _MOST_SLOWED)


@dataclass(frozen=True)
class Distance:
    """How far a formula's times are from the measured ones, as shares of these."""

    mean: float
    largest: float

    @staticmethod
    def between(said: Sequence[float], measured: Sequence[float]) -> Distance:
        """Over pairs of times, of which there is at least one."""
        off = [abs(formula / time - 1) for formula, time in zip(said, measured, strict=True)]
        return Distance(math.fsum(off) / len(off), max(off))


@dataclass(frozen=True)
class Eq2Distance:
    """How far Eq. 2 is off: in the time of a step, and in that of the CPU, which a step may hide behind its fills."""

    step: Distance
    cpu: Distance


def eq2_seconds(misses: int, fills: int, fill: float, cpu: float) -> float:
    """A step by Eq. 2, from seconds a record of each branch alone. Infinite where B_H <= B_P and both have work."""
    if fills == 0:
        return misses * cpu  # nothing is shared
    return max(fills * fill, eq2_cpu_seconds(misses - fills, fill, cpu))


def eq2_cpu_seconds(records: int, fill: float, cpu: float) -> float:
    """The CPU's part of it beside fills, (m - q) S / (B_H - B_P)."""
    left = 1 / cpu - 1 / fill  # records a second that the link leaves the CPU
    if records == 0:
        return 0.0
    return records / left if left > 0 else math.inf


def distance_of_eq2(runs: Sequence[SharedRun], timing: Timing) -> Eq2Distance | None:
    """Over the runs with both branches; None where B_H is not above B_P, of which Eq. 2 says nothing."""
    both = [run for run in runs if 0 < run.fills < run.misses]
    fill, cpu = timing.fill.per_record, timing.cpu.per_record
    if not both or cpu >= fill:
        return None
    return Eq2Distance(
        step=Distance.between(
            [eq2_seconds(run.misses, run.fills, fill, cpu) for run in both],
            [max(run.fill_seconds, run.cpu_seconds) for run in both],
        ),
        cpu=Distance.between(
            [eq2_cpu_seconds(run.misses - run.fills, fill, cpu) for run in both], [run.cpu_seconds for run in both]
        ),
    )
