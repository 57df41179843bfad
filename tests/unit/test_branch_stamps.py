"""Stamps of fills: what a step writes down, what of it counts, and a loop that divides misses by it."""

from __future__ import annotations

import time
from types import SimpleNamespace

import numpy as np
import pytest

from engine.device.sim import SimDriver
from engine.experts.balance import Balancer
from engine.experts.branch_stamps import FillStamps, stamp_bytes
from engine.experts.hybrid import BranchSeconds
from engine.experts.split import DEFAULT_SPLIT, Split
from engine.worker.experts import CachedExperts, StampClock
from tests.unit.hybrid_rig import BankKind, ExpertsModel, HybridRig


def test_a_pair_of_stamps_is_the_time_between_them_and_is_taken_once() -> None:
    driver = SimDriver(memory=1 << 20)
    stamps, stream = FillStamps(driver, 3), driver.stream()
    stamps.planned(stream, 1)
    driver.native(stream, "work", lambda: time.sleep(0.02))
    stamps.filled(stream, 1)
    driver.synchronise(stream)
    taken = stamps.take()
    assert taken[[0, 2]].tolist() == [0.0, 0.0]
    assert 0.02 <= taken[1] < 5
    assert stamps.take().tolist() == [0.0, 0.0, 0.0]
    stamps.close()


def test_half_a_pair_and_one_that_ends_before_it_begins_are_no_time() -> None:
    driver = SimDriver(memory=1 << 20)
    stamps, stream = FillStamps(driver, 2), driver.stream()
    stamps.planned(stream, 0)
    stamps.filled(stream, 1)
    driver.synchronise(stream)
    stamps.planned(stream, 1)
    driver.synchronise(stream)
    assert stamps.take().tolist() == [0.0, 0.0]


def test_a_graph_stamps_each_time_it_is_launched() -> None:
    driver = SimDriver(memory=1 << 20)
    stamps, stream = FillStamps(driver, 1), driver.stream()
    with driver.capture(stream) as graph:
        stamps.planned(stream, 0)
        stamps.filled(stream, 0)
    for _ in range(3):
        graph.launch(stream)
        driver.synchronise(stream)
        assert stamps.take()[0] > 0


def test_the_stamps_of_a_model_are_few_bytes() -> None:
    assert stamp_bytes(40) == 640


@pytest.mark.parametrize("signals", ["memory", "host"])
def test_a_layer_on_the_device_tells_the_seconds_of_both_branches(signals: str) -> None:
    rig = HybridRig(ExpertsModel([BankKind("q4_0")]), [4], Split.carry(0.5), signals=signals)
    try:
        fills = host = 0.0
        for _ in range(20):  # in some of which the simulated device happens to take the first stamp first
            rig.experts.begin_step()
            rig.experts.launch(0, 4, rig.buffers)
            rig.driver.synchronise(rig.stream)
            rig.experts.end_step()
            taken = rig.experts.take_seconds()
            assert taken.fills.shape == (1,)
            fills, host = fills + taken.fills[0], host + taken.host
        assert 0 < fills < 60
        assert 0 <= host < 60
        again = rig.experts.take_seconds()
        assert (again.fills.tolist(), again.host) == ([0.0], 0.0)
    finally:
        rig.close()


def test_a_step_counts_the_layers_that_filled_and_the_cpu_where_it_computed() -> None:
    taken = BranchSeconds(np.array([2e-3, 1e-6, 4e-3]), 5e-3)
    clock = StampClock(SimpleNamespace(take_seconds=lambda: taken), [10, 20, 30])
    times = clock.times(np.array([[4, 1, 3, 2, 1], [4, 4, 0, 0, 0], [4, 0, 4, 1, 3]], np.int32))
    assert times.link_seconds == pytest.approx(6e-3)
    assert (times.link_bytes, times.host_bytes) == (2 * 10 + 30, 10 + 3 * 30)
    assert times.host_seconds == 5e-3
    assert times.step_seconds == 0.0, "the step's is the worker's to measure"
    idle = clock.times(np.array([[4, 4, 0, 0, 0]] * 3, np.int32))
    assert (idle.link_seconds, idle.host_seconds) == (0.0, 0.0)


def test_the_loop_divides_by_what_the_stamps_say() -> None:
    """A link four times as slow as the CPU: from three quarters filled to a fifth, or nearly."""
    split: list[Split] = []

    def take_seconds() -> BranchSeconds:
        return BranchSeconds(np.array([400e-6 * executor.counts[0, 3]]), 100e-6 * float(executor.counts[0, 4]))

    executor = SimpleNamespace(
        counts=np.zeros((1, 5), np.int32),
        is_streaming=False,
        layer_counts=lambda: executor.counts,
        set_split=split.append,
        take_seconds=take_seconds,
    )
    experts = CachedExperts(executor, StampClock(executor, [4096]), Balancer(DEFAULT_SPLIT))
    for _ in range(200):
        fills = split[-1].fills(10)[0]
        executor.counts = np.array([[10, 0, 10, fills, 10 - fills]], np.int32)
        experts.after_step(1, 5e-3)
    assert split[0] == DEFAULT_SPLIT
    assert 1 <= split[-1].fills(10)[0] <= 3
    assert experts.values()["link_gbps"] == pytest.approx(4096 / 400e-6 / 1e9)
