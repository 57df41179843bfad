"""`freetoken bench --routing TRACE`: a model of random weights runs the routing of a trace, so that cache and split
meet the locality of real text, on a machine that could not hold the model that was traced.

Its experts are small (`random_model.RandomShape`): hits and misses are those of the traced model, times are not. On a
simulated device the virtual clock takes a record for as large as the trace says, or as `TYPICAL_RECORD`.
"""

from __future__ import annotations

import tempfile
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np

from engine import __version__
from engine.base.errors import DoesNotFitError, UsageError
from engine.base.progress import Progress, silent
from engine.base.units import KvBudget
from engine.experts.trace import SYNTHETIC, TYPICAL_RECORD, Trace, read_trace
from engine.measure.random_model import RandomShape, write_random_model
from engine.measure.steps import OneSequence
from engine.program.executor import Ints, RoutedExecutor
from engine.worker.loaded import LoadedModel
from engine.worker.loading import load_model
from engine.worker.protocol import ExpertWork, WorkerConfig

ROUTING_BENCH_VERSION = 1


@dataclass(frozen=True)
class RoutingPlan:
    """How much of a trace to run: its first decode tokens, of which `warmup` come before `tokens` that count."""

    tokens: int = 128
    warmup: int = 32

    def __post_init__(self) -> None:
        if self.tokens < 1:
            raise UsageError(f"There are {self.tokens} tokens to measure.", "Example: --tokens 128")
        if self.warmup < 0:
            raise UsageError(f"A warm-up of {self.warmup} tokens makes no sense.", "Example: --warmup 32")


def bench_routing(path: Path, plan: RoutingPlan, config: WorkerConfig, progress: Progress = silent) -> dict[str, Any]:
    """Run the decode tokens of the trace at `path`, one a step, on the device of `config`, whose model is made here.

    Plain data with stable keys and a version. On a device `hit_rate`, `misses_per_layer` (m), `fills_per_layer` (q) and
    `cpu_share` are those of the tokens that count; bandwidths are by `clock`. Errors: those of reading a trace and of
    loading; DoesNotFitError for a trace with fewer tokens.
    """
    trace = read_trace(path)
    routing = _decoded(trace, plan, path)
    header = trace.header
    shape = RandomShape(layers=header.moe_layers, experts=header.experts, top_k=header.top_k)
    requests = trace.request[trace.decode][: len(routing)]
    longest = int(np.bincount(requests).max())
    with tempfile.TemporaryDirectory(prefix="freetoken-routing-") as folder:
        model = Path(folder) / "model"
        write_random_model(replace(shape, context=max(shape.context, longest)), model)
        record = header.record_bytes or TYPICAL_RECORD
        kv = KvBudget(tokens=longest)
        loaded = load_model(replace(config, model=str(model), kv=kv, sim_record_bytes=record))
        runner = _Runner(loaded, OneSequence(loaded.executor, longest), shape.vocab_size)
        before, seconds = None, 0.0
        for place, ids in enumerate(routing):
            if place == plan.warmup:
                before, seconds = _work(loaded), 0.0
            if place == 0 or requests[place] != requests[place - 1]:
                runner.sequence.start_over()
            seconds += runner.step(ids)
            progress(place + 1, len(routing))
        result = _result(loaded, before, plan, seconds)
    return {
        "version": ROUTING_BENCH_VERSION,
        "release": __version__,
        "trace": {"file": path.name, "model": header.model, "origin": header.origin},
        "synthetic": header.origin == SYNTHETIC,
        "shape": asdict(shape),
        "virtual_record_bytes": record if loaded.device == "sim" else None,
        **result,
    }


class _Runner:
    """Steps of one token under the routing of a trace; the tokens themselves are random, from a fixed seed."""

    def __init__(self, loaded: LoadedModel, sequence: OneSequence, vocab_size: int) -> None:
        self._loaded = loaded
        self._executor = cast(RoutedExecutor, loaded.executor)
        self.sequence = sequence
        self._random = np.random.default_rng(0)
        self._vocab_size = vocab_size

    def step(self, ids: Ints) -> float:
        """One token through the experts `ids` [layers, top_k]; its seconds."""
        self._executor.force_routing(np.ascontiguousarray(ids[:, None, :]))
        token = self._random.integers(self._vocab_size, size=1, dtype=np.int32)
        began = time.perf_counter()
        self.sequence.step(token)
        seconds = time.perf_counter() - began
        if self._loaded.experts is not None:
            self._loaded.experts.after_step(1, seconds)
        return seconds


def _decoded(trace: Trace, plan: RoutingPlan, path: Path) -> Ints:
    """The expert ids of the tokens to run, [tokens, layers, top_k]."""
    decoded = trace.experts[trace.decode]
    wanted = plan.warmup + plan.tokens
    if len(decoded) < wanted:
        raise DoesNotFitError(
            f"{path} has {len(decoded)} decode tokens; {plan.tokens} and {plan.warmup} to warm up are {wanted}.",
            _shorter(len(decoded), plan.warmup),
        )
    return decoded[:wanted]


def _shorter(tokens: int, warmup: int) -> str:
    if tokens > warmup:
        return f"Give --tokens {tokens - warmup} or less."
    return (
        f"Give --warmup and --tokens that are {tokens} together." if tokens else "Record some: bench MODEL --trace FILE"
    )


def _result(loaded: LoadedModel, before: ExpertWork | None, plan: RoutingPlan, seconds: float) -> dict[str, Any]:
    cache = loaded.planner.cache(loaded.budget)
    known = {
        "device": loaded.device,
        "threads": loaded.threads,
        "isa": loaded.isa,
        "tokens": plan.tokens,
        "warmup": plan.warmup,
        "tokens_per_second": plan.tokens / seconds,
        "experts": None if cache is None else asdict(cache),
    }
    work = _work(loaded)
    if work is None:
        return {**known, "hit_rate": None, "split": None}
    return {**known, **_expert_result(work if before is None else work.since(before.counts))}


def _work(loaded: LoadedModel) -> ExpertWork | None:
    return None if loaded.experts is None else loaded.experts.work()


def _expert_result(work: ExpertWork) -> dict[str, Any]:
    counts = work.counts
    routed = counts["hits"] + counts["misses"]

    def rate(branch: str) -> float | None:
        seconds = counts[f"{branch}_seconds"]
        return counts[f"{branch}_bytes"] / 1e9 / seconds if seconds else None

    return {
        "hit_rate": counts["hits"] / routed,
        "misses_per_layer": counts["misses"] / counts["plans"],
        "fills_per_layer": counts["fills"] / counts["plans"],
        "cpu_share": counts["cpu_experts"] / routed,
        "link_gbps": rate("link"),
        "host_gbps": rate("host"),
        "clock": work.clock or None,
        "split": {"fraction": work.fraction, "why": work.why},
    }
