"""Routing that is recorded and run again: what a trace says of its origin, and hits that a plain cache has too."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from engine.base.errors import DoesNotFitError, NotFoundError, UnsupportedError, UsageError
from engine.experts.split import Split, Timing
from engine.experts.trace import DECODE, PREFILL, TYPICAL_RECORD, TraceHeader, TraceWriter, read_trace
from engine.files.ftw.opening import load_manifest
from engine.measure import record_trace as recording
from engine.measure.random_model import RandomShape, write_random_model
from engine.measure.record_trace import TracePlan, record_trace, trace_header
from engine.measure.routing_bench import RoutingPlan, bench_routing
from engine.worker import device_loading
from engine.worker.protocol import WorkerConfig
from engine.worker.split_start import SplitStart
from tests.server.running_front import write_text_files
from tests.unit.cache_model import CacheModel, Rule
from tests.unit.test_program_lower import spec_of

LAYERS, EXPERTS, TOP_K = 3, 16, 2
SHAPE = RandomShape(LAYERS, EXPERTS, TOP_K, vocab_size=300, context=2048)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model with a tokenizer."""
    folder = tmp_path_factory.mktemp("random") / "model"
    write_random_model(SHAPE, folder)
    write_text_files(folder)
    return folder


@pytest.fixture
def walk(tmp_path: Path) -> Path:
    """A trace with locality: each token keeps one expert of the one before."""
    path = tmp_path / "walk.jsonl"
    random = np.random.default_rng(0)
    with TraceWriter(path, TraceHeader("walk", LAYERS, EXPERTS, TOP_K, "synthetic")) as writer:
        last = np.zeros(LAYERS, np.int32)
        for number in range(60):
            fresh = (last + random.integers(1, EXPERTS, LAYERS)) % EXPERTS
            ids = np.stack([last, fresh], axis=1).astype(np.int32)
            writer.token(f"request-{number // 30}", PREFILL if number % 30 < 5 else DECODE, ids)
            last = fresh.astype(np.int32)
    return path


def plain_counts(trace: Path, slots: int, warmup: int, tokens: int) -> dict[str, int]:
    """What a cache of dicts and lists that fills every miss counts, over the tokens that count."""
    found = read_trace(trace)
    cache = CacheModel(LAYERS * EXPERTS, slots, LAYERS * EXPERTS, Rule("fill"))
    totals = dict.fromkeys(("distinct", "hits", "misses"), 0)
    for place, layers in enumerate(found.experts[found.decode][: warmup + tokens]):
        for layer, ids in enumerate(layers):
            counts = cache.plan([ids.tolist()], 1, TOP_K, layer * EXPERTS).counts
            for name in totals:
                totals[name] += counts[name] * (place >= warmup)
    return totals


@pytest.mark.parametrize("slots", [2, 7, 20, 48])
def test_a_forced_trace_has_the_hits_of_a_plain_cache(walk: Path, slots: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_loading, "split_start", lambda *_: SplitStart(Split.all_fill("a test")))
    monkeypatch.setattr(device_loading, "Balancer", Still)
    result = bench_routing(walk, RoutingPlan(tokens=40, warmup=8), sim(experts=str(slots)))
    counts = plain_counts(walk, slots, 8, 40)
    assert result["hit_rate"] == pytest.approx(counts["hits"] / counts["distinct"])
    assert result["misses_per_layer"] == pytest.approx(counts["misses"] / 40 / LAYERS)
    assert result["fills_per_layer"] == result["misses_per_layer"]
    assert result["cpu_share"] == 0
    assert result["experts"]["slots"] == slots
    json.dumps(result)


class Still:
    """A balancer that leaves the split alone."""

    def __init__(self, split: Split, probed: Timing | None) -> None:
        self.split, self.why = split, split.why

    def observe(self, *_: object) -> None:
        return None


def sim(**settings: Any) -> WorkerConfig:
    return WorkerConfig("", device="sim", threads=1, **settings)


def test_on_the_cpu_a_forced_trace_tells_a_rate_alone(walk: Path) -> None:
    result = bench_routing(walk, RoutingPlan(tokens=10, warmup=0), WorkerConfig("", threads=1))
    assert (result["device"], result["hit_rate"], result["experts"]) == ("cpu", None, None)
    assert result["tokens_per_second"] > 0
    assert result["synthetic"]


def test_a_trace_that_is_too_short_says_what_would_do(walk: Path) -> None:
    with pytest.raises(DoesNotFitError, match=r"has 50 decode tokens; 45 and 10 to warm up are 55\. Give --tokens 40"):
        bench_routing(walk, RoutingPlan(tokens=45, warmup=10), sim())
    with pytest.raises(DoesNotFitError, match="Give --warmup and --tokens that are 50 together"):
        bench_routing(walk, RoutingPlan(tokens=45, warmup=50), sim())
    for plan in ({"tokens": 0}, {"warmup": -1}):
        with pytest.raises(UsageError):
            RoutingPlan(**plan)


def test_a_record_counts_for_what_the_trace_says(walk: Path, tmp_path: Path) -> None:
    sized = tmp_path / "sized.jsonl"
    lines = walk.read_text().splitlines(keepends=True)
    sized.write_text(json.dumps({**json.loads(lines[0]), "record_bytes": 5_000_000}) + "\n" + "".join(lines[1:]))
    plan = RoutingPlan(tokens=20, warmup=0)
    assert bench_routing(sized, plan, sim(experts="2"))["virtual_record_bytes"] == 5_000_000
    assert bench_routing(walk, plan, sim(experts="2"))["virtual_record_bytes"] == TYPICAL_RECORD


@pytest.mark.parametrize("device", ["cpu", "sim"])
def test_what_is_recorded_is_what_ran(folder: Path, tmp_path: Path, device: str) -> None:
    """The same answers on either device, since both have the same bits."""
    path = tmp_path / f"{device}.jsonl.gz"
    plan = TracePlan(prompts=("hello", "what is this?"), tokens=7)
    config = WorkerConfig("", device=device, threads=1)
    recorded = record_trace(folder, path, plan, config)
    trace = read_trace(path)
    assert trace.header == recorded.header
    assert (trace.header.moe_layers, trace.header.experts, trace.header.top_k) == (LAYERS, EXPERTS, TOP_K)
    assert trace.header.record_bytes == load_manifest(folder).banks[0].record_bytes
    assert trace.requests == ("prompt-001", "prompt-002")
    assert int(trace.decode.sum()) == recorded.decode_tokens <= 14
    assert int((~trace.decode).sum()) == recorded.prefill_tokens
    reference = tmp_path / "again.jsonl.gz"
    record_trace(folder, reference, plan, WorkerConfig("", threads=2))
    assert np.array_equal(read_trace(reference).experts, trace.experts)


def test_random_weights_and_upcycled_models_are_synthetic(folder: Path) -> None:
    manifest = load_manifest(folder)
    header = trace_header("model", manifest)
    assert (header.origin, header.model) == ("synthetic", "model (random weights)")

    def with_settings(settings: object) -> Any:
        return SimpleNamespace(spec=manifest.spec, banks=manifest.banks, provenance={"settings": settings})

    upcycled = trace_header("demo", with_settings({"upcycle": {"experts": 8, "top_k": 2, "seed": 0}}))
    assert upcycled.origin == "synthetic"
    assert upcycled.model == "demo (upcycled: copies of one expert behind a random router)"
    for settings in ({}, None, [], {"expert_codec": "q8_0"}):
        header = trace_header("Real/Model", with_settings(settings))
        assert (header.origin, header.model) == ("recorded", "Real/Model")


def test_a_dense_model_has_no_routing() -> None:
    dense = SimpleNamespace(spec=spec_of("llama").to_json(), banks=(), provenance={})
    with pytest.raises(UnsupportedError, match="llama has no experts"):
        trace_header("llama", dense)  # type: ignore[arg-type]


def test_a_trace_is_not_written_over_nor_into_the_blue(folder: Path, tmp_path: Path) -> None:
    there = tmp_path / "there"
    there.write_text("mine")
    with pytest.raises(UsageError, match="is there already"):
        record_trace(folder, there, TracePlan(), WorkerConfig(""))
    assert there.read_text() == "mine"
    with pytest.raises(NotFoundError, match="no folder"):
        record_trace(folder, tmp_path / "no" / "where", TracePlan(), WorkerConfig(""))
    for plan in ({"prompts": ()}, {"tokens": 0}):
        with pytest.raises(UsageError):
            TracePlan(**plan)  # type: ignore[arg-type]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no full disk to write to")
def test_a_full_disk_is_a_sentence(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "TraceWriter", lambda path, *rest: TraceWriter(Path("/dev/full"), *rest))
    with pytest.raises(DoesNotFitError, match="/dev/full cannot be written: No space left on device"):
        record_trace(folder, tmp_path / "new.jsonl", TracePlan(tokens=1), WorkerConfig("", threads=1))
