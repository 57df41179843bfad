"""What `freetoken replay` prints."""

from __future__ import annotations

from typing import Any

from engine.base.units import format_size
from engine.experts.replay import CARRY, DEFAULT, FILL, NEAREST
from engine.experts.trace import Trace
from freetoken_cli.output import Column, Output
from freetoken_cli.replaying import Replayed
from freetoken_cli.terminal import printable

COLUMNS = (
    Column("POLICY", "policy"),
    Column("MISSES", "rate", right=True),
    Column("A LAYER", "per_layer", right=True),
    Column("NONE", "none", right=True),
    Column("UP TO 2", "two", right=True),
    Column("EVICTIONS/TOKEN", "evictions", right=True),
)
TIME_COLUMNS = (
    Column("POLICY", "policy"),
    Column("NEAREST", NEAREST, right=True),
    Column("MISSES", f"{NEAREST}_rate", right=True),
    Column("CARRY", CARRY, right=True),
    Column("MISSES", f"{CARRY}_rate", right=True),
    Column("DEFAULT", DEFAULT, right=True),
    Column("MISSES", f"{DEFAULT}_rate", right=True),
    Column("ALL FILL", FILL, right=True),
    Column("BETTER RULE", "better"),
)


def show(
    output: Output, trace: Trace, done: Replayed, document: dict[str, Any], record_bytes: int, assumed: bool
) -> None:
    """Print what was replayed for people; `assumed` says that nobody told the size of an expert."""
    header = trace.header
    decode = int(trace.decode.sum())
    output.line(
        f"{printable(header.model)}, {header.origin}: {header.moe_layers} layers of {header.experts} experts, "
        f"{header.top_k} a token; {document['slots']} of {header.pool} in slots"
    )
    output.line(f"{decode} decode tokens, of which {document['warmup']} are warm-up; every miss filled")
    output.table(COLUMNS, [_row(name, outcome) for name, outcome in done.outcomes.items()])
    if done.machine is None:
        return
    size = f"{format_size(record_bytes)} an expert{' (assumed: --record SIZE)' if assumed else ''}"
    output.line("")
    output.line(
        f"{done.machine.about}, {size}: milliseconds that a token's misses take, predicted; f = {done.fraction:.2f}"
    )
    output.table(TIME_COLUMNS, [_time_row(name, document["policies"][name]) for name in done.outcomes])


def _row(name: str, outcome: Any) -> dict[str, str]:
    shares = outcome.m_shares
    return {
        "policy": name,
        "rate": f"{outcome.miss_rate * 100:.1f}%",
        "per_layer": f"{outcome.misses_per_layer:.2f}",
        "none": f"{shares[0] * 100:.0f}%",
        "two": f"{sum(shares[:3]) * 100:.0f}%",
        "evictions": f"{outcome.evictions / outcome.tokens:.1f}",
    }


def _time_row(name: str, policy: dict[str, Any]) -> dict[str, str]:
    rules = policy["rules"]
    row = {"policy": name, "better": policy["better_rule"]}
    for rule, found in rules.items():
        row[rule] = f"{found['seconds_per_token'] * 1e3:.2f}"
        row[f"{rule}_rate"] = f"{found['miss_rate'] * 100:.1f}%"
    return row


def about(trace: Trace, name: str) -> dict[str, Any]:
    """Stable keys of the trace in the file `name`."""
    header = trace.header
    decode = int(trace.decode.sum())
    return {
        "file": name,
        "model": header.model,
        "origin": header.origin,
        "moe_layers": header.moe_layers,
        "experts": header.experts,
        "top_k": header.top_k,
        "requests": len(trace.requests),
        "decode_tokens": decode,
        "prefill_tokens": len(trace.decode) - decode,
        "cut": trace.cut,
    }
