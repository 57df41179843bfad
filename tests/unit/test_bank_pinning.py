"""Pinning: as much as the system allows, the same part of every bank, and what to do about the rest."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.base.units import MIB
from engine.device.driver import CannotPinError
from engine.device.sim import SimDriver
from engine.experts.pinning import HostRecords, PinnedBanks, pin_limit

RECORD = 4096


class Pin:
    def __init__(self, system: System, start: int, size: int) -> None:
        self._system, self.address, self._size = system, start + 2**40, size

    def free(self) -> None:
        self._system.pinned.remove((self.address - 2**40, self._size))


class System:
    """A system that pins up to `limit` bytes, and knows what is pinned. `at_call` lets one call fail otherwise."""

    def __init__(self, limit: int, at_call: int = -1, error: type[BaseException] = KeyboardInterrupt) -> None:
        self.limit, self.pinned, self.calls = limit, list[tuple[int, int]](), 0
        self._at_call, self._error = at_call, error

    def pin(self, view: memoryview, size: int) -> Pin:
        self.calls += 1
        if self.calls == self._at_call:
            raise self._error
        assert 0 < size <= len(view)
        if sum(taken for _, taken in self.pinned) + size > self.limit:
            raise CannotPinError(f"{self.limit} bytes may be pinned.", "Ask for more.")
        start = np.frombuffer(view, np.uint8).ctypes.data
        for other, taken in self.pinned:
            assert start >= other + taken or start + size <= other, "pinned twice"
        self.pinned.append((start, size))
        return Pin(self, start, size)


def records(*counts: int, record_bytes: int = RECORD) -> list[HostRecords]:
    return [HostRecords(memoryview(np.zeros(count * record_bytes, np.uint8)), record_bytes) for count in counts]


def test_without_a_limit_all_is_pinned_in_pieces_of_whole_records() -> None:
    banks, system = records(10, 3), System(10**9)
    pinned = PinnedBanks(system, banks, piece_bytes=4 * RECORD + 17)
    assert pinned.refusal is None
    assert pinned.bytes == 13 * RECORD
    reach = pinned.reach(0)
    start = np.frombuffer(banks[0].data, np.uint8).ctypes.data + 2**40
    assert (reach.records, reach.per_address) == (10, 4)
    assert reach.addresses == tuple(start + n * 4 * RECORD for n in range(3))
    assert pinned.reach(1).records == 3
    pinned.free()
    pinned.free()
    assert system.pinned == []
    assert pinned.reach(0).records == 0


def test_a_record_larger_than_a_piece_is_a_piece() -> None:
    reach = PinnedBanks(System(10**9), records(3), piece_bytes=100).reach(0)
    assert (reach.records, reach.per_address, len(reach.addresses)) == (3, 1, 3)


@given(
    st.lists(st.tuples(st.integers(0, 40), st.integers(1, 5)), max_size=4),
    st.integers(0, 150),
    st.integers(1, 12),
)
def test_the_most_that_can_be_pinned_is(shapes: list[tuple[int, int]], limit: int, piece: int) -> None:
    banks = [records(count, record_bytes=pages * RECORD)[0] for count, pages in shapes]
    system = System(limit * RECORD + 100)
    pinned = PinnedBanks(system, banks, piece * RECORD)
    left = system.limit - pinned.bytes
    assert left >= 0
    assert pinned.bytes == sum(size for _, size in system.pinned)
    for number, bank in enumerate(banks):
        reach = pinned.reach(number)
        first = np.frombuffer(bank.data, np.uint8).ctypes.data if bank.count else 0
        for record in range(reach.records):
            place = reach.addresses[record // reach.per_address] + record % reach.per_address * bank.record_bytes
            assert place == first + record * bank.record_bytes + 2**40
        if reach.records < bank.count:
            assert pinned.refusal is not None
            assert bank.record_bytes > left, "one more record could have been pinned"
    if all(pinned.reach(number).records == bank.count for number, bank in enumerate(banks)):
        assert pinned.refusal is None
    pinned.free()
    assert system.pinned == []


def test_a_limit_hits_all_banks_alike() -> None:
    pinned = PinnedBanks(System(60 * RECORD), records(100, 20), piece_bytes=RECORD)
    assert pinned.reach(0).records == pytest.approx(50, abs=1)
    assert pinned.reach(1).records == pytest.approx(10, abs=1)


@pytest.mark.parametrize("call", [1, 3, 6])
@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_whatever_interrupts_it_leaves_nothing_pinned(call: int, error: type[BaseException]) -> None:
    system = System(12 * RECORD, call, error)
    with pytest.raises(error):
        PinnedBanks(system, records(10, 10), 4 * RECORD)
    assert system.pinned == []
    assert system.calls == call


def test_the_simulated_device_pins_up_to_its_limit() -> None:
    banks = records(8)
    driver = SimDriver(memory=MIB, pin_limit=5 * RECORD)
    pinned = PinnedBanks(driver, banks, 2 * RECORD)
    assert pinned.reach(0).records == 5
    assert pinned.refusal is not None
    assert "may pin 20.0 KiB" in pinned.refusal.message
    again = PinnedBanks(driver, records(1))
    assert again.reach(0).records == 0
    pinned.free()
    assert PinnedBanks(driver, records(5)).refusal is None


@pytest.fixture
def proc(tmp_path: Path) -> Callable[[str], Path]:
    def write(release: str) -> Path:
        (tmp_path / "sys/kernel").mkdir(parents=True)
        (tmp_path / "sys/kernel/osrelease").write_text(release)
        return tmp_path

    return write


def test_the_limit_of_this_machine_and_its_remedy(proc: Callable[[str], Path], tmp_path: Path) -> None:
    bounded = pin_limit(8 * MIB, tmp_path)
    assert bounded.bytes == 8 * MIB
    assert "8.00 MiB" in bounded.sentence
    assert "ulimit -l unlimited" in bounded.remedy
    free = pin_limit(-1, tmp_path)
    assert (free.bytes, free.remedy) == (None, "")
    wsl = pin_limit(8 * MIB, proc("5.15.90.1-microsoft-standard-WSL2\n"))
    assert ".wslconfig" in wsl.remedy
