"""`freetoken bench`."""

from __future__ import annotations

import os
from typing import Annotated, Any

import typer

from engine.base.config import ISA_VARIABLE
from engine.base.errors import UsageError
from engine.base.units import format_duration, format_size, parse_tokens
from engine.files.store import Store
from engine.measure.bench import BenchPlan, bench_model
from freetoken_cli import options
from freetoken_cli.folders import model_folder
from freetoken_cli.front_process import health
from freetoken_cli.options import Folder, Json, NoColor, Threads
from freetoken_cli.output import Column, Output, pad
from freetoken_cli.terminal import styled

EXAMPLES = (
    ("freetoken bench demo", "prompt and decode rates at several depths"),
    ("freetoken bench demo --depths 0,4096 --repeat 9", "deeper, and more often"),
    ("freetoken bench demo --json", "for a script"),
)

Prompts = Annotated[
    str | None, typer.Option("--prompts", metavar="N,N", help="Prompt lengths; 128,512.", show_default=False)
]
Depths = Annotated[
    str | None, typer.Option("--depths", metavar="N,N", help="Tokens before decoding; 0,512,2048.", show_default=False)
]
DecodeTokens = Annotated[
    str | None, typer.Option("--decode-tokens", metavar="N", help="Steps a measurement; 32.", show_default=False)
]
Repeat = Annotated[str | None, typer.Option("--repeat", metavar="N", help="Rounds; 5.", show_default=False)]

COLUMNS = (
    Column("TEST", "test"),
    Column("TOKENS/S", "rate", right=True),
    Column("RANGE", "range", right=True),
    Column("BYTES/TOKEN", "bytes", right=True),
    Column("OF READ BANDWIDTH", "share", right=True),
)

Quiet = Annotated[bool, options.quiet("Print each test and its rate alone.")]


def command(
    model: Folder,
    prompts: Prompts = None,
    depths: Depths = None,
    decode_tokens: DecodeTokens = None,
    repeat: Repeat = None,
    threads: Threads = None,
    json: Json = False,
    quiet: Quiet = False,
    no_color: NoColor = False,
) -> None:
    """Measure how fast a model reads prompts and writes tokens on this machine.

    Rates are medians over rounds in which everything takes turns, with read loops over memory in between.
    """
    output = Output.create(as_json=json, quiet=quiet, no_color=no_color)
    paths = options.paths()
    config = options.settings(paths, threads=threads)
    usual = BenchPlan()
    plan = BenchPlan(
        prompts=_numbers("--prompts", prompts, usual.prompts),
        depths=_numbers("--depths", depths, usual.depths),
        decode_tokens=_number("--decode-tokens", decode_tokens, usual.decode_tokens),
        repeat=_number("--repeat", repeat, usual.repeat),
    )
    folder = model_folder(Store(paths.store), model)
    if health(paths.socket) is not None:
        output.note("A background server runs; what it computes meanwhile slows this down.")
    with output.phase(f"Measuring {folder.name}", sizes=False) as progress:
        isa = os.environ.get(ISA_VARIABLE, "")
        result = bench_model(folder, plan, config.threads, progress, isa)
    if json:
        output.document(result)
        return
    rows = _rows(result)
    if quiet:
        for row in rows:
            output.line(f"{row['test']} {row['rate']}")
        return
    cells = [[row[column.key] for column in COLUMNS] for row in rows]
    lines = pad([[column.title for column in COLUMNS], *cells], COLUMNS)
    output.line(f"{result['model']} on {result['device']}, {result['isa']}, {result['threads']} threads")
    output.line(styled(lines[0], "1", output.colour_out))
    for line in lines[1:]:
        output.line(line)
    read = result["read"]
    output.line(f"read bandwidth {read['median']:.1f} GB/s ({read['low']:.1f}-{read['high']:.1f})")
    output.line(f"load {format_duration(result['load_seconds'])}")


def _rows(result: dict[str, Any]) -> list[dict[str, str]]:
    rows = []
    for prompt in result["prompts"]:
        rows.append({"test": f"prompt {prompt['tokens']}", **_rate(prompt["rate"]), "bytes": "", "share": ""})
    for decode in result["decodes"]:
        size = decode["dense_bytes"] + decode["expert_bytes"] + decode["kv_bytes"]
        rows.append(
            {
                "test": f"decode at {decode['depth']}",
                **_rate(decode["rate"]),
                "bytes": format_size(size),
                "share": f"{decode['share']['median']:.2f}",
            }
        )
    return rows


def _rate(rate: dict[str, float]) -> dict[str, str]:
    return {"rate": f"{rate['median']:.1f}", "range": f"{rate['low']:.1f}-{rate['high']:.1f}"}


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
