"""The simulated device: memory, work that is done late, signals, and what a device would refuse."""

from __future__ import annotations

import ctypes
import threading

import numpy as np
import pytest

from engine import _native
from engine.base.errors import NoRoomError
from engine.device.driver import CannotPinError
from engine.device.kernels import KERNELS, KernelSource, signature, signatures
from engine.device.regions import Account, AddressBook, PinnedMemory
from engine.device.sim import SimDriver
from tests.unit.device_work import add_rows, words

MIB = 1 << 20


@pytest.fixture
def driver() -> SimDriver:
    return SimDriver(memory=64 * MIB)


# -- memory


def test_memory_is_zero_and_counted(driver: SimDriver) -> None:
    assert driver.memory() == (64 * MIB, 64 * MIB)
    memory = driver.allocate(1000)
    assert memory.size == 1000
    assert memory.address % 256 == 0
    assert driver.memory()[1] == 64 * MIB - 1024
    assert words(driver, memory.address, 250) == [0] * 250
    memory.free()
    memory.free()
    assert driver.memory()[1] == 64 * MIB


def test_more_than_there_is_is_refused_and_changes_nothing(driver: SimDriver) -> None:
    kept = driver.allocate(48 * MIB)
    with pytest.raises(NoRoomError, match=r"16\.0 MiB of 64\.0 MiB free, and 17\.0 MiB are needed"):
        driver.allocate(17 * MIB)
    assert driver.memory()[1] == 16 * MIB
    driver.allocate(16 * MIB)
    kept.free()
    assert driver.memory()[1] == 48 * MIB


def test_what_the_system_has_not_is_refused(driver: SimDriver) -> None:
    huge = SimDriver(memory=1 << 62)
    with pytest.raises(NoRoomError, match="system has no"):
        huge.allocate(1 << 60)
    assert huge.memory()[1] == 1 << 62


def test_a_range_keeps_what_stays_mapped(driver: SimDriver) -> None:
    room = driver.reserve(9 * MIB)
    assert (room.granularity, room.size, room.mapped) == (2 * MIB, 10 * MIB, 0)
    room.map(3 * MIB)
    assert room.mapped == 4 * MIB
    assert driver.memory()[1] == 60 * MIB
    data = np.arange(MIB, dtype=np.uint32)
    driver.upload(room.address, data)
    room.map(2 * MIB)
    room.map(10 * MIB)
    out = np.ones(MIB, np.uint32)
    driver.download(room.address, out)
    half = MIB // 2
    assert np.array_equal(out[:half], data[:half])
    room.free()
    assert driver.memory()[1] == 64 * MIB


def test_a_range_that_finds_no_memory_stays_as_it_is(driver: SimDriver) -> None:
    room = driver.reserve(100 * MIB)
    room.map(10 * MIB)
    driver.upload(room.address, np.array([5], np.uint32))
    with pytest.raises(NoRoomError):
        room.map(80 * MIB)
    assert room.mapped == 10 * MIB
    assert driver.memory()[1] == 54 * MIB
    assert words(driver, room.address) == [5]


def test_pages_beyond_a_range_are_given_back(driver: SimDriver) -> None:
    room = driver.reserve(8 * MIB)
    room.map(8 * MIB)
    driver.upload(room.address + 4 * MIB, np.array([5], np.uint32))
    room.map(2 * MIB)
    with pytest.raises(AssertionError, match="no memory of the device"):
        driver.upload(room.address + 4 * MIB, np.array([5], np.uint32))
    room.map(8 * MIB)
    assert words(driver, room.address + 4 * MIB) == [0]


def test_host_memory_is_the_same_bytes_on_both_sides(driver: SimDriver) -> None:
    host = driver.host(4096)
    assert host.array.dtype == np.uint8
    assert host.array.shape == (4096,)
    host.array[:4] = [1, 0, 0, 0]
    assert words(driver, host.address) == [1]
    assert driver.memory()[1] == 64 * MIB
    host.free()


def test_what_is_pinned_is_where_it_was() -> None:
    driver = SimDriver(memory=MIB, pin_limit=4096)
    array = np.arange(2000, dtype=np.uint32)
    pinned = driver.pin(array, 4000)
    assert words(driver, pinned.address + 40) == [10]
    with pytest.raises(AssertionError, match="no memory of the device"):
        words(driver, pinned.address + 4000)
    with pytest.raises(CannotPinError, match=r"may pin 4\.00 KiB .* 96 B of it are left, and 200 B are needed"):
        driver.pin(np.zeros(200, np.uint8), 200)
    with pytest.raises(CannotPinError):
        driver.host(200)
    pinned.free()
    pinned.free()
    driver.pin(memoryview(b"x" * 4096), 4096)


def test_memory_is_pinned_once(driver: SimDriver) -> None:
    array = np.zeros(4096, np.uint8)
    first = driver.pin(array[:2048], 2048)
    driver.pin(array[2048:], 1000)
    for again in (array, array[1024:], array[2040:2060]):
        with pytest.raises(AssertionError, match="known already"):
            driver.pin(again, again.size)
    first.free()
    driver.pin(array[:2048], 2048)


def test_a_refused_pin_costs_nothing() -> None:
    account = Account(1000, lambda size, free, total: CannotPinError("no"))
    book = AddressBook()
    array = np.zeros(600, np.uint8)
    PinnedMemory(array, account, book, lambda: None)
    with pytest.raises(CannotPinError):
        PinnedMemory(np.zeros(600, np.uint8), account, book, lambda: None)
    with pytest.raises(AssertionError):
        PinnedMemory(array[:300], account, book, lambda: None)
    assert account.used == 600


@pytest.mark.parametrize("offset", [-4, 997, 1024])
def test_copies_stay_inside_memory(driver: SimDriver, offset: int) -> None:
    memory = driver.allocate(1000)
    with pytest.raises(AssertionError, match="no memory of the device"):
        driver.upload(memory.address + offset, np.zeros(4, np.uint8))
    with pytest.raises(AssertionError, match="no memory of the device"):
        driver.download(memory.address + offset, np.zeros(4, np.uint8))
    stream = driver.stream()
    driver.copy(stream, memory.address + offset, memory.address, 4)
    with pytest.raises(AssertionError, match="no memory of the device"):
        driver.synchronise(stream)


# -- work


def test_work_is_done_at_synchronise(driver: SimDriver) -> None:
    stream, memory = driver.stream("main"), driver.allocate(64)
    driver.write_value(stream, memory.address, 3)
    driver.copy(stream, memory.address + 4, memory.address, 4)
    assert words(driver, memory.address, 2) == [0, 0]
    driver.synchronise(stream)
    assert words(driver, memory.address, 2) == [3, 3]


def test_synchronise_waits_for_what_comes_before_and_for_no_more(driver: SimDriver) -> None:
    main, side, other = driver.stream("main"), driver.stream("side"), driver.stream("other")
    memory = driver.allocate(64)
    driver.write_value(side, memory.address, 1)
    event = driver.record(side)
    driver.write_value(side, memory.address + 4, 1)
    driver.write_value(other, memory.address + 8, 1)
    driver.wait_event(main, event)
    driver.write_value(main, memory.address + 12, 1)
    driver.synchronise(main)
    assert words(driver, memory.address, 4) == [1, 0, 0, 1]
    driver.synchronise(side)
    assert words(driver, memory.address, 4) == [1, 1, 0, 1]
    memory.free()  # waits for all


def test_streams_that_no_event_joins_come_in_any_order() -> None:
    seen = set()
    for seed in range(20):
        driver = SimDriver(memory=MIB, seed=seed)
        memory = driver.allocate(64)
        main, side = driver.stream("main"), driver.stream("side")
        driver.write_value(side, memory.address, 1)
        driver.write_value(main, memory.address, 2)
        end = driver.record(side)
        driver.wait_event(main, end)
        driver.synchronise(main)
        seen.add(words(driver, memory.address)[0])
    assert seen == {1, 2}


def test_kernels_compute_what_they_are_given(driver: SimDriver) -> None:
    stream, memory = driver.stream(), driver.allocate(4096)
    driver.upload(memory.address, np.array([1.5, 2.0, 3.0, 4.0], np.float32))
    live = memory.address + 1024
    driver.upload(live, np.array([3], np.int32))
    add_rows(driver, stream, memory.address, memory.address, memory.address + 256, 4, live, scale=2.0)
    driver.synchronise(stream)
    out = np.zeros(4, np.float32)
    driver.download(memory.address + 256, out)
    assert out.tolist() == [4.5, 6.0, 9.0, 0.0]
    assert driver.counters("add_rows").launches == 1
    assert driver.counters("plan").launches == 0


def test_a_launch_is_checked_by_the_table(driver: SimDriver) -> None:
    stream, memory = driver.stream(), driver.allocate(4096)
    kernel = driver.kernel("add_rows")
    at = memory.address
    good: list[int | float] = [at, 1, at, 1, 1.0, 1, at, at, 1]
    driver.launch(stream, kernel, (1, 1, 1), 32, good)
    for place, wrong in ((1, 1.5), (1, 1 << 31), (0, -1), (0, "x"), (0, 12345), (6, at + 8192)):
        args = [*good]
        args[place] = wrong  # type: ignore[call-overload]
        with pytest.raises(AssertionError, match="add_rows"):
            driver.launch(stream, kernel, (1, 1, 1), 32, args)
    with pytest.raises(AssertionError, match="add_rows takes"):
        driver.launch(stream, kernel, (1, 1, 1), 32, good[:-1])
    with pytest.raises(AssertionError, match="there is no kernel"):
        driver.kernel("nothing")


def test_a_failure_of_the_device_is_told_at_synchronise(driver: SimDriver) -> None:
    stream, memory = driver.stream(), driver.allocate(4096)
    at = memory.address
    driver.launch(stream, driver.kernel("add_rows"), (1, 1, 1), 33, [at, 1, at, 1, 1.0, 1, at, at, 1])
    driver.write_value(stream, at, 9)
    with pytest.raises(_native.KernelError, match="add_rows is launched with 33 threads"):
        driver.synchronise(stream)
    driver.synchronise(stream)
    assert words(driver, at) == [0]  # what came behind it is not done


def test_every_emulated_kernel_is_in_the_table_with_its_parameters() -> None:
    emulated = {name: parameters for name, parameters, _ in _native.sim_kernels()}
    assert emulated == {name: kernel.parameters for name, kernel in signatures().items()}
    assert len({source.name for source in KERNELS}) == len(KERNELS)
    driver = SimDriver(memory=MIB)
    for name in emulated:
        assert driver.kernel(name).name == name


def test_arguments_lie_in_slots_of_eight_bytes() -> None:
    kernel = signature("add_rows")
    assert kernel.parameters == "pipifippi"
    slots = kernel.pack([1 << 40, -1, 0, 0, 1.0, 0, 0, 0, 0])
    assert len(slots) == 72
    assert slots[:16] == (1 << 40).to_bytes(8, "little") + b"\xff\xff\xff\xff\0\0\0\0"
    assert slots[32:40] == b"\0\0\x80\x3f\0\0\0\0"
    assert KernelSource("x", "x.cu", "p").parameters == "p"


# -- signals


def test_a_wait_holds_its_stream_until_the_host_answers(driver: SimDriver) -> None:
    stream, box = driver.stream(), driver.host(4096)
    request, done = box.address, box.address + 64

    def serve() -> None:
        while not _native.wait_word(request, 5, 0.1):
            pass
        box.array[128] = 7
        _native.store_word(done, 5)

    server = threading.Thread(target=serve)
    server.start()
    seen: list[int] = []
    driver.write_value(stream, request, 5)
    driver.wait_value(stream, done, 5)
    driver.native(stream, "look", lambda: seen.append(int(box.array[128])))
    driver.synchronise(stream)
    server.join()
    assert seen == [7]


def test_a_signal_that_never_comes_is_an_error() -> None:
    driver = SimDriver(memory=MIB, patience=0.3)
    stream, memory = driver.stream(), driver.allocate(64)
    driver.wait_value(stream, memory.address, 1)
    with pytest.raises(AssertionError, match="nobody wrote 1"):
        driver.synchronise(stream)


def test_a_host_function_is_called_in_order(driver: SimDriver) -> None:
    stream, memory = driver.stream(), driver.allocate(64)
    seen: list[tuple[int | None, list[int]]] = []

    @ctypes.CFUNCTYPE(None, ctypes.c_void_p)
    def note(argument: int | None) -> None:
        seen.append((argument, words(driver, memory.address)))

    function = ctypes.cast(note, ctypes.c_void_p).value
    assert function is not None
    driver.write_value(stream, memory.address, 4)
    driver.host_function(stream, function, 99)
    driver.synchronise(stream)
    assert seen == [(99, [4])]
