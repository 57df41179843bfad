"""The native executor against a float64 model of its operations, and what it does with what does not fit."""

from __future__ import annotations

import gc
import threading
import time
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from engine import _native
from engine.base.errors import DoesNotFitError, UnsupportedError
from engine.memory.blocks import ContextRoom
from engine.program.executor import Batch
from engine.program.ir import RopeTable
from engine.program.native import NativeExecutor
from tests.unit.native_model import (
    ATTENTION,
    HEAD_DIM,
    HEADS,
    HIDDEN,
    LONG,
    TOP_K,
    VOCAB,
    RandomModel,
    assert_near,
    tokens_of,
    whole,
)


@pytest.mark.parametrize("name", ATTENTION)
def test_attention_over_several_blocks_is_that_of_the_model(name: str) -> None:
    model = RandomModel()
    model.attention(**ATTENTION[name])
    assert_near(*model.finish(max_tokens=LONG), LONG, 2e-5)


def test_a_changed_window_is_noticed() -> None:
    model = RandomModel()
    model.attention(window=300)
    executor, exact = model.finish(max_tokens=LONG)
    attention = next(op for op in exact.program.ops if op.kind == "attention")
    changed = replace(attention, attrs={**attention.attrs, "window": 301})
    exact.program = replace(exact.program, ops=tuple(changed if op is attention else op for op in exact.program.ops))
    with pytest.raises(AssertionError):
        assert_near(executor, exact, LONG, 2e-5)


ROUTES = {
    "softmax": {},
    "not normalised": {"normalize": False, "scale": 2.5},
    "sigmoid with bias": {"scoring": "sigmoid", "bias": True},
    "softmax with bias": {"bias": True},
    "softmax of the chosen": {"scoring": "softmax_topk", "normalize": False},
    "sigmoid of the chosen": {"scoring": "sigmoid_topk", "bias": True},
    "sparse mixer": {"scoring": "sparse_mixer", "normalize": False, "jitter": 0.3},
    "groups": {"groups": 4, "top_groups": 2, "group_top": 1},
    "groups by two, biased": {"scoring": "sigmoid", "groups": 2, "top_groups": 1, "group_top": 2, "bias": True},
}


@pytest.mark.parametrize("name", ROUTES)
def test_routing_is_that_of_the_model(name: str) -> None:
    model = RandomModel(seed=len(name))
    model.moe(**ROUTES[name])
    executor, exact = model.finish()
    assert_near(executor, exact, 60, 2e-5)
    ids = executor_buffer(executor, "ids0")
    np.testing.assert_array_equal(ids, exact.buffers["ids0"])
    assert len(np.unique(ids)) > TOP_K, "all tokens chose alike"


def executor_buffer(executor: NativeExecutor, name: str) -> npt.NDArray[np.float32]:
    return executor._native.buffer(name)


@pytest.mark.parametrize("codec", _native.codecs())
@pytest.mark.parametrize(("fused", "biases", "activation"), [(True, False, "silu"), (False, True, "clamped_silu")])
def test_experts_of_every_codec_are_those_of_the_model(codec: str, fused: bool, biases: bool, activation: str) -> None:
    model = RandomModel(codec)
    model.moe(biases=biases, fused=fused, activation=activation)
    executor, exact = model.finish()
    # integer codecs round activations to 16 bits a block
    assert_near(executor, exact, 70, 2e-5 if codec in ("f32", "f16", "bf16") else 3e-4)


@pytest.mark.parametrize("pairs", [False, True])
def test_rope_turns_each_head_by_its_position(pairs: bool) -> None:
    model = RandomModel()
    model.ropes.append(RopeTable((1.0, 0.3, 0.01, 0.001), 1.3))
    model.op("rope", ("x",), ("x",), heads=4, stride=16, offset=5, dim=8, pairs=pairs, table=0)
    assert_near(*model.finish(max_tokens=LONG), LONG, 2e-5)


def test_rope_may_grow_and_a_norm_may_have_no_weights() -> None:
    model = RandomModel()
    model.ropes += [RopeTable((0.0,) * 12, 1.5, 0.4, 9, 1), RopeTable((1.0, 0.3), 1.0, 0.2, 16, 0)]
    model.op("rope", ("x",), ("x",), heads=2, stride=32, offset=3, dim=24, pairs=True, table=0)
    model.op("rms_norm", ("x",), ("x",), ("",), eps=1e-5, group=32)
    model.op("rope", ("x",), ("x",), heads=4, stride=16, offset=0, dim=4, pairs=False, table=1)
    model.op("scale", ("x",), ("x",), (model.vector("factor", 1, 2.0),))
    assert_near(*model.finish(max_tokens=LONG), LONG, 2e-5)


def test_attention_may_read_what_another_has_kept() -> None:
    model = RandomModel()
    model.attention(window=40)
    model.buffer("other", HEADS * HEAD_DIM)
    model.op("linear", ("x",), ("other",), (model.matrix("wother", HEADS * HEAD_DIM, model.hidden), ""), scale=1.0)
    model.buffer("found", HEADS * HEAD_DIM)
    attention = next(op for op in model.ops if op.kind == "attention")
    model.op("attention", ("other",), ("found",), ("",), **attention.attrs)
    model.add_linear("found", HEADS * HEAD_DIM)
    assert_near(*model.finish(max_tokens=LONG), LONG, 2e-5)


def test_outputs_of_experts_may_be_added_as_they_are() -> None:
    model = RandomModel()
    model.moe()
    place = next(i for i, op in enumerate(model.ops) if op.kind == "experts")
    model.ops[place] = replace(model.ops[place], reads=model.ops[place].reads[:2])
    assert_near(*model.finish(), 70, 2e-5)


def test_heads_with_matrices_of_their_own_may_begin_within_a_tile() -> None:
    model = RandomModel()
    model.buffer("q", 4 * 24)
    matrix = model.matrix("heads", 4 * 22, 10)
    model.op("head_linear", ("x",), ("q",), (matrix,), heads=4, in_stride=16, in_offset=3, out_stride=24, out_offset=2)
    model.op("head_copy", ("x",), ("q",), heads=4, in_stride=16, in_offset=7, out_stride=24, out_offset=0, width=2)
    model.add_linear("q", 96)
    assert_near(*model.finish(), 90, 2e-5)


def test_a_trace_holds_the_residual_stream() -> None:
    model = RandomModel()
    model.attention()
    model.moe()
    executor, exact = model.finish()
    tokens = tokens_of(20)
    exact.run(tokens)
    (state,) = executor.trace(whole(tokens))
    assert state.shape == (20, HIDDEN)
    assert np.abs(state - exact.buffers["x"]).max() <= 2e-5 * np.abs(exact.buffers["x"]).max()


def test_counters_count_what_was_read() -> None:
    model = RandomModel("q4_0")
    model.moe()
    executor, _ = model.finish()
    executor.step(whole(tokens_of(1)))
    counters = executor.counters()
    assert counters["steps"] == 1
    assert counters["experts_run"] == 3
    assert counters["expert_bytes"] == 3 * model.banks[0].record_bytes
    assert counters["expert_seconds"] > 0


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize(("heads", "kv_heads"), [(8, 8), (21, 7), (32, 4), (80, 2)])
def test_tokens_one_by_one_have_the_bits_of_all_at_once(heads: int, kv_heads: int, threads: int) -> None:
    model = RandomModel()
    model.attention(heads, kv_heads, 16, sinks=True)
    executor, _ = model.finish(max_tokens=LONG, threads=threads)
    tokens = tokens_of(LONG)
    at_once = whole(tokens)
    wanted = executor.step(at_once)
    for place in (300, LONG - 1):
        single = slice(place, place + 1)
        row = np.zeros(1, np.int32)
        batch = Batch(tokens[single], at_once.positions[single], np.array([0, 1], np.int32), at_once.page_tables, row)
        np.testing.assert_array_equal(executor.step(batch)[0], wanted[place])


def test_a_batch_of_nothing_gives_no_logits() -> None:
    executor, _ = RandomModel().finish()
    assert executor.step(whole(tokens_of(0))).shape == (0, VOCAB)


def test_weights_live_as_long_as_the_executor() -> None:
    def build() -> NativeExecutor:
        model = RandomModel("q8_0")
        model.moe()
        return model.finish()[0]

    executor = build()
    before = executor.step(whole(tokens_of(30)))
    gc.collect()
    rubbish = [np.full(1 << 16, 255, np.uint8) for _ in range(200)]
    np.testing.assert_array_equal(executor.step(whole(tokens_of(30))), before)
    del rubbish


def test_a_step_leaves_the_interpreter_to_others() -> None:
    model = RandomModel()
    model.attention()
    executor, _ = model.finish(max_tokens=LONG, isa="scalar", threads=1)
    ticks, done = 0, threading.Event()

    def run() -> None:
        executor.step(whole(tokens_of(LONG)))
        done.set()

    thread = threading.Thread(target=run)
    thread.start()
    while not done.is_set():
        ticks += 1
        time.sleep(0.001)
    thread.join()
    assert ticks > 3


# --- what does not fit


def test_an_operation_that_is_not_known_is_named() -> None:
    model = RandomModel()
    model.op("mystery", ("x",), ("x",))
    with pytest.raises(UnsupportedError, match=r"operation 1 \(mystery, layer 0\)"):
        model.finish()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"isa": "sse9"}, "sse9"),
        ({"kv_dtype": "q4"}, "q4"),
        ({"page_tokens": 10}, "multiple of 16"),
        ({"threads": 0}, "at least one thread"),
        ({"max_tokens": 0}, "at least one token"),
    ],
)
def test_settings_that_cannot_be_are_named(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        RandomModel().finish(**settings)


def test_a_cache_beyond_all_memory_is_refused_and_nothing_changes() -> None:
    model = RandomModel()
    model.attention(dim=HEAD_DIM)
    executor, _ = model.finish()
    tokens = tokens_of(40)
    expected = executor.step(whole(tokens))
    with pytest.raises(DoesNotFitError, match="1000000000 pages"):
        executor.resize_context(ContextRoom(10**9))
    assert executor.room.pages == 64
    np.testing.assert_array_equal(executor.step(whole(tokens[30:], start=30)), expected[30:])


def test_a_page_that_is_not_there_is_an_error() -> None:
    model = RandomModel()
    model.attention()
    executor, _ = model.finish(room=ContextRoom(2))
    with pytest.raises(ValueError, match="page 2 of 2"):
        executor.step(whole(tokens_of(40)))
    with pytest.raises(IndexError, match="page 2"):
        executor.copy_block("page", 0, 2)


def test_a_token_outside_the_vocabulary_is_an_error() -> None:
    executor, _ = RandomModel().finish()
    with pytest.raises(ValueError, match=f"token {VOCAB} of a vocabulary of {VOCAB}"):
        executor.step(whole(np.array([1, VOCAB], np.int32)))
