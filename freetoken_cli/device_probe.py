"""The part of `freetoken probe` that has to do with a device: fills, fills beside experts, and what they say."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from engine.base.errors import UsageError
from engine.base.hardware import read_memory
from engine.base.profile import Profile, Rate, SharedRun
from engine.device.driver import Driver
from engine.experts.sharing import distance_of_eq2, eq2_seconds, fit_timing
from engine.experts.split import fraction
from engine.measure.probe import ExpertShape
from freetoken_cli.chart import Bar, draw
from freetoken_cli.plots import check_target, new_figure, save

_SIM_MEMORY = 1 << 30
_MOST_BYTES = 512 << 20  # of records, beyond what caches hold
_MEMORY_SHARE = 8  # and at most this part of the memory that is free
_BAR_CELLS = 30


def usual_shape(shapes: Sequence[ExpertShape]) -> ExpertShape:
    """With which fills and experts are measured at the same time: four-bit experts where there are any."""
    return next((shape for shape in shapes if shape.codec == "q4_0"), shapes[0])


def with_device(profile: Profile, device: str, shape: ExpertShape, threads: int) -> Profile:
    """The profile with what a device adds: B_P of every size of records in it, and fills beside experts of `shape`."""
    from engine.measure.shared_memory import DeviceSharedMeter, measure_sharing

    driver = _open(device)
    sizes = {entry.record_bytes for entry in profile.experts}
    meter = DeviceSharedMeter(driver, shape, threads, sizes, min(_MOST_BYTES, read_memory()[1] // _MEMORY_SHARE))
    try:
        links = meter.link_rates()
        runs = measure_sharing(meter)
    finally:
        meter.close()
    return replace(
        profile,
        link=next(entry.rate for entry in links if entry.record_bytes == meter.record_bytes),
        device=driver.description,
        uuid=driver.uuid,
        record_bytes=meter.record_bytes,
        links=links,
        runs=runs,
    )


def _open(device: str) -> Driver:
    if device == "cuda":
        from engine.worker.cuda_device import open_cuda

        return open_cuda()
    from engine.device.sim import SimDriver

    return SimDriver(_SIM_MEMORY)


def conclusions(profile: Profile) -> dict[str, Any]:
    """What follows from the runs, for `--json`: branches, both fractions, how far Eq. 2 is off; {} on the cpu."""
    if not profile.runs:
        return {}
    timing = fit_timing(profile.runs)
    distance = distance_of_eq2(profile.runs, timing)
    return {
        "timing": asdict(timing),
        "fraction_together": timing.fraction,
        "fraction_alone": fraction(1 / timing.fill.per_record, 1 / timing.cpu.per_record),
        "eq2_distance": None if distance is None else asdict(distance),
    }


def device_lines(profile: Profile, unicode: bool) -> list[str]:
    """B_P by size of records, the curve of both branches over q, and the split that it implies, for people."""
    found = conclusions(profile)
    simulated = " (simulated: fills are copies in this machine's memory, no GPU)" if _simulated(profile) else ""
    rates = [Bar(f"{entry.record_bytes:,} bytes", rate_text(entry.rate), entry.rate.median) for entry in profile.links]
    runs, said = curve(profile)
    steps = [
        Bar(f"{run.fills} of {run.misses}", _step(run, formula), max(run.fill_seconds, run.cpu_seconds))
        for run, formula in zip(runs, said, strict=True)
    ]
    distance = found["eq2_distance"]
    off = (
        "Eq. 2 says nothing of this machine: B_H is not above B_P."
        if distance is None
        else f"Eq. 2 is off by {_distance(distance['step'])} in a step, by {_distance(distance['cpu'])} on the CPU."
    )
    return [
        f"{profile.device}{simulated}",
        "Fills (B_P) by size of records, GB/s: median (range)",
        *draw(rates, _BAR_CELLS, unicode),
        "",
        f"Filled of {runs[0].misses} misses of {profile.record_bytes:,} bytes: microseconds of fills | CPU | Eq. 2",
        *draw(steps, _BAR_CELLS, unicode),
        off,
        f"f = {found['fraction_together']:.2f} by both at once (in force), "
        f"{found['fraction_alone']:.2f} by each alone (Eq. 3).",
    ]


def curve(profile: Profile) -> tuple[list[SharedRun], list[float]]:
    """The runs of most misses by q, and the seconds of each by Eq. 2, which may be infinite."""
    timing = fit_timing(profile.runs)
    most = max(run.misses for run in profile.runs)
    runs = sorted((run for run in profile.runs if run.misses == most), key=lambda run: run.fills)
    return runs, [eq2_seconds(most, run.fills, timing.fill.per_record, timing.cpu.per_record) for run in runs]


def _simulated(profile: Profile) -> bool:
    return profile.uuid.startswith("SIM-")


def rate_text(rate: Rate) -> str:
    """The median and the range."""
    return f"{rate.median:.1f} ({rate.low:.1f}-{rate.high:.1f})"


def _distance(found: dict[str, float]) -> str:
    return f"{found['mean']:.0%} (at most {found['largest']:.0%})"


def _step(run: SharedRun, formula: float) -> str:
    told = f"{formula * 1e6:.0f}" if formula < math.inf else "-"
    return f"{run.fill_seconds * 1e6:>7.0f} | {run.cpu_seconds * 1e6:>7.0f} | {told:>7}"


def check_plot(file: str, device: str) -> Path:
    """Refuse a drawing that could not be made, before anything is measured."""
    if device == "cpu":
        raise UsageError("--plot draws fills beside experts, and the cpu has no fills.", "Add --device sim or cuda.")
    return check_target(file)


def draw_curve(profile: Profile, path: Path) -> None:
    """Time of a step over how many misses are filled: both branches, and Eq. 2."""
    runs, said = curve(profile)
    fills = [run.fills for run in runs]
    figure = new_figure(6.4, 4.2)
    axes = figure.add_subplot()
    axes.plot(fills, [run.fill_seconds * 1e6 for run in runs], "o-", label="fills")
    axes.plot(fills, [run.cpu_seconds * 1e6 for run in runs], "s-", label="experts on the CPU")
    if math.inf not in said:
        axes.plot(fills, [seconds * 1e6 for seconds in said], "--", label="a step by Eq. 2")
    axes.set_xlabel(f"of {runs[0].misses} misses, filled")
    axes.set_ylabel("microseconds")
    axes.set_title(f"{profile.device}, records of {profile.record_bytes:,} bytes", fontsize=10)
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    save(figure, path)
