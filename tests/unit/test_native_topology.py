"""Which CPUs threads are put on, over made-up machines."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine import _native


class Machine:
    """A tree of sys/ and proc/ files."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def write(self, path: str, text: str) -> Machine:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text + "\n")
        return self

    def cpus(self, cores: list[tuple[int, int]]) -> Machine:
        """CPU i is on (package, core) `cores[i]`."""
        self.write("sys/devices/system/cpu/online", f"0-{len(cores) - 1}")
        for cpu, (package, core) in enumerate(cores):
            self.write(f"sys/devices/system/cpu/cpu{cpu}/topology/physical_package_id", str(package))
            self.write(f"sys/devices/system/cpu/cpu{cpu}/topology/core_id", str(core))
        return self

    def threads(self, allowed: list[int]) -> int:
        return int(_native.topology(str(self.root), allowed)["threads"])

    def placement(self, threads: int, allowed: list[int]) -> list[int]:
        return _native.placement(threads, str(self.root), allowed)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_hardware_siblings_share_one_thread(machine: Machine) -> None:
    machine.cpus([(0, 0), (0, 1), (0, 0), (0, 1), (1, 0), (1, 1)])
    assert machine.threads([0, 1, 2, 3, 4, 5]) == 4
    assert machine.placement(4, [0, 1, 2, 3, 4, 5]) == [0, 1, 4, 5]
    assert machine.placement(7, [0, 1, 2, 3, 4, 5]) == [0, 1, 4, 5, 2, 3, -1]


def test_only_allowed_and_online_cpus_count(machine: Machine) -> None:
    machine.cpus([(0, i) for i in range(8)])
    assert machine.threads([2, 3, 6, 9]) == 3
    assert machine.placement(3, [6, 3, 2, 9]) == [2, 3, 6]


def test_the_second_sibling_stands_in_where_the_first_is_forbidden(machine: Machine) -> None:
    machine.cpus([(0, 0), (0, 1), (0, 0), (0, 1)])
    assert machine.placement(2, [1, 2]) == [1, 2]


def test_one_thread_is_left_to_the_kernel(machine: Machine) -> None:
    machine.cpus([(0, 0), (0, 1)])
    assert machine.placement(1, [0, 1]) == [-1]


def test_big_cores_come_first_on_hybrid_processors(machine: Machine) -> None:
    machine.cpus([(0, 0), (0, 1), (0, 2), (0, 2), (0, 3), (0, 3)])
    machine.write("sys/devices/cpu_atom/cpus", "0-1")
    everything = [0, 1, 2, 3, 4, 5]
    assert machine.threads(everything) == 2
    assert machine.placement(6, everything) == [2, 4, 0, 1, 3, 5]
    assert machine.threads([0, 1]) == 2, "small cores are used where there is nothing else"


def test_capacities_tell_big_cores_from_small_ones(machine: Machine) -> None:
    machine.cpus([(0, i) for i in range(4)])
    for cpu, capacity in enumerate((446, 1024, 446, 1024)):
        machine.write(f"sys/devices/system/cpu/cpu{cpu}/cpu_capacity", str(capacity))
    assert machine.threads([0, 1, 2, 3]) == 2
    assert machine.placement(3, [0, 1, 2, 3]) == [1, 3, 0]


@pytest.mark.parametrize(("limit", "threads"), [("max 100000", 4), ("250000 100000", 2), ("30000 100000", 1)])
def test_a_quota_of_version_two_bounds_the_threads(machine: Machine, limit: str, threads: int) -> None:
    machine.cpus([(0, i) for i in range(4)])
    machine.write("proc/self/cgroup", "0::/user.slice/mine").write("sys/fs/cgroup/user.slice/mine/cpu.max", limit)
    assert machine.threads([0, 1, 2, 3]) == threads


def test_the_smallest_quota_of_all_ancestors_counts(machine: Machine) -> None:
    machine.cpus([(0, i) for i in range(4)])
    machine.write("proc/self/cgroup", "0::/outer/inner")
    machine.write("sys/fs/cgroup/outer/cpu.max", "200000 100000")
    machine.write("sys/fs/cgroup/outer/inner/cpu.max", "300000 100000")
    topology = _native.topology(str(machine.root), [0, 1, 2, 3])
    assert (topology["quota"], topology["threads"]) == (2.0, 2)


def test_a_container_reads_the_quota_at_its_own_top(machine: Machine) -> None:
    machine.cpus([(0, i) for i in range(4)])
    machine.write("proc/self/cgroup", "0::/../../elsewhere").write("sys/fs/cgroup/cpu.max", "100000 100000")
    assert machine.threads([0, 1, 2, 3]) == 1


@pytest.mark.parametrize(("quota", "threads"), [("-1", 4), ("350000", 3)])
def test_a_quota_of_version_one_bounds_the_threads(machine: Machine, quota: str, threads: int) -> None:
    machine.cpus([(0, i) for i in range(4)])
    machine.write("proc/self/cgroup", "5:memory:/m\n4:cpu,cpuacct:/mine\n0::/")
    machine.write("sys/fs/cgroup/cpu,cpuacct/mine/cpu.cfs_quota_us", quota)
    machine.write("sys/fs/cgroup/cpu,cpuacct/mine/cpu.cfs_period_us", "100000")
    assert machine.threads([0, 1, 2, 3]) == threads


def test_a_machine_that_tells_nothing_has_a_core_for_each_cpu(machine: Machine) -> None:
    assert machine.threads([0, 1, 2]) == 3
    machine.write("sys/devices/system/cpu/online", "rubbish")
    assert machine.threads([0, 1, 2]) == 3


def test_this_machine_has_at_least_one_thread() -> None:
    topology = _native.topology()
    assert 1 <= topology["threads"] <= len(topology["cpus"])
    assert set(topology["placement"]) <= {-1, *topology["cpus"]}
