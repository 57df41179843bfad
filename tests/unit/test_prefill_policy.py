"""How long a prompt's steps are on a device, and what a worker counts of them."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from engine.base.units import GIB
from engine.experts.prefill import PrefillPolicy
from engine.experts.slot_products import MOST_PAIRS
from engine.files.ftw.manifest import BankInfo, Field, Shape
from engine.program.device.runner import BUCKETS
from engine.program.ir import Buffer, Op, Program
from engine.worker.device_needs import buffer_bytes
from engine.worker.device_policy import MOST_TOKENS, device_policy, on_demand_tokens, prompt_tokens
from engine.worker.engine import Engine
from engine.worker.scheduler import POLICY
from tests.unit.engine_rig import Front, make
from tests.unit.fake_device import fake_device_model


def program(top_k: int) -> Program:
    """One MoE layer as wide as Qwen3.6-35B-A3B's."""
    buffers = {"x": Buffer(2048), "ids": Buffer(top_k), "weights": Buffer(top_k)}
    op = Op("experts", ("x", "ids", "weights"), ("x",), (), {"layer": 0}, 0)
    return Program(buffers, (op,) if top_k else (), (), (), "x", 100, "x", (1,))


BANK = BankInfo((Field("gate_up", Shape("q4_0", 1024, 2048), 0),), 4096, 256, (0,), ())


@pytest.mark.parametrize("top_k", [1, 4, 6, 8, 10, 22])
@pytest.mark.parametrize("total", [4 * GIB, 8 * GIB, 24 * GIB, 80 * GIB])
def test_steps_are_as_long_as_rows_may_have_memory_and_launches_rows(top_k: int, total: int) -> None:
    made = program(top_k)
    tokens = prompt_tokens(made, [BANK], total)
    assert tokens % 16 == 0
    assert POLICY.max_step_tokens <= tokens <= MOST_TOKENS
    assert tokens * top_k <= MOST_PAIRS
    if tokens > POLICY.max_step_tokens:
        assert buffer_bytes(made, [BANK], tokens) <= total / 16 + buffer_bytes(made, [BANK], 0)


def test_a_large_device_reads_nearly_all_that_a_grid_can_have() -> None:
    assert prompt_tokens(program(8), [BANK], 80 * GIB) == 8176
    assert prompt_tokens(program(8), [BANK], 2 * GIB) == POLICY.max_step_tokens
    assert prompt_tokens(program(0), [], 80 * GIB) == POLICY.max_step_tokens


def test_a_simulated_device_keeps_to_steps_that_can_be_cancelled() -> None:
    assert device_policy(program(8), [BANK], 80 * GIB, is_virtual=True) == POLICY
    real = device_policy(program(8), [BANK], 80 * GIB, is_virtual=False)
    assert (real.max_step_tokens, real.alone_seconds) == (8176, math.inf)
    assert real.streaming_tokens == 80  # 95 of Qwen's tokens would have all experts cross the link
    assert device_policy(program(0), [], 80 * GIB, is_virtual=False) == POLICY


@pytest.mark.parametrize(("experts", "top_k"), [(8, 2), (64, 8), (128, 8), (256, 8), (512, 10)])
def test_steps_beside_streams_stream_no_layer(experts: int, top_k: int) -> None:
    tokens = on_demand_tokens(experts, top_k)
    assert BUCKETS[-1] <= tokens <= POLICY.streaming_tokens
    assert tokens == BUCKETS[-1] or not PrefillPolicy().streams(tokens, experts, top_k, 1.0)
    assert tokens == POLICY.streaming_tokens or PrefillPolicy().streams(tokens + 16, experts, top_k, 1.0)


def test_a_prompt_alone_is_read_in_long_steps_and_beside_a_stream_in_short_ones() -> None:
    policy = replace(POLICY, max_step_tokens=1024, streaming_tokens=64, alone_seconds=math.inf)
    front, executor = make(kv_tokens=8192, policy=policy)
    front.generate(1, [50] * 1500, 40)
    front.hear(front.engine.step())
    assert (len(executor.batches[0].tokens), executor.batches[0].more) == (1024, 476)
    front.hear(front.engine.step())
    front.generate(2, [60] * 500, 2)
    front.run()
    beside = [len(batch.tokens) for batch in executor.batches[2:]]
    assert max(beside) <= 64 + 1
    assert sum(beside) > 500


def test_steps_that_stream_layers_move_bytes_and_miss_nothing() -> None:
    model = fake_device_model()
    executor = model.executor
    front = Front(Engine(model))
    executor.is_streaming = True  # type: ignore[attr-defined]
    executor.slots = (8,)  # type: ignore[attr-defined]
    front.generate(1, [50] * 40, 1)
    front.run()
    assert model.experts is not None
    totals = model.experts.totals
    assert totals["link_bytes"] > 0
    assert totals["hits"] == totals["misses"] == totals["plans"] == 0
    assert "hit_rate" not in model.experts.values()
    assert len(executor.splits) == 1, "nothing was divided anew"  # type: ignore[attr-defined]
