"""The part of `freetoken probe` that has to do with a device: fills, fills beside experts, and what they say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from engine.base.errors import FreetokenError, UsageError
from engine.base.profile import Profile, Rate
from engine.experts.sharing import distance_of_eq2, eq2_seconds, fit_timing
from engine.experts.split import fraction
from engine.measure.probe import ExpertShape

_SIM_MEMORY = 1 << 30


def usual_shape(shapes: Sequence[ExpertShape]) -> ExpertShape:
    """Which of them fills are measured with: four-bit experts where there are any."""
    return next((shape for shape in shapes if shape.codec == "q4_0"), shapes[0])


def with_device(profile: Profile, device: str, shape: ExpertShape, threads: int) -> Profile:
    """The profile with what a device adds to it, for experts of one shape."""
    from engine.measure.shared_memory import DeviceSharedMeter, measure_sharing

    driver = _open(device)
    meter = DeviceSharedMeter(driver, shape, threads)
    try:
        runs = measure_sharing(meter)
        size = meter.record_bytes
    finally:
        meter.close()
    alone = [run.misses * size / run.fill_seconds / 1e9 for run in runs if run.fills == run.misses]
    return replace(
        profile, link=Rate.of(alone), device=driver.description, uuid=driver.uuid, record_bytes=size, runs=runs
    )


def _open(device: str) -> Any:
    if device == "cuda":
        from engine.worker.cuda_device import open_cuda

        return open_cuda()
    from engine.device.sim import SimDriver

    return SimDriver(_SIM_MEMORY)


def conclusions(profile: Profile) -> dict[str, Any]:
    """What follows from the runs, for `--json`: both fractions, and the distance of Eq. 2; {} without a device."""
    if not profile.runs:
        return {}
    timing = fit_timing(profile.runs)
    distance = distance_of_eq2(profile.runs, timing)
    return {
        "fraction_together": timing.fraction,
        "fraction_alone": fraction(1 / timing.fill.per_record, 1 / timing.cpu.per_record),
        "eq2_distance": None if distance is None else {"mean": distance.mean, "largest": distance.largest},
    }


def split_lines(profile: Profile) -> list[str]:
    """The curve and the split that it implies, for people."""
    assert profile.link is not None
    timing, found = fit_timing(profile.runs), conclusions(profile)
    simulated = " (simulated: a copy in this machine's memory, no GPU)" if profile.uuid.startswith("SIM") else ""
    lines = [
        f"{profile.device}{simulated}: B_P {profile.link.median:.1f} GB/s "
        f"({profile.link.low:.1f}-{profile.link.high:.1f}), records of {profile.record_bytes} bytes",
        "misses filled   fills      CPU        Eq. 2 says (microseconds)",
    ]
    for run in sorted((run for run in profile.runs if run.misses == 8), key=lambda run: run.fills):
        said = eq2_seconds(run.misses, run.fills, timing.fill.per_record, timing.cpu.per_record)
        told = f"{said * 1e6:.0f}" if said < float("inf") else "nothing: B_H is not above B_P"
        seconds = f"{run.fill_seconds * 1e6:<10.0f} {run.cpu_seconds * 1e6:<10.0f}"
        lines.append(f"{run.fills} of {run.misses}          {seconds} {told}")
    distance = found["eq2_distance"]
    if distance is not None:
        lines.append(f"Eq. 2 is off by {distance['mean']:.0%} on average, {distance['largest']:.0%} at most.")
    lines.append(
        f"f = {found['fraction_together']:.2f} by both at once (in force), "
        f"{found['fraction_alone']:.2f} by each alone (Eq. 3)."
    )
    return lines


def check_plot(file: str, device: str) -> None:
    """Refuse a drawing that could not be made, before anything is measured."""
    if device == "cpu":
        raise UsageError("--plot draws fills beside experts, and the cpu has no fills.", "Add --device sim or cuda.")
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise FreetokenError(
            "--plot needs matplotlib, which is not installed.", "Install it: pip install 'freetoken-cli[plot]'"
        ) from error
    if not Path(file).absolute().parent.is_dir():
        raise UsageError(f"--plot: there is no folder {Path(file).absolute().parent}.")


def draw_curve(profile: Profile, file: str) -> None:
    """Time of a step of eight misses over how many are filled: both branches, and Eq. 2."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    timing = fit_timing(profile.runs)
    runs = sorted((run for run in profile.runs if run.misses == 8), key=lambda run: run.fills)
    fills = [run.fills for run in runs]
    figure, axes = pyplot.subplots(figsize=(6, 4))
    axes.plot(fills, [run.fill_seconds * 1e6 for run in runs], "o-", label="fills")
    axes.plot(fills, [run.cpu_seconds * 1e6 for run in runs], "s-", label="experts on the CPU")
    said = [eq2_seconds(8, q, timing.fill.per_record, timing.cpu.per_record) * 1e6 for q in fills]
    axes.plot(fills, said, "--", label="a step by Eq. 2")
    axes.set(xlabel="of 8 misses, filled", ylabel="microseconds", title=profile.device)
    axes.legend()
    try:
        figure.savefig(file, dpi=120, bbox_inches="tight")
    except (OSError, ValueError) as error:
        raise FreetokenError(f"The plot could not be written to {file}: {error}.") from error
    finally:
        pyplot.close(figure)
