"""A line of numbers for every family: a random model of one fixed size on this machine's CPU, beside a read loop."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from engine import _native
from engine.files.conversion.convert import convert
from engine.files.ftw.opening import Ftw, open_model
from engine.measure.bench import BenchPlan, bench_model
from engine.program.executor import Ints
from engine.spec.families import FAMILIES
from engine.spec.feed_forward import Moe
from engine.spec.schema import Spec
from engine.worker.protocol import WorkerConfig
from tests.parity.cases import CASES, Case
from tests.parity.cases.case import COMMON
from tests.parity.check import batch, page_table
from tests.parity.prepare import native, no_tokenizer
from tests.parity.recording import FAMILY_OF
from tests.parity.tiny import save

from .blocks import SUPPORT, read_block, table, table_rows, write_block

NUMBERS = "numbers"
TITLES = [
    "family", "prefill tokens/s", "decode tokens/s", "KiB a token", "of the read loop", "distinct of 1",
    "distinct of 8", "entropy",
]  # fmt: skip
VOCABULARY, WIDER, MORE_EXPERTS = 2048, 4, 4
WIDTHS = re.compile(r"^d_model$|(hidden|intermediate|latent|channel)_size$|(?<!rotary)_dim$|_rank$|_size_mlp$")
COUNTS = re.compile(r"^(moe_num_experts|num_experts|num_local_experts|n_routed_experts|num_routed_experts)$")
PLAN = BenchPlan(prompts=(128,), depths=(64,), decode_tokens=32, repeat=3)
ROUTED_TOKENS = 256


@dataclass(frozen=True)
class Routing:
    """How a router spreads tokens over the experts of its layer, the mean over layers.

    `of_one` and `of_eight` are the share of experts that a step of one and of eight tokens reads. `entropy` is that of
    many tokens' choices, as a share of the largest there could be.
    """

    of_one: float
    of_eight: float
    entropy: float


def write_numbers(families: list[str]) -> None:
    """Measure all families, or those named, whose lines alone are written anew."""
    lines = {row[0]: row for row in table_rows(read_block(SUPPORT, NUMBERS)) if row[0] in FAMILIES}
    for name in families or sorted(FAMILIES):
        lines[name] = [name, *_line(name)]
        print("  ".join(lines[name]), flush=True)
        write_block(SUPPORT, NUMBERS, table(TITLES, [lines[each] for each in sorted(lines)]))


def _line(family: str) -> list[str]:
    case = next(case for case in CASES if FAMILY_OF[case.name] == family)
    with tempfile.TemporaryDirectory(prefix="freetoken-") as folder:
        checkpoint, converted = Path(folder) / "checkpoint", Path(folder) / "converted"
        save(wider(case), checkpoint)
        convert(checkpoint, converted, write_tokenizer=no_tokenizer, pack=_native.pack_rows)
        found = bench_model(converted, PLAN, WorkerConfig(str(converted)))
        routing = routing_of(open_model(converted))
    (prompt,), (decode,) = found["prompts"], found["decodes"]
    size = sum(decode[f"{kind}_bytes"] for kind in ("dense", "expert", "state", "kv"))
    shares = [f"{share:.0%}" for share in vars(routing).values()] if routing else ["", "", ""]
    rates = [f"{each['rate']['median']:.0f}" for each in (prompt, decode)]
    return [*rates, f"{size / 1024:.0f}", f"{decode['share']['median']:.0%}", *shares]


def wider(case: Case) -> Case:
    """The same model with wider layers and more experts, as large for every family as its tiny one is alike."""
    settings = {**_widened(COMMON), **_widened(case.settings)}
    inner = settings.get("text_config")
    sizes = {"vocab_size": VOCABULARY}
    return replace(case, settings={**settings, **({"text_config": {**inner, **sizes}} if inner else sizes)})


def _widened(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _larger(name, value) for name, value in settings.items()}


def _larger(name: str, value: Any) -> Any:
    if isinstance(value, dict):
        return _widened(value)
    if name in ("short_factor", "long_factor"):  # one for each pair of values that a wider head rotates
        return [factor for factor in value for _ in range(WIDER)]
    if not isinstance(value, int) or isinstance(value, bool):
        return value
    return value * (WIDER if WIDTHS.search(name) else MORE_EXPERTS if COUNTS.search(name) else 1)


def routing_of(ftw: Ftw) -> Routing | None:
    """What the routers of a model do with random tokens; None where there are none."""
    spec = Spec.from_json(ftw.spec)
    counts = [layer.ffn.experts.count for layer in spec.layers if isinstance(layer.ffn, Moe)]
    if not counts:
        return None
    executor = native(ftw)
    executor.record_routing(True)
    tokens = np.random.default_rng(0).integers(0, spec.vocab_size, ROUTED_TOKENS).tolist()
    executor.step(batch(tokens, 0, page_table(executor, len(tokens)), (len(tokens) - 1,)))
    layers = list(zip(executor.routing(), counts, strict=True))
    return Routing(
        of_one=float(np.mean([_distinct(ids, count, 1) for ids, count in layers])),
        of_eight=float(np.mean([_distinct(ids, count, 8) for ids, count in layers])),
        entropy=float(np.mean([_entropy(ids, count) for ids, count in layers])),
    )


def _distinct(ids: Ints, count: int, step: int) -> float:
    """The mean share of experts among what `step` tokens after each other choose."""
    return float(np.mean([len(_experts(part, count)) / count for part in np.split(ids, len(ids) // step)]))


def _experts(ids: Ints, count: int) -> Ints:
    """The different experts among choices, some of which may compute nothing."""
    return np.unique(ids[(ids >= 0) & (ids < count)])


def _entropy(ids: Ints, count: int) -> float:
    _, times = np.unique(ids[(ids >= 0) & (ids < count)], return_counts=True)
    shares = times / times.sum()
    return float(-(shares * np.log(shares)).sum() / np.log(count))
