"""A damaged cache is found: the negative controls of every test that holds slots to records."""

from __future__ import annotations

import numpy as np
import pytest

from engine.experts.cache_tables import BrokenCacheError
from engine.experts.split import Split
from tests.unit.cache_rig import RECORD_BYTES, CacheRig, Geometry


@pytest.fixture
def rig() -> CacheRig:
    rig = CacheRig(Geometry(), Split.all_fill())
    rig.step([[5, 2], [7, 1]], bucket=2, layer=0)
    rig.step([[3, 2]], bucket=1, layer=1)
    rig.compare()
    return rig


def swap(rig: CacheRig, table: str, first: int, second: int) -> None:
    values = rig.cache.tables.read(table)
    values[[first, second]] = values[[second, first]]
    rig.cache.tables.write(table, values)


def put(rig: CacheRig, table: str, index: int, value: int) -> None:
    values = rig.cache.tables.read(table)
    values[index] = value
    rig.cache.tables.write(table, values)


def test_two_slots_whose_bytes_are_swapped(rig: CacheRig) -> None:
    slots = [np.zeros(RECORD_BYTES, np.uint8) for _ in range(2)]
    for slot, data in enumerate(slots):
        rig.driver.download(rig.arena.address + slot * RECORD_BYTES, data)
    for slot, data in enumerate(reversed(slots)):
        rig.driver.upload(rig.arena.address + slot * RECORD_BYTES, data)
    rig.cache.check()
    with pytest.raises(BrokenCacheError, match="slot 0 does not hold the bytes of record 1"):
        rig.cache.check(rig.records.record)


def test_two_slots_that_swapped_owners_on_both_sides(rig: CacheRig) -> None:
    owner = rig.cache.snapshot().owner
    swap(rig, "owner", 0, 1)
    swap(rig, "slot_of", int(owner[0]), int(owner[1]))
    rig.cache.check()
    with pytest.raises(BrokenCacheError, match="does not hold the bytes"):
        rig.cache.check(rig.records.record)


def test_one_flipped_bit_of_a_slot(rig: CacheRig) -> None:
    last = np.zeros(1, np.uint8)
    address = rig.arena.address + 3 * RECORD_BYTES - 1
    rig.driver.download(address, last)
    rig.driver.upload(address, last ^ np.uint8(0x80))
    with pytest.raises(BrokenCacheError, match="slot 2"):
        rig.cache.check(rig.records.record)


@pytest.mark.parametrize(
    ("table", "index", "value", "complaint"),
    [
        ("owner", 0, 2, "do not know of it"),  # a record in two slots
        ("owner", 0, -1, "records say that they have slots"),
        ("owner", 0, 16, "do not exist"),
        ("owner", 0, -2, "do not exist"),
        ("owner", 7, 0, "beyond the 6"),
        ("slot_used", 7, 1, "beyond the 6"),
        ("slot_of", 0, 3, "records say that they have slots"),
        ("slot_of", 1, 9, "do not know of it"),
        ("slot_of", 1, -1, "do not know of it"),
        ("slot_used", 0, 0, "never used"),
        ("expert_used", 1, 0, "never used"),
        ("slot_used", 0, 3, "stamp of 3 at clock 2"),
        ("expert_used", 0, 3, "stamp of 3 at clock 2"),
    ],
)
def test_tables_that_contradict_each_other(rig: CacheRig, table: str, index: int, value: int, complaint: str) -> None:
    put(rig, table, index, value)
    with pytest.raises(BrokenCacheError, match=complaint):
        rig.cache.check()


def test_states_that_cannot_be(rig: CacheRig) -> None:
    rig.cache.tables.write_state(carry=1 << 16)
    with pytest.raises(BrokenCacheError, match="carry"):
        rig.cache.check()
    rig.cache.tables.write_state(carry=0, slots=7)
    with pytest.raises(BrokenCacheError, match="7 slots, the host 6"):
        rig.cache.check()
