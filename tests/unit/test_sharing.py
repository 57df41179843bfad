"""Fills beside experts: the fit finds the machine that made the runs, and the distance of Eq. 2 is what it is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from engine.base.errors import FreetokenError
from engine.base.profile import (
    LinkRate,
    Machine,
    Profile,
    Rate,
    ReadRate,
    SharedRun,
    load_profile,
    profile_of,
    save_profile,
)
from engine.device.sim import SimDriver
from engine.experts.sharing import distance_of_eq2, eq2_seconds, fit_timing
from engine.experts.split import Branch, Timing
from engine.measure.probe import ExpertShape
from engine.measure.shared_memory import MISSES, DeviceSharedMeter, FillLoop, measure_sharing
from engine.worker.split_start import split_start


class Machinery:
    """A meter of a machine whose times are known."""

    def __init__(self, timing: Timing) -> None:
        self.timing = timing
        self.calls: list[tuple[int, int]] = []

    def run(self, misses: int, fills: int) -> tuple[float, float]:
        self.calls.append((misses, fills))
        return self.timing.times(misses, fills)


def test_the_fit_finds_the_machine() -> None:
    timing = Timing(Branch(8e-6, 70e-6), Branch(5e-6, 30e-6), fill_slowed=0.05, cpu_slowed=0.5)
    meter = Machinery(timing)
    found = fit_timing(measure_sharing(meter, rounds=2))
    assert found.fill.per_record == pytest.approx(70e-6)
    assert found.cpu.per_record == pytest.approx(30e-6)
    assert found.fill.latency == pytest.approx(8e-6)
    assert found.cpu.latency == pytest.approx(5e-6)
    assert found.fill_slowed == pytest.approx(0.05)
    assert found.cpu_slowed == pytest.approx(0.5)
    assert found.fraction == pytest.approx(timing.fraction)
    assert meter.calls.count((MISSES, 3)) == 2


def test_eq2_is_exact_on_the_machine_that_it_describes_and_off_on_another() -> None:
    """Under Eq. 2 the CPU loses B_P / B_H while fills run, and nothing has a latency."""
    fill, cpu = Branch(0.0, 90e-6), Branch(0.0, 30e-6)
    ideal = Timing(fill, cpu, cpu_slowed=30 / 90)
    runs = measure_sharing(Machinery(ideal), rounds=1)
    short = [run for run in runs if run.fill_seconds >= run.cpu_seconds]  # until q*, the CPU is slowed all the time
    exact = distance_of_eq2(short, fit_timing(runs))
    assert exact is not None
    assert exact.step.largest == pytest.approx(0, abs=1e-6)
    rough = distance_of_eq2(measure_sharing(Machinery(Timing(fill, cpu, 0.4, 0.6)), 1), fit_timing(runs))
    assert rough is not None
    assert exact.cpu.largest == pytest.approx(0, abs=1e-6)
    assert rough.step.largest > 0.1
    assert rough.cpu.largest >= rough.cpu.mean > 0.1
    assert eq2_seconds(8, 8, 90e-6, 30e-6) == pytest.approx(720e-6)
    assert eq2_seconds(8, 0, 90e-6, 30e-6) == pytest.approx(240e-6)


def test_eq2_says_nothing_where_the_cpu_has_no_more_than_the_link() -> None:
    timing = Timing(Branch(0.0, 20e-6), Branch(0.0, 30e-6))
    assert distance_of_eq2(measure_sharing(Machinery(timing), 1), timing) is None


def test_the_simulated_device_is_measured_by_the_real_kernels() -> None:
    driver = SimDriver(64 << 20)
    meter = DeviceSharedMeter(driver, ExpertShape("q4_0", 256, 128), 1, sizes=[4096], buffer_bytes=2 << 20)
    try:
        links = meter.link_rates(rounds=1)
        runs = measure_sharing(meter, rounds=1)
    finally:
        meter.close()
    assert driver.memory()[1] == driver.memory()[0]
    assert driver.counters("fill").launches > 0
    assert [entry.record_bytes for entry in links] == [4096, meter.record_bytes]
    for run in runs:
        assert (run.fill_seconds > 0) == (run.fills > 0)
        assert (run.cpu_seconds > 0) == (run.fills < run.misses)
    assert 0 < fit_timing(runs).fraction < 1


MACHINE = Machine("cpu", 2, 24, "avx2", "0.1.0")


def profile_with_runs() -> Profile:
    rate = Rate(10.0, 9.0, 11.0, 3)
    runs = measure_sharing(Machinery(Timing(Branch(1e-6, 60e-6), Branch(1e-6, 20e-6), 0.0, 0.3)), 1)
    return Profile(
        MACHINE, "2026-01-01", (ReadRate(1, rate),), (), rate, "a device", "GPU-1", 4096, (LinkRate(4096, rate),), runs
    )


def test_a_devices_profile_lies_beside_that_of_the_cpu_and_comes_back(tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    assert profile_of(path, "cpu") == path
    assert profile_of(path, "sim") == tmp_path / "profile-sim.json"
    profile = profile_with_runs()
    save_profile(profile, path)
    assert load_profile(path, MACHINE, "GPU-1") == profile


def test_the_profile_of_another_device_is_refused_by_name_and_a_step_starts_from_the_right_one(tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    save_profile(profile_with_runs(), path)
    with pytest.raises(FreetokenError, match="measured with device 'GPU-1', here it is 'GPU-2'"):
        load_profile(path, MACHINE, "GPU-2")
    start = split_start(str(path), MACHINE, frozenset({"q4_0"}), "GPU-1")
    assert start.split.fraction == pytest.approx(fit_timing(profile_with_runs().runs).fraction)
    assert not start.notes
    other = split_start(str(path), MACHINE, frozenset({"q4_0"}), "GPU-2")
    assert "here it is 'GPU-2'" in other.notes[0]


def test_a_link_that_never_ends_first_is_still_seen_to_be_slowed() -> None:
    timing = Timing(Branch(0.0, 500e-6), Branch(0.0, 10e-6), fill_slowed=0.3, cpu_slowed=0.2)
    runs = measure_sharing(Machinery(timing), 1)
    assert all(run.fill_seconds > run.cpu_seconds for run in runs if 0 < run.fills < run.misses)
    found = fit_timing(runs)
    assert (found.fill_slowed, found.cpu_slowed) == (pytest.approx(0.3), pytest.approx(0.2))


@pytest.mark.parametrize(
    ("run", "words"),
    [((8, 9, 1.0, 0.0), "9 fills of 8"), ((8, 4, 0.0, 1.0), "4 records in 0"), ((2, 2, 1.0, 1.0), "0 records in 1")],
)
def test_a_run_that_cannot_be_is_refused(run: tuple[int, int, float, float], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        SharedRun(*run)


def test_runs_without_a_branch_alone_are_refused() -> None:
    with pytest.raises(ValueError, match="each branch alone"):
        replace(profile_with_runs(), runs=(SharedRun(8, 4, 1.0, 1.0),))


def test_fills_of_the_loop_are_the_records_that_it_chose() -> None:
    driver = SimDriver(64 << 20)
    source = driver.host(6 * 4096)
    source.array[:] = np.repeat(np.arange(1, 7, dtype=np.uint8), 4096)
    loop = FillLoop(driver, source, 4096)
    loop.prepare(4096, MISSES)
    loop.run(4096, MISSES, 2)
    slots = np.zeros(MISSES * 4096, np.uint8)
    driver.download(loop.slots, slots)
    rows = slots.reshape(MISSES, 4096)
    assert (rows == rows[:, :1]).all()
    assert set(rows[:, 0]) <= set(range(1, 7))
    assert len(set(rows[:, 0])) > 1
    loop.close()
    source.free()
