"""What measured divisions of misses say: fitted times of both branches, and how far Eq. 2 is from them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from engine.base.profile import SharedRun
from engine.experts.split import Branch, Timing

_MOST_SLOWED = 0.95


def fit_timing(runs: Sequence[SharedRun]) -> Timing:
    """Each branch as a + b n from its runs alone; how far they slow each other from those together.

    The branch that ended first was slowed all the time, so its run says by how much.
    """
    filled = [run for run in runs if run.fills == run.misses]
    computed = [run for run in runs if run.fills == 0]
    fill = Branch.fit([run.misses for run in filled], [run.fill_seconds for run in filled])
    cpu = Branch.fit([run.misses for run in computed], [run.cpu_seconds for run in computed])
    slowed: tuple[list[float], list[float]] = [], []
    for run in runs:
        if 0 < run.fills < run.misses:
            if run.fill_seconds <= run.cpu_seconds:
                slowed[0].append(1 - fill.seconds(run.fills) / run.fill_seconds)
            else:
                slowed[1].append(1 - cpu.seconds(run.misses - run.fills) / run.cpu_seconds)
    fill_slowed, cpu_slowed = (min(max(median(part or [0.0]), 0.0), _MOST_SLOWED) for part in slowed)
    return Timing(fill, cpu, fill_slowed, cpu_slowed)


@dataclass(frozen=True)
class Distance:
    """How far a formula's time of a step is from the measured one, as a share of it."""

    mean: float
    largest: float


def eq2_seconds(misses: int, fills: int, fill: float, cpu: float) -> float:
    """Eq. 2, from seconds a record alone: q S / B_P against (m - q) S / (B_H - B_P). Infinite where B_H <= B_P."""
    left = 1 / cpu - 1 / fill  # records a second that the link leaves the CPU
    if fills == misses:
        return fills * fill
    if fills == 0:
        return misses * cpu  # nothing is shared
    return max(fills * fill, (misses - fills) / left) if left > 0 else math.inf


def distance_of_eq2(runs: Sequence[SharedRun], timing: Timing) -> Distance | None:
    """Over the runs with both branches; None where B_H is not above B_P, of which Eq. 2 says nothing."""
    both = [run for run in runs if 0 < run.fills < run.misses]
    predicted = [eq2_seconds(run.misses, run.fills, timing.fill.per_record, timing.cpu.per_record) for run in both]
    if not both or math.inf in predicted:
        return None
    off = [abs(p / max(run.fill_seconds, run.cpu_seconds) - 1) for p, run in zip(predicted, both, strict=True)]
    return Distance(sum(off) / len(off), max(off))
