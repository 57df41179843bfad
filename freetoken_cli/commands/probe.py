"""`freetoken probe`."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

import typer

from engine.base.config import check_device
from engine.base.errors import UsageError
from engine.base.hardware import read_memory
from engine.base.profile import ExpertRate, Profile, profile_of, save_profile
from engine.files.store import READY, Store
from engine.measure.probe import CANONICAL_SHAPES, NO_LINK, ExpertShape, probe, shapes_of
from freetoken_cli import options
from freetoken_cli.chart import Bar, can_draw, draw
from freetoken_cli.folders import model_folder
from freetoken_cli.options import Device, Json, NoColor, Threads
from freetoken_cli.output import Output
from freetoken_cli.terminal import styled

EXAMPLES = (
    ("freetoken probe", "ten to twenty seconds; leave the machine alone meanwhile"),
    ("freetoken probe demo", "with the shapes of one model's experts"),
    ("freetoken probe --seconds 30 --json", "longer, for a script"),
    ("freetoken probe --device sim --plot curve.png", "a device too: fills, and fills beside experts"),
)

ProbedModel = Annotated[
    str | None,
    typer.Argument(
        metavar="MODEL",
        help="Measure this model's experts, not all the store's.",
        show_default=False,
        autocompletion=options.complete_stored,
    ),
]
Seconds = Annotated[
    str | None,
    typer.Option(
        "--seconds",
        metavar="X",
        help="How long to measure, three rounds at the least; 10 if not said.",
        show_default=False,
    ),
]
PlotFile = Annotated[
    str | None, typer.Option("--plot", metavar="FILE.png", help="Draw the curve of a device.", show_default=False)
]
_BAR_CELLS = 40

Quiet = Annotated[bool, options.quiet("Print the path of the profile alone.")]


def command(
    model: ProbedModel = None,
    seconds: Seconds = None,
    threads: Threads = None,
    device: Device = None,
    plot: PlotFile = None,
    json: Json = False,
    quiet: Quiet = False,
    no_color: NoColor = False,
) -> None:
    """Measure how fast this machine reads memory and runs experts, and keep it as the machine's profile.

    Without a model: the expert shapes of the store, and usual ones for codecs that the store does not have. On a
    device it measures fills too (B_P), and fills and experts at the same time; sim is this machine's memory, not a GPU.
    """
    from engine.measure.native_meter import NativeMeter
    from engine.worker.machine import this_machine
    from freetoken_cli.device_probe import check_plot, conclusions, draw_curve, usual_shape, with_device

    output = Output.create(as_json=json, quiet=quiet, no_color=no_color)
    paths = options.paths()
    config = options.settings(paths, threads=threads, device=device)
    check_device(config.device)
    on_device = config.device if config.device in ("sim", "cuda") else "cpu"
    picture_file = check_plot(plot, on_device) if plot is not None else None
    length = _seconds(seconds)
    machine = this_machine()
    shapes = _shapes(Store(paths.store), model)
    with output.phase("Measuring", sizes=False) as progress:
        threads_used = config.threads or machine.usable_cores
        profile = probe(
            NativeMeter(read_memory()[1]),
            machine,
            datetime.now(UTC).isoformat(timespec="seconds"),
            threads_used,
            shapes,
            length,
            progress,
        )
        if on_device != "cpu":
            profile = with_device(profile, on_device, usual_shape(shapes), threads_used)
    file = profile_of(paths.profile, on_device)
    if json:
        output.document({**profile.to_json(), **conclusions(profile), "profile": str(file)})
    elif not quiet:
        for line in picture(profile, output.colour_out, can_draw(output.stdout)):
            output.line(line)
    save_profile(profile, file)
    if picture_file is not None:
        draw_curve(profile, picture_file)
    if quiet and not json:
        output.line(str(file))
    output.note(f"Written to {file}.")


def _seconds(text: str | None) -> float:
    try:
        value = float(text or "10")
    except ValueError:
        value = 0.0
    if not 0 < value <= 3600:
        raise UsageError(f"--seconds: {text!r} is not a number of seconds up to 3600.")
    return value


def _shapes(store: Store, model: str | None) -> list[ExpertShape]:
    """What to measure; each shape once."""
    from engine.files.ftw.opening import open_model

    if model is not None:
        shapes = shapes_of(open_model(model_folder(store, model)))
        if not shapes:
            raise UsageError(f"{model} has no experts to measure.", "Leave the model out to measure usual shapes.")
        return list(shapes)
    ready = [entry.folder for entry in store.entries() if entry.state == READY]
    found = dict.fromkeys(shape for folder in ready for shape in shapes_of(open_model(folder)))
    there = {shape.codec for shape in found}
    return [*found, *(shape for shape in CANONICAL_SHAPES if shape.codec not in there)]


def picture(profile: Profile, colour: bool, unicode: bool) -> list[str]:
    """The profile for people: reads by threads, experts by codec, then what follows for the split."""
    from freetoken_cli.device_probe import device_lines, rate_text

    reads = [
        Bar(f"{entry.threads} thread{'s' if entry.threads > 1 else ''}", rate_text(entry.rate), entry.rate.median)
        for entry in profile.reads
    ]
    experts = [
        Bar(_shape(entry), f"{rate_text(entry.rate)}  {entry.share.median:.2f}", entry.rate.median)
        for entry in profile.experts
    ]
    threads = profile.experts[0].threads if profile.experts else 0
    return [
        styled("Memory reads, GB/s: median (range)", "1", colour),
        *draw(reads, _BAR_CELLS, unicode),
        "",
        styled(f"Experts on {threads} threads (B_H), GB/s: median (range), share of reads", "1", colour),
        *draw(experts, _BAR_CELLS, unicode),
        "",
        styled("Split", "1", colour),
        *(
            device_lines(profile, unicode)
            if profile.runs
            else [NO_LINK, "So every expert is computed on the CPU, in place."]
        ),
    ]


def _shape(entry: ExpertRate) -> str:
    return f"{entry.codec} {entry.hidden_size}x{entry.intermediate_size}"
