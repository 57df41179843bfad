"""The machine as control groups and the page cache leave it, read from made-up pseudo file systems."""

from pathlib import Path

import pytest

from engine.base.hardware import read_hardware, read_memory

GIB = 2**30


@pytest.fixture
def machine(tmp_path: Path) -> tuple[Path, Path]:
    """16 GiB of memory, 10 GiB available, this process in the group /box."""
    proc, sys = tmp_path / "proc", tmp_path / "sys"
    (proc / "self").mkdir(parents=True)
    (proc / "meminfo").write_text(
        f"MemTotal: {16 * GIB // 1024} kB\nMemFree: {1 * GIB // 1024} kB\nMemAvailable: {10 * GIB // 1024} kB\n"
    )
    (proc / "cpuinfo").write_text("model name\t: Model X\nflags\t\t: fma avx2 avx512f avx512_vnni\n")
    (proc / "self/cgroup").write_text("0::/box/inner\n")
    (sys / "fs/cgroup/box/inner").mkdir(parents=True)
    return proc, sys


def _group(folder: Path, limit: str, current: int, cache: int) -> None:
    (folder / "memory.max").write_text(f"{limit}\n")
    (folder / "memory.current").write_text(f"{current}\n")
    (folder / "memory.stat").write_text(f"anon 1\ninactive_file {cache // 2}\nactive_file {cache // 2}\n")


def test_without_limits_the_machine_decides(machine: tuple[Path, Path]) -> None:
    assert read_memory(*machine) == (16 * GIB, 10 * GIB)


def test_page_cache_of_a_group_is_not_used_memory(machine: tuple[Path, Path]) -> None:
    _group(machine[1] / "fs/cgroup/box/inner", str(4 * GIB), current=3 * GIB, cache=2 * GIB)
    assert read_memory(*machine) == (4 * GIB, 3 * GIB)


def test_a_parent_group_limits_too(machine: tuple[Path, Path]) -> None:
    _group(machine[1] / "fs/cgroup/box/inner", "max", current=0, cache=0)
    _group(machine[1] / "fs/cgroup/box", str(2 * GIB), current=GIB, cache=0)
    assert read_memory(*machine) == (2 * GIB, GIB)


def test_memory_high_limits_as_well(machine: tuple[Path, Path]) -> None:
    inner = machine[1] / "fs/cgroup/box/inner"
    _group(inner, str(8 * GIB), current=GIB, cache=0)
    (inner / "memory.high").write_text(str(3 * GIB))
    assert read_memory(*machine) == (3 * GIB, 2 * GIB)


def test_version_one_groups(machine: tuple[Path, Path]) -> None:
    proc, sys = machine
    (proc / "self/cgroup").write_text("5:cpu,memory:/box\n")
    folder = sys / "fs/cgroup/memory/box"
    folder.mkdir(parents=True)
    (folder / "memory.limit_in_bytes").write_text(str(2 * GIB))
    (folder / "memory.usage_in_bytes").write_text(str(GIB))
    (folder / "memory.stat").write_text(f"total_inactive_file {GIB // 2}\ntotal_active_file 0\n")
    assert read_memory(proc, sys) == (2 * GIB, 2 * GIB - GIB // 2)


def test_the_processor_and_what_it_can(machine: tuple[Path, Path]) -> None:
    found = read_hardware(*machine)
    assert found.cpu == "Model X"
    assert found.isa == ("avx2", "fma", "avx512f", "avx512_vnni")


def test_an_empty_machine_is_survived(tmp_path: Path) -> None:
    assert read_memory(tmp_path, tmp_path) == (0, 0)
    assert read_hardware(tmp_path, tmp_path).isa == ()


def test_the_real_machine() -> None:
    found = read_hardware()
    assert 0 < found.memory_available <= found.memory_total
    assert found.cpu
