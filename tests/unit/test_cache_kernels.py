"""What the cache's kernels cost, and the copies and sums beside the plan, on the simulated device.

tests/native/cache_test.cpp and plan_cost_test.cpp look closer; these run with every `make test`.
"""

from __future__ import annotations

import numpy as np
import pytest

from engine.device.sim import LaunchCounters, SimDriver
from engine.experts.arena import SlotArena
from engine.experts.cache import ExpertCache
from engine.experts.cache_tables import table_lengths
from engine.experts.split import Split

EXPERTS = 256
MISSES = 64
CPU, RETURNED = -1, -3


def plan_cost(slots: int, fills: int) -> LaunchCounters:
    """Of a plan with 64 misses, all slots being held by other layers at various ages."""
    layers = 1 + -(-slots // EXPERTS)
    driver = SimDriver(memory=64 << 20)
    split = Split("table", 0.0, tuple(min(misses, fills) for misses in range(MISSES + 1)))
    cache = ExpertCache(
        driver,
        SlotArena(driver, 16, layers * EXPERTS),
        layers=layers,
        experts=EXPERTS,
        record_bytes=16,
        fillable=layers * EXPERTS,
        capacity=layers * EXPERTS,
        slots=slots,
        split=split,
        top_k=8,
        max_tokens=8,
        threads=1024,
    )
    rng = np.random.default_rng(7)
    slot_of = np.full(layers * EXPERTS, -1, np.int32)
    slot_of[EXPERTS : EXPERTS + slots] = np.arange(slots)
    tables = cache.tables
    tables.write("slot_of", slot_of)
    tables.write("owner", np.arange(EXPERTS, EXPERTS + slots, dtype=np.int32))
    tables.write("slot_used", rng.integers(1, 1 << 20, slots).astype(np.uint32))
    tables.write("expert_used", np.ones(layers * EXPERTS, np.uint32))
    tables.write_state(clock=1 << 20)
    ids, rows = driver.allocate(4 * MISSES), driver.allocate(4)
    driver.upload(ids.address, np.arange(100, 100 + MISSES, dtype=np.int32))
    driver.upload(rows.address, np.array([8], np.int32))
    stream = driver.stream()
    cache.launch_plan(stream, 0, ids.address, rows.address, 8)
    driver.synchronise(stream)
    assert cache.layer_counts()[0].tolist() == [MISSES, 0, MISSES, fills, MISSES - fills]
    cache.check()
    return driver.counters("plan")


@pytest.mark.parametrize("slots", [256, 1_000, 4_000, 10_000, 40_000])
def test_a_plan_costs_the_same_for_any_number_of_fills(slots: int) -> None:
    one = plan_cost(slots, 1)
    assert one.barriers == 16
    assert all(plan_cost(slots, fills) == one for fills in (2, 31, 64))
    none = plan_cost(slots, 0)
    assert none.barriers == 3
    assert none == plan_cost(256, 0), "without fills no slot is looked at"


@pytest.mark.parametrize("record_bytes", [4096, 16384, 36864])
def test_fills_copy_records_of_any_size_from_several_shards(record_bytes: int) -> None:
    driver = SimDriver(memory=64 << 20, threads=2)
    rng = np.random.default_rng(record_bytes)
    shards = [rng.integers(0, 256, (count, record_bytes), np.uint8) for count in (5, 5, 2)]
    pinned = [driver.pin(shard, shard.nbytes) for shard in shards]
    table = driver.allocate(8 * len(shards))
    driver.upload(table.address, np.array([part.address for part in pinned], np.uint64))
    arena = SlotArena(driver, record_bytes + 4096, 4)
    cache = ExpertCache(
        driver,
        arena,
        layers=1,
        experts=12,
        record_bytes=record_bytes,
        fillable=12,
        capacity=4,
        slots=4,
        split=Split.all_fill(),
        top_k=4,
        max_tokens=1,
    )
    ids, rows = driver.allocate(16), driver.allocate(4)
    driver.upload(rows.address, np.array([1], np.int32))
    stream = driver.stream()
    for chosen in ([11, 0, 7, 4], [1, 7, 10, 5]):
        between = np.full(4096, 0x5A, np.uint8)
        driver.upload(arena.address + record_bytes, between)
        driver.upload(ids.address, np.array(chosen, np.int32))
        cache.launch_plan(stream, 0, ids.address, rows.address, 1)
        cache.launch_fill(stream, 0, table.address, 5)
        driver.synchronise(stream)
        cache.check(lambda record: shards[record // 5][record % 5])
        after = np.zeros(4096, np.uint8)
        driver.download(arena.address + record_bytes, after)
        assert np.array_equal(after, between), "a copy went beyond its record"


def test_outputs_are_merged_in_routing_order_wherever_they_were_computed() -> None:
    """The values are such that a product and a sum are exact in double, so that rounding that is one fma."""
    tokens, live, top_k, hidden, stride = 3, 2, 4, 37, 48
    rng = np.random.default_rng(5)
    sides = [(rng.integers(-(1 << 20), 1 << 20, (tokens * top_k, stride)) / 64).astype(np.float32) for _ in range(2)]
    weights = (rng.integers(1, 1 << 12, (tokens, top_k)) / 4096).astype(np.float32)
    own = (rng.integers(-(1 << 20), 1 << 20, (tokens, hidden)) / 64).astype(np.float32)
    target = rng.choice([CPU, 0, 5], (tokens, top_k)).astype(np.int32)
    target[:, 2] = RETURNED
    sides[0][0, 3] = np.nan
    target[0, 0] = 2

    driver = SimDriver()
    buffers = []
    for array in (own, *sides, target, weights, np.array([live], np.int32), np.full((tokens, hidden), 7, np.float32)):
        memory = driver.allocate(array.nbytes)
        driver.upload(memory.address, array)
        buffers.append(memory)
    x, device, host, where, factors, rows, y = (memory.address for memory in buffers)
    stream = driver.stream()
    args = [x, hidden, device, host, stride, where, factors, rows, top_k, hidden, y, hidden]
    driver.launch(stream, driver.kernel("merge"), (2, tokens, 1), 32, args)
    driver.synchronise(stream)
    merged = np.zeros((tokens, hidden), np.float32)
    driver.download(y, merged)

    for token in range(live):
        total = np.zeros(hidden, np.float32)
        for place in range(top_k):
            pair = token * top_k + place
            row = sides[int(target[token, place] == CPU)][pair, :hidden].astype(np.float64)
            row = own[token].astype(np.float64) if target[token, place] == RETURNED else row
            total = (float(weights[token, place]) * row + total.astype(np.float64)).astype(np.float32)
        assert np.array_equal(merged[token], total, equal_nan=True)
    assert merged[0].view(np.uint32)[3] == 0x7FC00000
    assert (merged[live:] == 7).all(), "padding was written to"


def test_stamps_have_room_to_be_read_four_at_a_time() -> None:
    assert table_lengths(3, 100, 250, 8, 32)["slot_used"] == 252
