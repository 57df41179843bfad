"""An expert cache that gets smaller and larger while it is in use, and what happens when that fails."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from engine.base.errors import NoRoomError
from engine.device.driver import Stream
from engine.device.sim import SimDriver
from engine.experts.cache import ExpertCache
from engine.experts.compaction import compaction_moves
from engine.experts.split import Split
from tests.unit.cache_rig import RECORD_BYTES, RECORDS_A_SHARD, CacheRig, Geometry, random_tokens

PAGE = 4096


@st.composite
def caches(draw: st.DrawFn) -> tuple[list[int], list[int], int]:
    """Owners (some -1) and stamps of slots, and how many are to be left."""
    count = draw(st.integers(0, 24))
    filled = draw(st.lists(st.booleans(), min_size=count, max_size=count))
    records = draw(st.permutations(range(100, 100 + count)))
    stamps = draw(st.lists(st.integers(1, 6), min_size=count, max_size=count))
    owner = [record if full else -1 for record, full in zip(records, filled, strict=True)]
    used = [stamp if full else 0 for stamp, full in zip(stamps, filled, strict=True)]
    return owner, used, draw(st.integers(0, count))


@given(caches())
def test_compaction_keeps_the_hottest_and_moves_only_what_must(cache: tuple[list[int], list[int], int]) -> None:
    owner, used, slots = cache
    compaction = compaction_moves(np.array(owner, np.int32), np.array(used, np.uint32), slots)
    left = dict(enumerate(owner))
    for slot in compaction.dropped.tolist():
        assert left.pop(slot) >= 0, "an empty slot lost its record"
    for source, target in compaction.moves.tolist():
        assert source >= slots > target, "a move within the slots that stay, or out of them"
        assert left.get(target, -1) == -1, "a record is overwritten"
        left[target] = left.pop(source)
    kept = {slot: record for slot, record in left.items() if record >= 0}
    assert all(slot < slots for slot in kept)

    stamp_of = dict(zip(owner, used, strict=True))
    resident = [record for record in owner if record >= 0]
    assert len(kept) == min(slots, len(resident))
    coldest_kept = min((stamp_of[record] for record in kept.values()), default=1 << 32)
    lost = set(resident) - set(kept.values())
    assert all(stamp_of[record] <= coldest_kept for record in lost)
    tied = [slot for slot, record in enumerate(owner) if record in lost and stamp_of[record] == coldest_kept]
    moved = [slot for slot, _ in compaction.moves.tolist() if used[slot] == coldest_kept]
    assert not tied or not moved or min(tied) > max(moved), "a record moved where one that was as hot could have stayed"


def warm_rig(**changes: int) -> CacheRig:
    """A cache that has seen 40 steps."""
    rig = CacheRig(Geometry(layers=2, experts=16, slots=20, top_k=3, max_tokens=4, **changes), Split.all_fill())
    run(rig, 40)
    return rig


def run(rig: CacheRig, steps: int, seed: int = 1) -> None:
    rng = random.Random(seed)
    for _ in range(steps):
        tokens = random_tokens(rng, rig.geometry.experts, rig.geometry.top_k, rng.randint(1, 4))
        rig.step(tokens, 4, rng.randrange(2))


@pytest.mark.parametrize("slots", [19, 7, 1, 0])
def test_a_smaller_cache_keeps_the_hottest_records_and_their_bytes(slots: int) -> None:
    rig = warm_rig()
    address = rig.arena.address
    before = rig.cache.snapshot()
    rig.resize(slots)
    rig.compare()
    after = rig.cache.snapshot()
    stamps = sorted(before.slot_used.tolist(), reverse=True)
    assert sorted(after.slot_used.tolist(), reverse=True)[:slots] == stamps[:slots]
    assert (rig.arena.slots, rig.arena.mapped, rig.arena.address) == (slots, slots * RECORD_BYTES, address)
    run(rig, 10)
    rig.compare()
    rig.resize(32)
    rig.compare()
    run(rig, 10)
    rig.compare()


def test_a_captured_graph_survives_resizes_and_splits() -> None:
    rig = warm_rig()
    driver, cache = rig.driver, rig.cache
    ids, rows = driver.allocate(4 * 6), driver.allocate(4)
    with driver.capture(rig.stream) as graph:
        for layer in range(2):
            cache.launch_plan(rig.stream, layer, ids.address, rows.address, 2)
            cache.launch_fill(rig.stream, layer, rig.records.shards, RECORDS_A_SHARD)
    rng = random.Random(3)
    for slots, split in ((20, Split.all_fill()), (9, Split.carry(0.5)), (2, Split.all_fill()), (30, Split.carry(0.8))):
        rig.resize(slots)
        rig.set_split(split)
        for _ in range(5):
            tokens = random_tokens(rng, 16, 3, rng.randint(0, 2))
            padded = [expert for token in tokens for expert in token] + [0] * (6 - 3 * len(tokens))
            driver.upload(ids.address, np.array(padded, np.int32))
            driver.upload(rows.address, np.array([len(tokens)], np.int32))
            graph.launch(rig.stream)
            driver.synchronise(rig.stream)
            for layer in range(2):
                rig.model.plan(tokens, 2, 3, layer * 16)
            rig.compare()


def test_growing_beyond_the_memory_there_is_changes_nothing() -> None:
    rig = warm_rig()
    rig.driver.allocate(rig.driver.memory()[1] - 3 * PAGE)  # somebody else is faster
    with pytest.raises(NoRoomError):
        rig.cache.resize(32)
    assert rig.cache.slots == 20
    rig.compare()
    run(rig, 20, seed=2)
    rig.compare()
    rig.resize(22)
    rig.compare()


class FailingDriver(SimDriver):
    """A move of blocks fails after the first `copies_left` of them."""

    copies_left = 1 << 30

    def move_blocks(self, stream: Stream, base: int, size: int, moves: NDArray[np.int32]) -> None:
        super().move_blocks(stream, base, size, moves[: self.copies_left])
        self.synchronise(stream)
        if len(moves) > self.copies_left:
            raise RuntimeError("the device fell off the bus")


@pytest.mark.parametrize("copies", [0, 1, 3])
def test_a_copy_that_fails_leaves_every_slot_with_what_the_tables_say(copies: int) -> None:
    driver = FailingDriver(memory=64 << 20, granularity=PAGE)
    rig = CacheRig(Geometry(layers=2, experts=16, slots=20, top_k=3), Split.all_fill(), driver=driver)
    run(rig, 40)
    driver.copies_left = copies
    with pytest.raises(RuntimeError, match="bus"):
        rig.cache.resize(8)
    assert (rig.cache.slots, rig.arena.slots) == (20, 20)
    rig.cache.check(rig.records.record)
    resident = np.count_nonzero(rig.cache.snapshot().owner >= 0)
    assert resident == 8, "those that were to stay are where they were"
    driver.copies_left = 1 << 30
    assert rig.cache.resize(8) >= copies
    rig.cache.check(rig.records.record)
    assert np.count_nonzero(rig.cache.snapshot().owner >= 0) == 8


def test_a_cache_that_finds_no_room_at_first_leaves_nothing_behind() -> None:
    driver = SimDriver(memory=(64 << 10) + 4 * PAGE, granularity=PAGE)
    free = driver.memory()[1]
    geometry = Geometry(layers=2, experts=16, slots=20, top_k=3)
    with pytest.raises(NoRoomError):
        CacheRig(geometry, Split.all_fill(), driver=driver)
    assert free - driver.memory()[1] <= PAGE, "only the rig's own table of shards is left"


def test_a_cleared_cache_starts_again() -> None:
    rig = warm_rig()
    totals = rig.cache.read_totals()
    rig.cache.clear()
    rig.model.held.clear()
    rig.model.slot_stamp.clear()
    rig.compare()
    assert rig.cache.read_totals() == totals
    run(rig, 10)
    rig.compare()


def test_clocks_are_halved_before_they_run_over_and_the_order_stays() -> None:
    rig = warm_rig()
    assert not rig.cache.tend()
    rig.age(1 << 30)
    before = rig.cache.snapshot()
    assert rig.cache.tend()
    after = rig.cache.snapshot()
    assert before.clock > 1 << 30 > after.clock
    order = np.argsort(before.slot_used, kind="stable")
    assert (np.diff(after.slot_used[order].astype(np.int64)) >= 0).all()
    rig.model.halve()
    rig.compare()
    run(rig, 20)
    rig.compare()


def test_sizes_that_cannot_be_are_our_own_mistakes() -> None:
    rig = warm_rig()
    for slots in (-1, 33):
        with pytest.raises(AssertionError):
            rig.cache.resize(slots)
    with pytest.raises(AssertionError):
        rig.cache.launch_plan(rig.stream, 2, 0, 0, 1)
    with pytest.raises(AssertionError):
        ExpertCache(
            rig.driver,
            rig.arena,
            layers=1,
            experts=5000,
            record_bytes=RECORD_BYTES,
            fillable=0,
            capacity=4,
            slots=4,
            split=Split.all_fill(),
            top_k=1,
            max_tokens=1,
        )
