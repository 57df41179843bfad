"""Banks in host memory: the bytes of the files, where record i lies, and what happens when something is short."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from engine import _native
from engine.base.errors import CorruptFileError, FreetokenError
from engine.base.units import GIB, MIB
from engine.device.sim import SimDriver
from engine.experts.bank import HostBank
from engine.files.ftw.opening import Ftw, open_model
from tests.hostile.ftw_folders import put

GOLDEN = Path(__file__).parent / "golden" / "tiny.ftw"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(GOLDEN, tmp_path / "tiny.ftw"))


@pytest.fixture
def ftw(folder: Path) -> Ftw:
    return open_model(folder)


@pytest.fixture
def driver() -> SimDriver:
    return SimDriver(memory=16 * MIB)


def reached(driver: SimDriver, bank: HostBank, number: int, record: int) -> bytes:
    """A record as the device finds it."""
    size = bank.records(number).record_bytes
    shard, place = divmod(record, bank.records_per_shard(number))
    out = np.empty(size, np.uint8)
    driver.download(bank.shard_addresses(number)[shard] + place * size, out)
    return out.tobytes()


def test_records_are_those_of_the_files_for_the_cpu_and_for_the_device(ftw: Ftw, driver: SimDriver) -> None:
    bank = HostBank.load(ftw, driver, GIB)
    assert len(bank) == len(ftw.banks) == 2
    for number, mapped in enumerate(ftw.banks):
        loaded = bank.records(number)
        assert len(mapped.shards) == 2
        assert len(loaded.shards) == 1
        assert bank.fillable(number) == loaded.count == loaded.records_per_shard == mapped.count
        assert (loaded.fields, loaded.layers) == (mapped.fields, mapped.layers)
        base = np.frombuffer(loaded.shards[0], np.uint8).ctypes.data
        for record in range(mapped.count):
            assert loaded.record(record) == mapped.record(record)
            assert reached(driver, bank, number, record) == bytes(mapped.record(record))
            address = np.frombuffer(loaded.record(record), np.uint8).ctypes.data
            assert address == base + record * loaded.record_bytes
        assert loaded.shards[0].readonly
    assert bank.notes == ()
    assert bank.loaded.bytes == sum(mapped.record_bytes * mapped.count for mapped in ftw.banks)
    assert bank.seconds > 0


def test_progress_rises_to_the_whole_pool(ftw: Ftw, driver: SimDriver) -> None:
    calls: list[tuple[int, int]] = []
    bank = HostBank.load(ftw, driver, GIB, lambda done, total: calls.append((done, total)))
    assert calls == sorted(calls)
    assert calls[-1] == (bank.loaded.bytes, bank.loaded.bytes)


def test_a_pool_larger_than_memory_stays_in_its_files(ftw: Ftw, driver: SimDriver) -> None:
    pool = sum(bank.record_bytes * bank.count for bank in ftw.banks)
    bank = HostBank.load(ftw, driver, pool - 1)
    assert bank.banks == ftw.banks
    assert [bank.fillable(number) for number in (0, 1)] == [0, 0]
    assert bank.shard_addresses(0) == ()
    assert len(bank.notes) == 1
    assert "stay on disk, and the CPU runs all of them" in bank.notes[0]
    assert driver.calls["pin"] == 0
    assert HostBank.load(ftw, driver, pool).fillable(0) == ftw.banks[0].count


def test_memory_that_the_system_refuses_leaves_the_pool_in_its_files(
    ftw: Ftw, driver: SimDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(size: int) -> None:
        raise MemoryError

    monkeypatch.setattr(_native, "host_memory", refuse)
    assert HostBank.load(ftw, driver, GIB).banks == ftw.banks


def test_what_cannot_be_pinned_is_left_to_the_cpu_with_one_line(ftw: Ftw) -> None:
    record = ftw.banks[0].record_bytes
    driver = SimDriver(memory=16 * MIB, pin_limit=3 * record)
    bank = HostBank.load(ftw, driver, GIB)
    assert 0 < bank.fillable(0) < ftw.banks[0].count
    for number, mapped in enumerate(ftw.banks):
        for index in range(mapped.count):
            assert bank.records(number).record(index) == mapped.record(index)
        for index in range(bank.fillable(number)):
            assert reached(driver, bank, number, index) == bytes(mapped.record(index))
    assert len(bank.notes) == 1
    assert "of experts could be pinned; the CPU runs the others. The simulated device may pin" in bank.notes[0]
    assert "\n" not in bank.notes[0]


def test_nothing_pinned_still_serves_the_cpu_from_memory(ftw: Ftw) -> None:
    bank = HostBank.load(ftw, SimDriver(memory=16 * MIB, pin_limit=0), GIB)
    assert [bank.fillable(number) for number in (0, 1)] == [0, 0]
    assert bank.records(1).record(1) == ftw.banks[1].record(1)
    assert "0 B of" in bank.notes[0]


def test_closing_unpins_and_leaves_borrowers_their_memory(ftw: Ftw) -> None:
    pool = sum(bank.record_bytes * bank.count for bank in ftw.banks)
    driver = SimDriver(memory=16 * MIB, pin_limit=pool)
    bank = HostBank.load(ftw, driver, GIB)
    borrowed = bank.records(0)
    bank.close()
    bank.close()
    assert bank.fillable(0) == 0
    again = HostBank.load(ftw, driver, GIB)
    assert again.fillable(0) == ftw.banks[0].count
    assert borrowed.record(2) == ftw.banks[0].record(2)


def test_a_node_that_is_not_there_changes_nothing(ftw: Ftw, driver: SimDriver) -> None:
    assert HostBank.load(ftw, driver, GIB, node=63).records(0).record(0) == ftw.banks[0].record(0)


def test_two_loads_at_once(ftw: Ftw) -> None:
    banks: list[HostBank] = []

    def load() -> None:
        banks.append(HostBank.load(ftw, SimDriver(memory=16 * MIB), GIB))

    threads = [threading.Thread(target=load) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(banks) == 2
    for bank in banks:
        assert bank.records(0).shards[0] == b"".join(ftw.banks[0].shards)
    assert banks[0].shard_addresses(0) != banks[1].shard_addresses(0)


# --- what goes wrong


def shard(folder: Path) -> Path:
    return folder / "experts-0-1.bank"


def test_a_file_that_has_gone_is_named(folder: Path, ftw: Ftw, driver: SimDriver) -> None:
    shard(folder).unlink()
    with pytest.raises(CorruptFileError, match=r"experts-0-1\.bank cannot be read: No such file") as caught:
        HostBank.load(ftw, driver, GIB)
    assert "--force" in caught.value.remedy
    assert driver.calls["pin"] == 0


def test_a_file_that_was_cut_says_what_is_missing(folder: Path, ftw: Ftw, driver: SimDriver) -> None:
    size = shard(folder).stat().st_size
    os.truncate(shard(folder), size - 500)
    with pytest.raises(CorruptFileError, match=rf"ends at byte {size - 500}, and 500 bytes from there on are missing"):
        HostBank.load(ftw, driver, GIB)


def test_a_folder_in_the_place_of_a_file_is_no_file(folder: Path, ftw: Ftw, driver: SimDriver) -> None:
    shard(folder).unlink()
    shard(folder).mkdir()
    with pytest.raises(CorruptFileError, match="not a regular file"):
        HostBank.load(ftw, driver, GIB)


def test_too_many_open_files_are_no_damage(ftw: Ftw, driver: SimDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(parts: object, out: object, progress: object) -> None:
        raise OSError(24, "Too many open files", str(ftw.folder))

    monkeypatch.setattr(_native, "read_files", refuse)
    with pytest.raises(FreetokenError, match="Too many open files") as caught:
        HostBank.load(ftw, driver, GIB)
    assert not isinstance(caught.value, CorruptFileError)


def test_a_model_that_is_replaced_while_it_is_read_is_refused(folder: Path, ftw: Ftw, driver: SimDriver) -> None:
    def replace(done: int, total: int) -> None:
        if done == total:
            put("provenance", "tool", value="another")(folder)

    with pytest.raises(CorruptFileError, match="was replaced while it was being read"):
        HostBank.load(ftw, driver, GIB, replace)
    assert driver.calls["pin"] == 0


def test_an_exception_of_the_progress_ends_the_load(ftw: Ftw, driver: SimDriver) -> None:
    def enough(done: int, total: int) -> None:
        raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        HostBank.load(ftw, driver, GIB, enough)
    assert driver.calls["pin"] == 0


# --- large reads by themselves


@pytest.fixture
def big_file(tmp_path: Path) -> Path:
    path = tmp_path / "big"
    path.write_bytes(np.random.default_rng(1).integers(0, 256, (9 << 20) + 777, np.uint8).tobytes())
    return path


@pytest.mark.parametrize("direct", [True, False])
def test_parts_of_files_lie_end_to_end(big_file: Path, direct: bool) -> None:
    size = big_file.stat().st_size
    parts = [(big_file, 4096, 5 << 20), (str(big_file), 1, 99), (os.fsencode(big_file), 0, size)]
    out = _native.host_memory(sum(length for _, _, length in parts))
    passed_by, seconds = _native.read_files(parts, out, lambda done, total: None, chunk=1 << 20, direct=direct)
    content = big_file.read_bytes()
    assert out.tobytes() == b"".join(content[start : start + length] for _, start, length in parts)
    assert (passed_by > 0) <= direct
    assert seconds > 0


def test_a_file_in_memory_is_read_as_any_other() -> None:
    shared = Path("/dev/shm")
    if not shared.is_dir():
        pytest.skip("this system has no file system in memory")
    path = shared / f"freetoken-test-{os.getpid()}"
    try:
        path.write_bytes(bytes(range(256)) * 100)
        out = np.empty(25_600, np.uint8)
        _native.read_files([(path, 0, 25_600)], out, lambda done, total: None)
        assert out.tobytes() == bytes(range(256)) * 100
    finally:
        path.unlink(missing_ok=True)


def test_parts_that_do_not_fill_the_memory_are_refused(big_file: Path) -> None:
    for length in (9, 11):
        with pytest.raises(ValueError, match="memory"):
            _native.read_files([(big_file, 0, length)], np.empty(10, np.uint8), lambda done, total: None)
    for bad in ({"threads": 0}, {"chunk": 0}):
        with pytest.raises(ValueError, match="reading takes"):
            _native.read_files([(big_file, 0, 10)], np.empty(10, np.uint8), lambda done, total: None, **bad)


def test_no_file_stays_open(big_file: Path, tmp_path: Path) -> None:
    def open_files() -> int:
        return len(os.listdir("/proc/self/fd"))

    before = open_files()
    out = _native.host_memory(1 << 20)
    for _ in range(20):
        _native.read_files([(big_file, 0, 1 << 20)], out, lambda done, total: None)
        with pytest.raises(FileNotFoundError) as caught:
            _native.read_files([(big_file, 0, 1 << 19), (tmp_path / "absent", 0, 1 << 19)], out, lambda *_: None)
        assert caught.value.filename == tmp_path / "absent"
    assert open_files() == before


def test_host_memory_is_zeroed_aligned_and_freed() -> None:
    memory = _native.host_memory(5 << 20)
    assert memory.size == 5 << 20
    assert not memory.any()
    assert memory.ctypes.data % (2 << 20) == 0
    assert _native.host_memory(0).size == 0
    with pytest.raises(MemoryError):
        _native.host_memory(1 << 60)


LONG_READ = """
import sys
from engine import _native
size = int(sys.argv[2])
out = _native.host_memory(size)
print("reading", flush=True)
while True:
    _native.read_files([(sys.argv[1], 0, size)], out, lambda done, total: None, threads=1, chunk=4096)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_end_a_long_read_at_once(big_file: Path, number: signal.Signals) -> None:
    command = [sys.executable, "-c", LONG_READ, str(big_file), str(big_file.stat().st_size)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "reading\n"
        time.sleep(0.3)
        process.send_signal(number)
        began = time.monotonic()
        _, errors = process.communicate(timeout=30)
        assert time.monotonic() - began < 10  # a loaded machine is slow to end a process
    if number == signal.SIGINT:
        assert "KeyboardInterrupt" in errors
    else:
        assert process.returncode == -signal.SIGTERM
