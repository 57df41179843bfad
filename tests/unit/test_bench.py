"""The bench's arithmetic, on an executor whose steps take known times on a clock of the test's own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from engine.base.errors import UsageError
from engine.measure import bench as bench_module
from engine.measure.bench import BenchPlan, run_bench
from engine.memory.blocks import BlockKind, ContextRoom
from engine.program.executor import Batch, Bytes, Floats
from engine.program.ir import Buffer, Cache, Op, Program, State
from engine.program.step_bytes import WeightBytes, step_bytes

PROGRAM = Program(
    buffers={"x": Buffer(64), "ids": Buffer(4, dtype="i32"), "w": Buffer(4), "logits": Buffer(100, domain="row")},
    ops=(
        Op("embed", (), ("x",), ("embed",), {"scale": 1.0}),
        Op("linear", ("x",), ("x",), ("q", ""), {"scale": 1.0}, 0),
        Op("attention", ("x", "x", "x"), ("x",), ("",), {"cache": 0, "window": 0}, 0),
        Op("experts", ("x", "ids", "w"), ("x",), (), {"layer": 0}, 0),
        Op("attention", ("x", "x", "x"), ("x",), ("sinks",), {"cache": 1, "window": 10}, 1),
        Op("experts", ("x", "ids", "w"), ("x",), (), {"layer": 1}, 1),
        Op("linear", ("x",), ("logits",), ("embed", ""), {"scale": 1.0}),
    ),
    caches=(Cache(2, 16, 16), Cache(1, 48, 0)),
    states=(State(90), State(1000)),
    ropes=(),
    output="logits",
    vocab_size=100,
    residual="x",
    layer_ends=(4, 6),
)


WEIGHTS = WeightBytes(
    rows={"embed": 100, "q": 64, "sinks": 1},
    dense={"embed": 6800, "q": 4352, "sinks": 64},
    records={0: 4096, 1: 8192},
    experts=16 * 4096 + 16 * 8192,
)


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now


class Steady:
    """An executor whose steps cost 1 ms a token and 1 ms more, and that checks what it is given."""

    page_tokens = 16

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.room = ContextRoom()
        self.filled = 0
        self.ids: list[int] = []

    def resize_context(self, room: ContextRoom) -> None:
        self.room = room

    def step(self, batch: Batch) -> Floats:
        first, last = int(batch.positions[0]), int(batch.positions[-1])
        assert first <= self.filled, "a position before this one was never filled"
        assert last < self.room.pages * self.page_tokens
        assert ((batch.tokens >= 0) & (batch.tokens < PROGRAM.vocab_size)).all()
        self.filled = max(self.filled, last + 1)
        self.ids += batch.tokens.tolist()
        self.clock.now += 0.001 * (len(batch.tokens) + 1)
        return np.zeros((len(batch.rows), PROGRAM.vocab_size), np.float32)

    def trace(self, batch: Batch) -> list[Floats]:
        raise AssertionError("not part of a bench")

    @property
    def block_bytes(self) -> Mapping[BlockKind, int]:
        raise AssertionError("not part of a bench")

    def copy_block(self, kind: BlockKind, source: int, target: int) -> None:
        raise AssertionError("not part of a bench")

    def read_block(self, kind: BlockKind, block: int) -> Bytes:
        raise AssertionError("not part of a bench")

    def write_block(self, kind: BlockKind, block: int, data: Bytes) -> None:
        raise AssertionError("not part of a bench")

    def counters(self) -> Mapping[str, float]:
        return {}


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(bench_module, "time", clock)
    return clock


def test_bytes_of_a_token_are_counted_by_hand() -> None:
    sizes = step_bytes(PROGRAM, WEIGHTS, kv_value_bytes=2)
    assert sizes.dense == 6800 // 100 + 4352 + 64 + 6800
    assert sizes.experts == 4 * 4096 + 4 * 8192
    assert sizes.kv(5) == 5 * 2 * (2 * 32 + 48)
    assert sizes.kv(100) == 2 * (100 * 2 * 32 + 10 * 48)  # the window holds ten
    assert sizes.states == 2 * 4 * (90 + 1000)  # read and written
    assert sizes.total(5) == sizes.dense + sizes.experts + sizes.states + sizes.kv(5)


def test_rates_and_shares_are_those_of_the_clock(clock: Clock) -> None:
    sizes = step_bytes(PROGRAM, WEIGHTS, kv_value_bytes=2)
    loops = iter([10.0, 30.0] * 100)
    executor = Steady(clock)
    plan = BenchPlan(prompts=(9, 99), depths=(0, 40), decode_tokens=8, repeat=3)
    result = run_bench(executor, PROGRAM, sizes, lambda: next(loops), plan)
    assert [prompt.tokens for prompt in result.prompts] == [9, 99]
    assert [prompt.rate.median for prompt in result.prompts] == pytest.approx([900, 990])
    assert [decode.depth for decode in result.decodes] == [0, 40]
    for decode in result.decodes:
        assert decode.rate.median == pytest.approx(500)
        assert decode.rate.samples == 3
        moved = sizes.total(decode.depth + 4) * 500 / 1e9
        assert decode.share.median == pytest.approx(moved / 20)
        parts = decode.dense_bytes + decode.expert_bytes + decode.state_bytes + decode.kv_bytes
        assert parts == sizes.total(decode.depth + 4)
    assert (result.read.low, result.read.high, result.read.samples) == (10.0, 30.0, 12)
    assert result.first_step_seconds == pytest.approx(0.002)
    assert len(set(executor.ids)) > 50, "tokens must vary, or every step routes to the same experts"


def test_the_json_has_stable_keys(clock: Clock) -> None:
    sizes = step_bytes(PROGRAM, WEIGHTS, kv_value_bytes=2)
    plan = BenchPlan(prompts=(), depths=(3,), decode_tokens=1, repeat=1)
    data = run_bench(Steady(clock), PROGRAM, sizes, lambda: 1.0, plan).to_json()
    assert set(data) == {"prompts", "decodes", "read", "first_step_seconds"}
    assert set(data["decodes"][0]) == {
        "depth",
        "rate",
        "dense_bytes",
        "expert_bytes",
        "state_bytes",
        "kv_bytes",
        "share",
    }
    assert set(data["read"]) == {"median", "low", "high", "samples"}


def test_prompts_alone_are_measured_too(clock: Clock) -> None:
    sizes = step_bytes(PROGRAM, WEIGHTS, kv_value_bytes=2)
    result = run_bench(Steady(clock), PROGRAM, sizes, lambda: 2.0, BenchPlan(prompts=(4,), depths=(), repeat=2))
    assert result.decodes == ()
    assert result.read.samples == 2


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"repeat": 0}, "repeat"),
        ({"prompts": (0,)}, "prompts"),
        ({"depths": (-1,)}, "depths"),
        ({"decode_tokens": 0}, "1 token"),
        ({"prompts": (), "depths": ()}, "nothing to measure"),
    ],
)
def test_a_plan_that_measures_nothing_is_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        BenchPlan(**options)
