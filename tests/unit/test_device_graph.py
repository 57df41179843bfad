"""Orders that streams and events allow, and captures that a device would refuse."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.device.graph import Node, Timeline, before, check_signals, random_order


@dataclass(frozen=True, eq=False)
class Stream:
    label: str


def nothing() -> None: ...


def node(index: int, *dependencies: int, kind: str = "kernel", value: int = 0) -> Node:
    return Node(index, kind, kind, "main", frozenset(dependencies), 0, value)  # type: ignore[arg-type]


DIAMOND = [node(0), node(1, 0), node(2, 0), node(3, 1, 2)]


@st.composite
def graphs(draw: st.DrawFn) -> list[Node]:
    count = draw(st.integers(0, 12))
    chosen = [draw(st.sets(st.integers(0, i - 1), max_size=3)) if i else set() for i in range(count)]
    return [node(i, *dependencies) for i, dependencies in enumerate(chosen)]


@given(graphs(), st.integers(0, 2**32))
def test_an_order_has_every_node_once_and_after_what_it_follows(nodes: list[Node], seed: int) -> None:
    order = list(random_order(nodes, Random(seed)))
    assert sorted(order) == list(range(len(nodes)))
    place = {index: i for i, index in enumerate(order)}
    assert all(place[d] < place[n.index] for n in nodes for d in n.dependencies)


def test_every_order_of_a_diamond_comes() -> None:
    random = Random(1)
    orders = Counter(tuple(random_order(DIAMOND, random)) for _ in range(200))
    assert set(orders) == {(0, 1, 2, 3), (0, 2, 1, 3)}
    assert min(orders.values()) > 50


def test_a_dependency_on_what_is_not_there_is_done() -> None:
    assert list(random_order(DIAMOND[2:3], Random(0))) == [0]


def test_what_must_come_before_stops_at_what_is_done() -> None:
    assert before(DIAMOND, [3]) == {0, 1, 2, 3}
    assert before(DIAMOND, [1]) == {0, 1}
    assert before(DIAMOND, [3], done={1}) == {0, 2, 3}
    assert before(DIAMOND, []) == frozenset()


def test_a_stream_is_in_order_and_joins_by_events() -> None:
    main, side = Stream("main"), Stream("side")
    timeline = Timeline()
    timeline.add(main, "kernel", "a", nothing)
    event = timeline.tail(main)
    timeline.add(main, "kernel", "b", nothing)
    timeline.add(side, "kernel", "c", nothing)
    timeline.join(side, event)
    timeline.add(side, "kernel", "d", nothing)
    timeline.join(main, timeline.tail(side))
    timeline.add(main, "kernel", "e", nothing)
    assert [sorted(n.dependencies) for n in timeline.nodes] == [[], [0], [], [0, 2], [1, 3]]
    assert [str(n) for n in timeline.nodes][3:] == ["3:d@side", "4:e@main"]


def test_a_graph_is_issued_between_what_came_before_and_after() -> None:
    main, side = Stream("main"), Stream("side")
    captured = Timeline(main)
    captured.add(main, "kernel", "a", nothing)
    captured.join(side, captured.tail(main))
    captured.add(main, "kernel", "b", nothing)
    captured.add(side, "kernel", "c", nothing)
    timeline = Timeline()
    timeline.add(main, "kernel", "first", nothing)
    timeline.extend(main, captured.steps)
    timeline.add(main, "kernel", "last", nothing)
    assert [sorted(n.dependencies) for n in timeline.nodes] == [[], [0], [1], [1], [2, 3]]
    timeline.extend(main, [])
    assert timeline.tail(main) == {4}


def test_a_capture_knows_the_streams_that_follow_its_origin() -> None:
    main, side = Stream("main"), Stream("side")
    timeline = Timeline(main)
    with pytest.raises(AssertionError, match="'side' takes no part"):
        timeline.add(side, "kernel", "a", nothing)
    timeline.join(side, timeline.tail(main))
    timeline.add(side, "kernel", "a", nothing)
    with pytest.raises(AssertionError, match="0:a@side"):
        timeline.check_joined()
    timeline.join(main, timeline.tail(side))
    timeline.check_joined()


def test_a_wait_follows_its_signal() -> None:
    check_signals([node(0, kind="write", value=7), node(1, 0), node(2, 1, kind="wait", value=7)])
    check_signals([node(0, kind="host"), node(1, 0, kind="wait", value=7)])
    for wrong in (
        [node(0, kind="wait", value=7)],
        [node(0, kind="write", value=7), node(1, kind="wait", value=7)],  # another stream
        [node(0, kind="write", value=6), node(1, 0, kind="wait", value=7)],
        [node(0, kind="wait", value=7), node(1, 0, kind="write", value=7)],
    ):
        with pytest.raises(AssertionError, match="waits for 7"):
            check_signals(wrong)
