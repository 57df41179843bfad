"""The probe and the bench on the real kernels: small, so they say nothing about speed, but everything must run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from engine import _native
from engine.base.errors import DoesNotFitError
from engine.files.ftw.opening import open_model
from engine.measure.bench import BenchPlan, bench_model
from engine.measure.native_meter import NativeMeter, example_record
from engine.measure.probe import CANONICAL_SHAPES, ExpertShape, shapes_of
from engine.worker.protocol import WorkerConfig
from tests.bench.ours import Ours, converted
from tests.bench.random_moe import Codecs, random_moe
from tests.bench.shapes import Shape

TINY = Shape(layers=2, hidden=64, heads=4, kv_heads=2, head_dim=16, experts=8, top_k=2, intermediate=32, vocab=49152)
PLAN = BenchPlan(prompts=(16,), depths=(0, 40), decode_tokens=3, repeat=2)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A converted random model, with the tokenizer that a conversion asks for."""
    file = tmp_path_factory.mktemp("model") / "tiny.gguf"
    random_moe("qwen3_moe", TINY, Codecs(), gguf_file=file)
    return converted(file)


@pytest.fixture(scope="module")
def meter() -> NativeMeter:
    return NativeMeter(memory_available=1 << 30, buffer_bytes=16 << 20)


def test_every_codec_is_measured_where_no_model_is_in_it_yet() -> None:
    assert sorted(shape.codec for shape in CANONICAL_SHAPES) == sorted(_native.codecs())


@pytest.mark.parametrize("codec", _native.codecs())
def test_experts_of_every_codec_run(codec: str, meter: NativeMeter) -> None:
    shape = ExpertShape(codec, 256, 512)
    assert meter.expert_bandwidth(shape, 1) > 0
    assert meter.expert_bandwidth(shape, 2) > 0


@pytest.mark.parametrize("codec", _native.codecs())
def test_the_weights_are_ordinary_numbers(codec: str) -> None:
    fields, record = example_record(ExpertShape(codec, 256, 512), np.random.default_rng(0))
    down = next(field for field in fields if field.name == "down")
    values = _native.unpack(codec, 256, 512, record[down.offset : down.offset + down.stored_bytes])
    assert np.isfinite(values).all()
    assert 0.01 < np.abs(values).mean() < 2  # neither zero nor so small or large that arithmetic slows down


def test_a_record_is_as_large_as_a_converted_models(model: Path, meter: NativeMeter) -> None:
    ftw = open_model(model)
    (shape,) = shapes_of(ftw)
    assert shape == ExpertShape("q4_0", 64, 32)
    assert meter.record_bytes(shape) == ftw.banks[0].record_bytes


def test_reads_are_timed(meter: NativeMeter) -> None:
    assert 0.1 < meter.read_bandwidth(1) < 10_000


def test_too_little_memory_is_refused() -> None:
    with pytest.raises(DoesNotFitError, match="free memory"):
        NativeMeter(memory_available=20 << 20)


def test_an_expert_larger_than_the_buffer_is_refused(meter: NativeMeter) -> None:
    with pytest.raises(DoesNotFitError, match="does not fit"):
        meter.expert_bandwidth(ExpertShape("bf16", 4096, 2048), 1)


def test_a_model_is_benched(model: Path) -> None:
    result = bench_model(model, PLAN, WorkerConfig("", threads=1))
    assert (result["version"], result["device"], result["threads"]) == (1, "cpu", 1)
    record = open_model(model).banks[0].record_bytes
    for decode, depth in zip(result["decodes"], PLAN.depths, strict=True):
        assert decode["rate"]["median"] > 0
        assert decode["expert_bytes"] == TINY.layers * TINY.top_k * record
        assert decode["kv_bytes"] == (depth + 1) * TINY.layers * 2 * TINY.kv_heads * TINY.head_dim * 2
        head = TINY.vocab * TINY.hidden // 32 * 34  # q8_0 blocks; attention and norms are small beside it
        assert head < decode["dense_bytes"] < 1.05 * head
    assert result["prompts"][0]["tokens"] == 16
    assert result["load_seconds"] > 0


def test_a_plan_beyond_the_models_context_is_refused(model: Path) -> None:
    with pytest.raises(DoesNotFitError, match=r"4096"):
        bench_model(model, BenchPlan(depths=(5000,)), WorkerConfig(""))


def test_logits_do_not_depend_on_the_steps_they_were_made_in(model: Path) -> None:
    tokens = np.random.default_rng(0).integers(TINY.vocab, size=600, dtype=np.int32)  # two steps: 512 and 88
    ours = Ours(model, threads=2, context=600)
    whole = ours.logits(tokens)
    assert np.array_equal(ours.logits(tokens[:520])[500:], whole[500:520])
    assert not np.array_equal(whole[0], whole[1])
