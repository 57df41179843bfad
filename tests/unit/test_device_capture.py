"""Captured graphs of the simulated device, and captures that a device would refuse."""

from __future__ import annotations

import numpy as np
import pytest

from engine.device.driver import Stream
from engine.device.sim import SimDriver, SimGraph
from tests.unit.device_work import add_rows, words

MIB = 1 << 20


@pytest.fixture
def driver() -> SimDriver:
    return SimDriver(memory=64 * MIB)


@pytest.fixture
def fork(driver: SimDriver) -> tuple[SimGraph, Stream, int]:
    """A graph that adds on main, then writes on main and side, then joins; its stream; the memory it works on."""
    main, side = driver.stream("main"), driver.stream("side")
    memory = driver.allocate(4096)
    driver.upload(memory.address + 1024, np.array([1], np.int32))
    driver.upload(memory.address + 256, np.array([1.0], np.float32))
    with driver.capture(main) as graph:
        add_rows(driver, main, memory.address, memory.address + 256, memory.address, 1, memory.address + 1024)
        event = driver.record(main)
        driver.wait_event(side, event)
        driver.copy(side, memory.address + 512, memory.address, 4)
        driver.write_value(main, memory.address + 516, 8)
        end = driver.record(side)
        driver.wait_event(main, end)
    assert isinstance(graph, SimGraph)
    return graph, main, memory.address


def test_a_capture_does_nothing_and_is_replayed(driver: SimDriver, fork: tuple[SimGraph, Stream, int]) -> None:
    graph, main, at = fork
    assert [(n.kind, n.name, n.label, sorted(n.dependencies)) for n in graph.nodes] == [
        ("kernel", "add_rows", "main", []),
        ("copy", "copy", "side", [0]),
        ("write", "write", "main", [0]),
    ]
    driver.synchronise(main)
    assert words(driver, at, 1) == [0]
    for step in (1.0, 2.0, 3.0):
        graph.launch(main)
        driver.synchronise(main)
        out = np.zeros(1, np.float32)
        driver.download(at + 512, out)
        assert out[0] == step
    assert words(driver, at + 516) == [8]
    assert driver.counters("add_rows").launches == 3


def test_graphs_follow_each_other(driver: SimDriver, fork: tuple[SimGraph, Stream, int]) -> None:
    graph, main, at = fork
    for _ in range(20):
        graph.launch(main)
    driver.synchronise(main)
    out = np.zeros(1, np.float32)
    driver.download(at + 512, out)
    assert out[0] == 20.0


def test_nothing_but_work_is_captured(driver: SimDriver) -> None:
    stream, memory = driver.stream("main"), driver.allocate(64)
    for forbidden in (
        lambda: driver.synchronise(stream),
        lambda: driver.allocate(10),
        lambda: driver.host(10),
        lambda: driver.upload(memory.address, np.zeros(1, np.uint8)),
        lambda: driver.download(memory.address, np.zeros(1, np.uint8)),
        lambda: driver.capture(stream).__enter__(),
        memory.free,
    ):
        with pytest.raises(AssertionError, match="captur"), driver.capture(stream):
            forbidden()
    memory.free()


def test_a_capture_that_fails_leaves_none_under_way(driver: SimDriver) -> None:
    stream = driver.stream("main")
    with pytest.raises(ZeroDivisionError), driver.capture(stream):
        raise ZeroDivisionError
    with driver.capture(stream) as graph:
        driver.native(stream, "nothing", lambda: None)
    graph.launch(stream)
    driver.synchronise(stream)


def test_streams_that_are_not_joined_are_refused(driver: SimDriver) -> None:
    main, side = driver.stream("main"), driver.stream("side")
    memory = driver.allocate(64)

    def leave_the_side_open() -> None:
        with driver.capture(main):
            driver.wait_event(side, driver.record(main))
            driver.write_value(side, memory.address, 1)

    with pytest.raises(AssertionError, match="not joined to it: 0:write@side"):
        leave_the_side_open()


def test_events_do_not_cross_the_border_of_a_capture(driver: SimDriver) -> None:
    main, side = driver.stream("main"), driver.stream("side")
    memory = driver.allocate(64)
    driver.write_value(side, memory.address, 1)
    outside = driver.record(side)
    with pytest.raises(AssertionError, match="other side of a capture"), driver.capture(main):
        driver.wait_event(main, outside)
    with driver.capture(main):
        driver.write_value(main, memory.address, 1)
        inside = driver.record(main)
    with pytest.raises(AssertionError, match="other side of a capture"):
        driver.wait_event(side, inside)


def test_a_wait_without_a_signal_before_it_is_refused(driver: SimDriver) -> None:
    main, side = driver.stream("main"), driver.stream("side")
    memory = driver.allocate(64)

    def wait_beside_the_signal() -> None:
        with driver.capture(main):
            driver.wait_event(side, driver.record(main))
            driver.write_value(side, memory.address, 2)
            driver.wait_value(main, memory.address + 4, 2)
            driver.wait_event(main, driver.record(side))

    with pytest.raises(AssertionError, match="waits for 2"):
        wait_beside_the_signal()


def test_calls_are_counted(driver: SimDriver, fork: tuple[SimGraph, Stream, int]) -> None:
    graph, main, _ = fork
    before = driver.calls.copy()
    graph.launch(main)
    driver.synchronise(main)
    driver.calls.subtract(before)
    assert {call: count for call, count in driver.calls.items() if count} == {"synchronise": 1}
