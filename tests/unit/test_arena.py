"""Slots of a bank on a device: addresses that stay, memory behind as many as are wanted."""

from __future__ import annotations

import numpy as np
import pytest

from engine.base.errors import NoRoomError
from engine.base.units import MIB
from engine.device.sim import SimDriver
from engine.experts.arena import SlotArena

RECORD = 12_288
CHUNK = 64 << 10


@pytest.fixture
def driver() -> SimDriver:
    return SimDriver(memory=4 * MIB, granularity=CHUNK)


def write(driver: SimDriver, arena: SlotArena, slot: int, value: int) -> None:
    driver.upload(arena.address + slot * arena.stride, np.full(RECORD, value, np.uint8))


def read(driver: SimDriver, arena: SlotArena, slot: int) -> int:
    out = np.empty(RECORD, np.uint8)
    driver.download(arena.address + slot * arena.stride, out)
    assert (out == out[0]).all()
    return int(out[0])


def test_slots_come_and_go_in_chunks_of_the_device(driver: SimDriver) -> None:
    arena = SlotArena(driver, RECORD, 100)
    assert (arena.slots, arena.mapped, arena.stride, arena.capacity) == (0, 0, RECORD, 100)
    address = arena.address
    for slots in (7, 100, 12, 7, 40):
        arena.map(slots)
        assert arena.slots == slots
        assert arena.mapped == -(-slots * RECORD // CHUNK) * CHUNK
        assert driver.memory()[1] == 4 * MIB - arena.mapped
        assert arena.address == address
    arena.map(0)
    assert driver.memory()[1] == 4 * MIB


def test_contents_survive_growing_and_shrinking(driver: SimDriver) -> None:
    arena = SlotArena(driver, RECORD, 200)
    arena.map(20)
    for slot in range(20):
        write(driver, arena, slot, slot + 1)
    for slots in (200, 21, 20, 150):
        arena.map(slots)
        assert [read(driver, arena, slot) for slot in range(20)] == list(range(1, 21))
    arena.map(5)
    assert [read(driver, arena, slot) for slot in range(5)] == list(range(1, 6))


def test_a_device_without_room_changes_nothing(driver: SimDriver) -> None:
    arena = SlotArena(driver, RECORD, 1000)
    arena.map(50)
    write(driver, arena, 49, 77)
    before = driver.memory()
    with pytest.raises(NoRoomError):
        arena.map(1000)
    assert (arena.slots, driver.memory()) == (50, before)
    assert read(driver, arena, 49) == 77
    arena.map(60)


def test_no_slots_take_no_addresses(driver: SimDriver) -> None:
    arena = SlotArena(driver, RECORD, 0)
    arena.map(0)
    assert (arena.address, arena.mapped) == (0, 0)
    assert driver.calls["reserve"] == 0
    with pytest.raises(AssertionError):
        arena.map(1)


def test_closing_gives_everything_back(driver: SimDriver) -> None:
    arena = SlotArena(driver, RECORD, 100)
    arena.map(30)
    arena.close()
    arena.close()
    assert driver.memory() == (4 * MIB, 4 * MIB)
    with pytest.raises(AssertionError):
        arena.map(1)
