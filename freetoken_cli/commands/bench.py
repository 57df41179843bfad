"""`freetoken bench`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from engine.base.config import Config, check_device, hidden_settings
from engine.base.errors import UsageError
from engine.base.paths import typed_path
from engine.base.units import parse_tokens
from engine.files.store import Store
from engine.front.workers.attach import pick_device
from engine.worker.protocol import WorkerConfig
from freetoken_cli import options
from freetoken_cli.folders import model_folder
from freetoken_cli.front_process import health
from freetoken_cli.options import Device, Experts, Json, NoColor, Threads, plain
from freetoken_cli.output import Output

EXAMPLES = (
    ("freetoken bench demo", "prompt and decode rates at several depths"),
    ("freetoken bench demo --depths 0,4096 --repeat 9", "deeper, and more often"),
    ("freetoken bench demo --trace demo.jsonl.gz", "which experts its answers use, for freetoken replay"),
    ("freetoken bench --routing trace.jsonl.gz --device sim --experts 37%", "a trace, run through random weights"),
)

Model = Annotated[
    str | None,
    typer.Argument(
        metavar="MODEL",
        help="A model's name, or the path of an FTW folder; none with --routing.",
        autocompletion=options.complete_stored,
        show_default=False,
    ),
]


Prompts = Annotated[str | None, plain("--prompts", "N,N", "Prompt lengths; 128,512.")]
Depths = Annotated[str | None, plain("--depths", "N,N", "Tokens before decoding; 0,512,2048.")]
DecodeTokens = Annotated[str | None, plain("--decode-tokens", "N", "Steps a measurement; 32.")]
Repeat = Annotated[str | None, plain("--repeat", "N", "Rounds; 5.")]
TraceFile = Annotated[str | None, plain("--trace", "FILE", "Record the model's routing instead; .gz is packed.")]
Texts = Annotated[str | None, plain("--texts", "FILE", "With --trace: prompts, one a line; some of ours.")]
Routing = Annotated[str | None, plain("--routing", "TRACE", "Run a trace's routing through random weights instead.")]
Tokens = Annotated[str | None, plain("--tokens", "N", "Tokens an answer with --trace, 64; that count, 128.")]
Warmup = Annotated[str | None, plain("--warmup", "N", "With --routing: tokens before those that count; 32.")]
Quiet = Annotated[bool, options.quiet("Print each test and its rate alone.")]


def command(
    model: Model = None,
    prompts: Prompts = None,
    depths: Depths = None,
    decode_tokens: DecodeTokens = None,
    repeat: Repeat = None,
    trace: TraceFile = None,
    texts: Texts = None,
    routing: Routing = None,
    tokens: Tokens = None,
    warmup: Warmup = None,
    device: Device = None,
    experts: Experts = None,
    threads: Threads = None,
    json: Json = False,
    quiet: Quiet = False,
    no_color: NoColor = False,
) -> None:
    """Measure how fast a model reads prompts and writes tokens on this machine.

    Rates are medians over rounds in which everything takes turns, with read loops over memory in between. With --trace
    the model answers questions and its routing is kept; with --routing a model of random weights runs such a trace.
    """
    from engine.measure.bench import BenchPlan, bench_model
    from engine.measure.record_trace import QUESTIONS, TracePlan, record_trace
    from engine.measure.routing_bench import RoutingPlan, bench_routing
    from freetoken_cli.benchmarks import print_bench, print_recorded, print_routing, read_texts

    output = Output.create(as_json=json, quiet=quiet, no_color=no_color)
    speed = {"--prompts": prompts, "--depths": depths, "--decode-tokens": decode_tokens, "--repeat": repeat}
    _check_mode(model, trace, routing, speed, {"--texts": texts}, {"--tokens": tokens}, {"--warmup": warmup})
    paths = options.paths()
    config = options.settings(paths, threads=threads, device=device, experts=experts)
    worker = _worker(config, str(paths.profile))
    if routing is not None:
        usual = RoutingPlan()
        plan = RoutingPlan(_number("--tokens", tokens, usual.tokens), _number("--warmup", warmup, usual.warmup))
        with output.phase(f"Running {Path(routing).name}", sizes=False) as progress:
            result = bench_routing(typed_path(routing), plan, worker, progress)
        print_routing(result, output)
        return
    assert model is not None
    folder = model_folder(Store(paths.store), model)
    if trace is not None:
        answers = TracePlan(
            prompts=QUESTIONS if texts is None else read_texts(typed_path(texts)),
            tokens=_number("--tokens", tokens, TracePlan().tokens),
        )
        with output.phase(f"Recording {folder.name}", sizes=False) as progress:
            recorded = record_trace(folder, typed_path(trace), answers, worker, progress)
        print_recorded(recorded, trace, output)
        return
    usual_bench = BenchPlan()
    bench = BenchPlan(
        prompts=_numbers("--prompts", prompts, usual_bench.prompts),
        depths=_numbers("--depths", depths, usual_bench.depths),
        decode_tokens=_number("--decode-tokens", decode_tokens, usual_bench.decode_tokens),
        repeat=_number("--repeat", repeat, usual_bench.repeat),
    )
    if worker.device == "sim":
        output.note(
            "A simulated device reads a few tokens a second: fewer and shorter prompts take less time, as with "
            "--prompts 16 --depths 0 --decode-tokens 8."
        )
    if health(paths.socket) is not None:
        output.note("A background server runs; what it computes meanwhile slows this down.")
    with output.phase(f"Measuring {folder.name}", sizes=False) as progress:
        measured = bench_model(folder, bench, worker, progress)
    print_bench(measured, output)


def _check_mode(
    model: str | None,
    trace: str | None,
    routing: str | None,
    speed: dict[str, str | None],
    for_trace: dict[str, str | None],
    for_both: dict[str, str | None],
    for_routing: dict[str, str | None],
) -> None:
    """Raises UsageError for flags of different kinds of measurement, and for a model too many or too few."""
    if routing is not None and (model is not None or trace is not None):
        other = "--trace" if trace is not None else "model"
        raise UsageError(f"--routing makes a model of its own and takes no {other}.", "Leave it out.")
    if routing is None and model is None:
        raise UsageError("There is no model to measure.", "For example: freetoken bench demo")
    mode = "--routing" if routing is not None else "--trace" if trace is not None else ""
    allowed = {"": speed, "--trace": for_trace | for_both, "--routing": for_both | for_routing}[mode]
    for flag, value in (speed | for_trace | for_both | for_routing).items():
        if value is not None and flag not in allowed:
            raise UsageError(f"{flag} means nothing {f'with {mode}' if mode else 'here'}.", "Leave it out.")


def _worker(config: Config, profile: str) -> WorkerConfig:
    """Where the bench's model runs: in this process, as a worker would."""
    check_device(config.device)
    return WorkerConfig(
        model="",
        device=pick_device(config.device),
        threads=config.threads,
        experts=None if config.experts is None else config.experts.exact,
        profile=profile,
        **hidden_settings(os.environ),
    )


def _numbers(flag: str, text: str | None, usual: tuple[int, ...]) -> tuple[int, ...]:
    """A list such as `0,512,4k`; `none` is an empty one."""
    if text is None:
        return usual
    if text == "none":
        return ()
    return tuple(_number(flag, part, 0) for part in text.split(","))


def _number(flag: str, text: str | None, usual: int) -> int:
    if text is None:
        return usual
    try:
        return 0 if text.strip() == "0" else parse_tokens(text)
    except UsageError as error:
        raise UsageError(f"{flag}: {error.message}", error.remedy) from None
