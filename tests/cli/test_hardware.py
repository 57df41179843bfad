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


def _group(folder: Path, limit: str, current: int, cache: int, cpu: str = "max 100000") -> None:
    (folder / "memory.max").write_text(f"{limit}\n")
    (folder / "memory.current").write_text(f"{current}\n")
    (folder / "memory.stat").write_text(f"anon 1\ninactive_file {cache // 2}\nactive_file {cache // 2}\n")
    (folder / "cpu.max").write_text(f"{cpu}\n")


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
    (proc / "self/cgroup").write_text("5:cpu,cpuacct:/box\n4:memory:/box\n")
    folder = sys / "fs/cgroup/memory/box"
    folder.mkdir(parents=True)
    (folder / "memory.limit_in_bytes").write_text(str(2 * GIB))
    (folder / "memory.usage_in_bytes").write_text(str(GIB))
    (folder / "memory.stat").write_text(f"total_inactive_file {GIB // 2}\ntotal_active_file 0\n")
    cpu = sys / "fs/cgroup/cpu/box"
    cpu.mkdir(parents=True)
    (cpu / "cpu.cfs_quota_us").write_text("150000")
    (cpu / "cpu.cfs_period_us").write_text("100000")
    assert read_memory(proc, sys) == (2 * GIB, 2 * GIB - GIB // 2)
    assert read_hardware(proc, sys).usable_cores == 1


def test_a_quota_below_one_core_leaves_one_thread(machine: tuple[Path, Path]) -> None:
    _group(machine[1] / "fs/cgroup/box", "max", 0, 0, cpu="50000 100000")
    assert read_hardware(*machine).usable_cores == 1


def test_siblings_share_a_core(machine: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    proc, sys = machine
    for cpu in range(4):
        topology = sys / f"devices/system/cpu/cpu{cpu}/topology"
        topology.mkdir(parents=True)
        (topology / "core_id").write_text(str(cpu // 2))
        (topology / "physical_package_id").write_text("0")
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 1, 2, 3})
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    found = read_hardware(proc, sys)
    assert (found.logical_cpus, found.physical_cores, found.usable_cores) == (4, 2, 2)
    assert found.cpu == "Model X"
    assert found.isa == ("avx2", "fma", "avx512f", "avx512_vnni")


def test_an_empty_machine_is_survived(tmp_path: Path) -> None:
    assert read_memory(tmp_path, tmp_path) == (0, 0)
    assert read_hardware(tmp_path, tmp_path).usable_cores >= 1


def test_the_real_machine() -> None:
    found = read_hardware()
    assert 0 < found.memory_available <= found.memory_total
    assert 1 <= found.usable_cores <= found.logical_cpus
