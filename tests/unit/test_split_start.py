"""How misses are divided before a step has been measured: what a probe's runs are worth to the first steps."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.base.profile import LinkRate, Machine, Profile, Rate, ReadRate, save_profile
from engine.experts.balance import Balancer
from engine.experts.contention import VirtualMachine
from engine.experts.machines import MACHINES
from engine.experts.split import DEFAULT_SPLIT, Branch, Split, Timing
from engine.experts.trials import TrialRules
from engine.measure.shared_memory import measure_sharing
from engine.worker.split_start import SplitStart, split_start
from tests.unit.virtual_steps import RECORD, Drive, excess, up_to

MACHINE = Machine("cpu", 2, 24, "avx2", "0.1.0")
NO_TRIALS = TrialRules(first_wait=1 << 40, wait=1 << 40)
FIRST_STEPS = 16  # before the loop looks at the split for the first time

six_machines = pytest.mark.parametrize("machine", MACHINES.values(), ids=list(MACHINES))


class VirtualMeter:
    """Probes a virtual machine with records of one size."""

    def __init__(self, machine: VirtualMachine, record_bytes: int) -> None:
        self.machine, self.record_bytes = machine, record_bytes

    def run(self, misses: int, fills: int) -> tuple[float, float]:
        return self.machine.times(misses, fills, self.record_bytes)


def probed(machine: VirtualMachine, record_bytes: int, path: Path) -> SplitStart:
    """What a model with records of `RECORD` bytes starts from after a probe with those of another size."""
    rate, runs = Rate.of([10.0]), measure_sharing(VirtualMeter(machine, record_bytes), rounds=1)
    links = (LinkRate(record_bytes, rate),)
    device = ("a device", "GPU-1", record_bytes)
    save_profile(Profile(MACHINE, "2026-01-01", (ReadRate(1, rate),), (), rate, *device, links, runs), path)
    start = split_start(str(path), MACHINE, frozenset({"q4_0"}), "GPU-1", RECORD)
    assert not start.notes
    return start


def mean_excess(machine: VirtualMachine, split: Split) -> float:
    """Over one to sixteen misses of a layer, beside the best of all q."""
    return sum(excess(machine, split, misses) for misses in range(1, 17)) / 16


@six_machines
@pytest.mark.parametrize("size", [RECORD // 8, RECORD, 4 * RECORD])
def test_the_first_step_is_closer_to_the_best_q_than_without_a_profile(
    machine: VirtualMachine, size: int, tmp_path: Path
) -> None:
    start = probed(machine, size, tmp_path / "profile.json")
    assert mean_excess(machine, start.split) < mean_excess(machine, DEFAULT_SPLIT)
    above = range(6, 17)  # the misses above 1 / f on all six
    far = [excess(machine, start.split, misses) for misses in above]
    assert sum(far) / len(far) < 0.05


@six_machines
def test_the_loop_knows_the_branches_before_it_has_seen_a_step(machine: VirtualMachine, tmp_path: Path) -> None:
    start = probed(machine, RECORD, tmp_path / "profile.json")
    balancer = Balancer(start.split, start.timing)
    known = balancer.timing
    assert known is not None
    assert "alone a fill takes" in balancer.why
    for misses, fills in ((1, 0), (4, 4), (8, 4), (12, 3)):
        seconds = machine.seconds(misses, fills, RECORD)
        assert known.seconds(misses, fills) == pytest.approx(seconds, rel=0.15)


@six_machines
def test_after_the_first_steps_the_measured_curve_is_worth_more_than_the_split_alone(
    machine: VirtualMachine, tmp_path: Path
) -> None:
    """Without it the loop takes two rates from the first step, and knows neither launches nor slowing."""
    start = probed(machine, RECORD, tmp_path / "profile.json")

    def off(timing: Timing | None) -> float:
        balancer = Balancer(start.split, timing, rules=NO_TRIALS)
        Drive(machine, balancer, up_to(16), noise=0.05).run(FIRST_STEPS)
        found = balancer.timing
        assert found is not None
        points = [(misses, fills) for misses in range(1, 13) for fills in range(misses + 1)]
        return sum(abs(found.seconds(*p) / machine.seconds(*p, RECORD) - 1) for p in points) / len(points)

    assert off(start.timing) < off(None)


def test_records_of_another_size_cost_their_bytes_and_the_same_launches() -> None:
    timing = Timing(Branch(8e-6, 70e-6), Branch(5e-6, 30e-6), 0.05, 0.5)
    larger = timing.of_size(3.0)
    assert (larger.fill.latency, larger.cpu.latency) == (8e-6, 5e-6)
    assert larger.fill.per_record == pytest.approx(210e-6)
    assert larger.cpu.per_record == pytest.approx(90e-6)
    assert (larger.fill_slowed, larger.cpu_slowed) == (0.05, 0.5)
    assert larger.fraction == pytest.approx(timing.fraction)


def test_without_runs_there_is_a_split_and_no_curve() -> None:
    assert split_start("", MACHINE, frozenset({"q4_0"})) == SplitStart(DEFAULT_SPLIT)
