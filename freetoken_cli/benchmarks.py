"""What the three kinds of `freetoken bench` print."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from engine.base.errors import NotFoundError, UsageError
from engine.base.units import MIB, format_duration, format_size
from engine.files.untrusted import read_small_file
from engine.measure.record_trace import Recorded
from freetoken_cli.chat import split_text
from freetoken_cli.output import Column, Output
from freetoken_cli.terminal import printable

MOST_TEXT = 64 * MIB  # of prompts in a file
COLUMNS = (
    Column("TEST", "test"),
    Column("TOKENS/S", "rate", right=True),
    Column("RANGE", "range", right=True),
    Column("BYTES/TOKEN", "bytes", right=True),
    Column("OF READ BANDWIDTH", "share", right=True),
)


def print_bench(result: dict[str, Any], output: Output) -> None:
    """Rates of prompts and decoding."""
    if output.as_json:
        output.document(result)
        return
    rows = _rows(result)
    if output.quiet:
        for row in rows:
            output.line(f"{row['test']} {row['rate']}")
        return
    output.line(f"{printable(result['model'])} on {_place(result)}")
    output.table(COLUMNS, rows)
    read = result["read"]
    output.line(f"read bandwidth {read['median']:.1f} GB/s ({read['low']:.1f}-{read['high']:.1f})")
    output.line(f"load {format_duration(result['load_seconds'])}")


def print_recorded(recorded: Recorded, path: str, output: Output) -> None:
    """What a trace holds, and whether anything follows from its locality."""
    header = recorded.header
    if output.as_json:
        output.document({"file": path, **recorded.to_json()})
        return
    output.line(path)
    output.note(
        f"{recorded.decode_tokens} decoded tokens and {recorded.prefill_tokens} of prompts, {recorded.requests} "
        f"requests: {header.moe_layers} layers, {header.experts} experts, {header.top_k} a token, {header.origin}."
    )
    if header.origin == "synthetic":
        output.warn(f"nothing follows from the locality of {header.model}: its router was never trained.")


def print_routing(result: dict[str, Any], output: Output) -> None:
    """Hits and misses of a trace, and how fast random weights of its shape ran."""
    shape, trace = result["shape"], result["trace"]
    rows = [
        ("trace", f"{trace['file']}: {trace['model']}, {trace['origin']}"),
        (
            "model",
            f"random weights: {shape['layers']} layers, {shape['experts']} experts, {shape['top_k']} a token, "
            f"hidden {shape['hidden_size']}, {shape['intermediate_size']} wide, {shape['codec']}",
        ),
        ("on", _place(result)),
        ("tokens", f"{result['tokens']} after {result['warmup']} to warm up"),
        *(_expert_rows(result) if result["hit_rate"] is not None else []),
        ("speed", f"{result['tokens_per_second']:.1f} tokens/s, of these small experts"),
    ]
    output.facts(result, rows, name=f"{result['tokens_per_second']:.1f}")


def read_texts(path: Path) -> tuple[str, ...]:
    """Prompts, one a line; empty lines do not count. NotFoundError; CorruptFileError for what is no file
    or has more than 64 MiB; UsageError for a file without any or of no text.
    """
    try:
        lines = read_small_file(path, MOST_TEXT).decode().splitlines()
    except NotFoundError:
        raise NotFoundError(f"There is no file {path}.", "Check the path given with --texts.") from None
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not UTF-8 text (byte {error.start}).", "Write one prompt a line.") from None
    texts = tuple(line.strip() for line in lines if line.strip())
    if not texts:
        raise UsageError(f"{path} has no prompts.", "Write one a line.")
    return texts


def _expert_rows(result: dict[str, Any]) -> list[tuple[str, str]]:
    split = result["split"]
    size = result["virtual_record_bytes"]
    clock = f" (virtual, {result['clock']}, records of {format_size(size)})" if result["clock"] else ""
    speeds = {"link": result["link_gbps"], "CPU experts": result["host_gbps"]}
    return [
        ("hits", f"{result['hit_rate']:.1%} of routed experts"),
        ("misses", f"{result['misses_per_layer']:.2f} a layer and step (m)"),
        ("fills", f"{result['fills_per_layer']:.2f} of them (q), the CPU has {result['cpu_share']:.1%} of experts"),
        *((label, f"{speed:.1f} GB/s{clock}") for label, speed in speeds.items() if speed is not None),
        ("split", split_text(split["fraction"], split["why"])),
    ]


def _place(result: dict[str, Any]) -> str:
    """Device, instruction set and threads, and the room for experts."""
    place = f"{result['device']}, {result['isa']}, {result['threads']} thread{'s' if result['threads'] > 1 else ''}"
    cache = result["experts"]
    if cache is None:
        return place
    hits = "" if result["hit_rate"] is None else f", hit rate {result['hit_rate']:.0%}"
    return f"{place}, experts {cache['slots']} slots ({cache['share']:.0%}, {format_size(cache['bytes'])}){hits}"


def _rows(result: dict[str, Any]) -> list[dict[str, str]]:
    rows = []
    for prompt in result["prompts"]:
        rows.append({"test": f"prompt {prompt['tokens']}", **_rate(prompt["rate"]), "bytes": "", "share": ""})
    for decode in result["decodes"]:
        size = sum(decode[f"{part}_bytes"] for part in ("dense", "expert", "state", "kv"))
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
