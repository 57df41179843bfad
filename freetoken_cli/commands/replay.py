"""`freetoken replay`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from engine.base.errors import UsageError
from engine.base.paths import typed_path
from engine.base.units import parse_experts, parse_size
from engine.experts.machines import MACHINES, machine_named
from freetoken_cli import options
from freetoken_cli.options import Json, NoColor
from freetoken_cli.output import Output
from freetoken_cli.plots import check_target

EXAMPLES = (
    ("freetoken replay trace.jsonl.gz", "miss rates of every policy, 37% of the experts cached"),
    ("freetoken replay trace.jsonl.gz --experts 20% --warmup 128", "another capacity, without the cold start"),
    ("freetoken replay trace.jsonl.gz --policy lru --machine rtx4090-server", "what the misses would cost there"),
    ("freetoken replay trace.jsonl.gz --plot misses.png", "miss rates from 5% to 70%"),
)

TraceFile = Annotated[
    str, typer.Argument(metavar="TRACE", help="A routing trace, as bench --trace writes it, gzipped or not.")
]


def _complete_policies(incomplete: str) -> list[str]:
    """The last of several names, which have commas between them."""
    from engine.experts.policies import ALL, POLICIES

    before, comma, last = incomplete.rpartition(",")
    given = before.split(",")
    names = [name for name in POLICIES if name not in given] if comma else [*POLICIES, ALL]
    return [f"{before}{comma}{name}" for name in names if name.startswith(last)]


PolicyName = Annotated[
    str | None,
    typer.Option(
        "--policy",
        metavar="NAME",
        help="lru, lfu, static, prefill, clairvoyant, several with commas between, or all (as without it).",
        show_default=False,
        autocompletion=_complete_policies,
    ),
]
Capacity = Annotated[
    str | None,
    typer.Option(
        "--experts", metavar="PCT%|SLOTS|SIZE", help="Room for cached experts; 37% of all.", show_default=False
    ),
]
Warmup = Annotated[
    str | None,
    typer.Option("--warmup", metavar="TOKENS", help="Decode tokens replayed but not counted; 0.", show_default=False),
]
MachineName = Annotated[
    str | None,
    typer.Option(
        "--machine",
        metavar="NAME",
        help="Predict times on a machine of the paper, such as rtx4090-server.",
        show_default=False,
        autocompletion=options.complete_from(lambda: MACHINES),
    ),
]
Record = Annotated[
    str | None,
    typer.Option(
        "--record",
        metavar="SIZE",
        help="Size of an expert; what the trace says, else that of 3 x 2048 x 512 weights at 4.5 bits.",
        show_default=False,
    ),
]
Partial = Annotated[bool, typer.Option("--partial", help="Use what there is of a trace that was cut short.")]
Plot = Annotated[
    str | None,
    typer.Option("--plot", metavar="FILE.png", help="Draw miss rates over capacities.", show_default=False),
]
Quiet = Annotated[bool, options.quiet("Print each policy and its miss rate alone.")]

_USUAL_ROOM = "37%"  # where the paper measured this family of models


def command(
    trace: TraceFile,
    policy: PolicyName = None,
    capacity: Capacity = None,
    warmup: Warmup = None,
    machine: MachineName = None,
    record: Record = None,
    partial: Partial = False,
    plot: Plot = None,
    json: Json = False,
    quiet: Quiet = False,
    no_color: NoColor = False,
) -> None:
    """Replay a routing trace through cache policies: how many expert reads miss, and what that costs on a machine.

    Policies are compared with every miss filled. With --machine both rules for q, the fills among a layer's misses,
    are replayed too, since what is not filled is not there next time. Times are of the misses alone, and predicted.
    """
    from engine.experts.policies import policies_named
    from engine.experts.replay import check_length, slots_of
    from engine.experts.trace import SYNTHETIC, TYPICAL_RECORD, read_trace
    from freetoken_cli.replay_report import about, show
    from freetoken_cli.replaying import PERCENTS, replay_policies, sweep_policies

    output = Output.create(as_json=json, quiet=quiet, no_color=no_color)
    names = policies_named("all" if policy is None else policy)
    clocked = None if machine is None else machine_named(machine)
    skipped = _warmup(warmup)
    target = None if plot is None else check_target(plot)
    record_given = 0 if record is None else _size(record)
    read = read_trace(typed_path(trace), partial)
    header = read.header
    room = _room(capacity)
    slots = slots_of(room, header, record_given or header.record_bytes)
    check_length(read, skipped)
    if read.cut:
        output.note(read.cut)
    if header.origin == SYNTHETIC:
        output.warn("This trace is synthetic: nothing follows from its locality for any real model.")
    record_bytes = record_given or header.record_bytes or TYPICAL_RECORD
    with output.phase("Replaying", sizes=False) as progress:
        done = replay_policies(read, names, slots, skipped, clocked, record_bytes, progress)
    document = {
        "trace": about(read, trace),
        "slots": slots,
        "share": slots / header.pool,
        "warmup": skipped,
        **done.document(),
    }
    if target is not None:
        from freetoken_cli.replay_plot import draw

        with output.phase("Drawing", sizes=False) as progress:
            curves = sweep_policies(read, names, PERCENTS, skipped, progress)
        draw(target, curves, header, slots / header.pool)
        document["curves"] = {name: [list(point) for point in points] for name, points in curves.items()}
        document["plot"] = str(target)
        output.note(f"Drawn to {target}.")
    for skip in done.skipped.values():
        output.note(skip)
    if json:
        output.document(document)
    elif quiet:
        for name, outcome in done.outcomes.items():
            output.line(f"{name} {outcome.miss_rate:.4f}")
    else:
        show(output, read, done, document, record_bytes, assumed=not (record_given or header.record_bytes))


def _room(text: str | None) -> Any:
    try:
        return parse_experts(_USUAL_ROOM if text is None else text)
    except UsageError as error:
        raise UsageError(f"--experts: {error.message}", error.remedy) from None


def _size(text: str) -> int:
    try:
        return parse_size(text)
    except UsageError as error:
        raise UsageError(f"--record: {error.message}", error.remedy) from None


def _warmup(text: str | None) -> int:
    if text is None:
        return 0
    if not (text.isascii() and text.isdigit() and len(text) < 12):
        raise UsageError(f"--warmup: {text!r} is not a number of tokens such as 0 or 128.")
    return int(text)
