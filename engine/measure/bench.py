"""`freetoken bench`: how fast a model reads prompts and writes tokens, beside the bandwidth that it could have had.

Machines are noisy, so all measurements take turns: each round does every one of them once, with a plain read loop over
memory before and after each. A rate is the median over the rounds, with its range; a share is a rate's bytes a second
divided by what the read loops around it reached.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from engine import __version__
from engine.base.errors import DoesNotFitError, UsageError
from engine.base.hardware import read_memory
from engine.base.profile import Rate
from engine.base.progress import Progress, silent
from engine.base.units import KvBudget
from engine.files.ftw.opening import load_manifest
from engine.measure.native_meter import NativeMeter
from engine.memory.blocks import ContextRoom
from engine.program.executor import Batch, Executor, Floats, Ints
from engine.program.ir import KV_VALUE_BYTES, Program
from engine.program.lowering.lower import lower
from engine.program.step_bytes import StepBytes, WeightBytes, step_bytes
from engine.spec.schema import Spec
from engine.worker.loaded import LoadedModel
from engine.worker.loading import load_model
from engine.worker.protocol import WorkerConfig

BENCH_VERSION = 1
_PREFILL_CHUNK = 512  # tokens a step at most, as in the worker


@dataclass(frozen=True)
class BenchPlan:
    """What to measure. Prompts and depths in tokens; `decode_tokens` steps make one decode measurement."""

    prompts: tuple[int, ...] = (128, 512)
    depths: tuple[int, ...] = (0, 512, 2048)
    decode_tokens: int = 32
    repeat: int = 5

    def __post_init__(self) -> None:
        for name, values, least in (("prompts", self.prompts, 1), ("depths", self.depths, 0)):
            if any(value < least for value in values):
                raise UsageError(f"{name} must be at least {least}, not {min(values)}.", f"Example: --{name} 128,512")
        if self.repeat < 1:
            raise UsageError(f"repeat must be at least 1, not {self.repeat}.", "Example: --repeat 5")
        if self.decode_tokens < 1:
            raise UsageError(f"A decode run needs at least 1 token, not {self.decode_tokens}.")
        if not self.prompts and not self.depths:
            raise UsageError("There is nothing to measure.", "Name prompt sizes or depths: --depths 0,512")

    @property
    def context(self) -> int:
        """Tokens of context that the largest measurement needs."""
        return max([*self.prompts, *(depth + self.decode_tokens for depth in self.depths)])


@dataclass(frozen=True)
class PromptResult:
    """Prefill of one prompt of `tokens`: tokens a second."""

    tokens: int
    rate: Rate


@dataclass(frozen=True)
class DecodeResult:
    """Decoding after `depth` tokens: tokens a second, the bytes a token reads, the share of the read bandwidth."""

    depth: int
    rate: Rate
    dense_bytes: int
    expert_bytes: int
    state_bytes: int  # read and written
    kv_bytes: int
    share: Rate


@dataclass(frozen=True)
class BenchResult:
    """Everything measured; `read` is the memory read bandwidth in GB/s, over all the read loops of the run."""

    prompts: tuple[PromptResult, ...]
    decodes: tuple[DecodeResult, ...]
    read: Rate
    first_step_seconds: float

    def to_json(self) -> dict[str, Any]:
        """Plain data with stable keys."""
        data = asdict(self)
        return {**data, "prompts": list(data["prompts"]), "decodes": list(data["decodes"])}


def bench_model(folder: Path, plan: BenchPlan, config: WorkerConfig, progress: Progress = silent) -> dict[str, Any]:
    """Load the FTW folder in this process, as a worker does, and measure it: plain data with stable keys and a version.

    `config` says where it runs; its model and context are the bench's to choose. Raises UsageError and DoesNotFitError
    when the model's context or the memory is smaller than the plan needs, and whatever opening the folder raises.
    """
    manifest = load_manifest(folder)
    spec = Spec.from_json(manifest.spec)
    if plan.context > spec.context_length:
        raise DoesNotFitError(
            f"The plan needs {plan.context} tokens of context; the model has {spec.context_length}.",
            "Choose smaller --depths or --prompts.",
        )
    loaded = load_model(replace(config, model=str(folder), kv=KvBudget(tokens=plan.context)))
    program = lower(spec)
    _, available = read_memory()
    meter = NativeMeter(available, loaded.isa)
    sizes = step_bytes(program, WeightBytes.of(manifest), KV_VALUE_BYTES)
    result = run_bench(loaded.executor, program, sizes, lambda: meter.read_bandwidth(loaded.threads), plan, progress)
    return {
        "version": BENCH_VERSION,
        "release": __version__,
        "model": folder.name,
        "device": loaded.device,
        "isa": loaded.isa,
        "threads": loaded.threads,
        "load_seconds": loaded.load_seconds,
        **_cached_experts(loaded),
        **result.to_json(),
    }


def _cached_experts(loaded: LoadedModel) -> dict[str, Any]:
    """The experts' room on a device, and how many of the routed ones were found there in all that was measured."""
    cache = loaded.planner.cache(loaded.budget)
    if cache is None:
        return {"experts": None, "hit_rate": None}
    counters = loaded.executor.counters()
    routed = counters["hits"] + counters["misses"]
    return {"experts": asdict(cache), "hit_rate": counters["hits"] / routed if routed else None}


class Bench:
    """Runs single steps of one sequence over an executor. Token ids are random, from a fixed seed.

    Random ids route each step to fresh experts, as a conversation does; a model left to its own greedy answer may fall
    into a loop that lives in the processor's cache.
    """

    def __init__(self, executor: Executor, program: Program, context: int) -> None:
        pages = -(-context // executor.page_tokens)
        has = executor.room
        executor.resize_context(
            ContextRoom(
                max(has.pages, pages),
                max(has.windows, pages) if program.reach else 0,
                max(has.states, 1) if program.states else 0,
            )
        )
        self._executor = executor
        self._vocab_size = program.vocab_size
        self._pages = np.arange(pages, dtype=np.int32)
        self._random = np.random.default_rng(0)

    def fill(self, start: int, stop: int) -> None:
        """Put random tokens at the positions `start .. stop` of the context."""
        self._read(start, self._ids(stop - start), wanted=0)

    def prefill_seconds(self, tokens: int) -> float:
        """Seconds for one prompt of `tokens`, to the logits after its last token."""
        ids = self._ids(tokens)
        started = time.perf_counter()
        self._read(0, ids, wanted=1)
        return time.perf_counter() - started

    def decode_seconds(self, depth: int, tokens: int) -> float:
        """Seconds for `tokens` steps of one token after `depth` others, the greedy choice included."""
        ids = self._ids(tokens)
        started = time.perf_counter()
        for place in range(tokens):
            logits = self._step(depth + place, ids[place : place + 1], wanted=1)
            logits.argmax()
        return time.perf_counter() - started

    def _ids(self, count: int) -> Ints:
        return self._random.integers(self._vocab_size, size=count, dtype=np.int32)

    def _read(self, start: int, ids: Ints, wanted: int) -> None:
        for chunk in range(0, len(ids), _PREFILL_CHUNK):
            part = ids[chunk : chunk + _PREFILL_CHUNK]
            self._step(start + chunk, part, wanted if chunk + len(part) == len(ids) else 0)

    def _step(self, start: int, ids: Ints, wanted: int) -> Floats:
        count = len(ids)
        return self._executor.step(
            Batch(
                tokens=ids,
                positions=np.arange(start, start + count, dtype=np.int32),
                seq_starts=np.array([0, count], np.int32),
                page_tables=(self._pages,),
                window_tables=(self._pages,),
                states=np.zeros(1, np.int32),
                rows=np.arange(count - wanted, count, dtype=np.int32),
            )
        )


def run_bench(
    executor: Executor,
    program: Program,
    sizes: StepBytes,
    read_bandwidth: Callable[[], float],
    plan: BenchPlan,
    progress: Progress = silent,
) -> BenchResult:
    """Measure by `plan`. `read_bandwidth` times one read loop, in GB/s; `progress` hears of rounds done and in all."""
    bench = Bench(executor, program, plan.context)
    first_step = bench.prefill_seconds(1)
    for tokens in plan.prompts:  # first use of a page of weights or memory is not what is measured
        bench.prefill_seconds(tokens)
    bench.fill(0, max(plan.depths, default=0))  # prompts overwrite the beginning, which costs later steps nothing
    reads: list[float] = []
    prefills: dict[int, list[float]] = {tokens: [] for tokens in plan.prompts}
    decodes: dict[int, list[float]] = {depth: [] for depth in plan.depths}
    shares: dict[int, list[float]] = {depth: [] for depth in plan.depths}
    for done in range(plan.repeat):
        progress(done, plan.repeat)
        for tokens, rates in prefills.items():
            rates.append(tokens / bench.prefill_seconds(tokens))
        for depth in decodes:
            before = read_bandwidth()
            rate = plan.decode_tokens / bench.decode_seconds(depth, plan.decode_tokens)
            around = (before, read_bandwidth())
            reads += around
            decodes[depth].append(rate)
            moved = sizes.total(depth + plan.decode_tokens // 2) * rate / 1e9
            shares[depth].append(moved / (sum(around) / 2))
        if not decodes:
            reads.append(read_bandwidth())
    progress(plan.repeat, plan.repeat)
    return BenchResult(
        prompts=tuple(PromptResult(tokens, Rate.of(rates)) for tokens, rates in prefills.items()),
        decodes=tuple(_decode_result(depth, rates, shares[depth], sizes, plan) for depth, rates in decodes.items()),
        read=Rate.of(reads),
        first_step_seconds=first_step,
    )


def _decode_result(
    depth: int, rates: Sequence[float], shares: Sequence[float], sizes: StepBytes, plan: BenchPlan
) -> DecodeResult:
    return DecodeResult(
        depth=depth,
        rate=Rate.of(rates),
        dense_bytes=sizes.dense,
        expert_bytes=sizes.experts,
        state_bytes=sizes.states,
        kv_bytes=sizes.kv(depth + plan.decode_tokens // 2),
        share=Rate.of(shares),
    )
