"""Work that is issued to streams, as a graph of what must come before what; and orders that a device might take."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Literal

from engine.device.driver import Stream

Kind = Literal["kernel", "copy", "write", "wait", "host", "native"]


@dataclass(frozen=True)
class Node:
    """One thing that a device does.

    `name` is that of the kernel or native operation, or the kind; `label` that of the stream it was issued to. `value`
    is what a `write` writes and a `wait` waits for, at `address`. `dependencies` are the nodes that it directly
    follows; their indices are smaller.
    """

    index: int
    kind: Kind
    name: str
    label: str
    dependencies: frozenset[int]
    address: int = 0
    value: int = 0

    def __str__(self) -> str:
        return f"{self.index}:{self.name}@{self.label}" if self.label else f"{self.index}:{self.name}"


@dataclass(frozen=True)
class Step:
    """A node, and what carries it out."""

    node: Node
    run: Callable[[], None]


def before(nodes: Sequence[Node], ends: Iterable[int], done: Container[int] = ()) -> frozenset[int]:
    """The nodes `ends` and all that must come before them, without those `done` and what comes before these."""
    found: set[int] = set()
    left = list(ends)
    while left:
        index = left.pop()
        if index not in found and index not in done:
            found.add(index)
            left.extend(nodes[index].dependencies)
    return frozenset(found)


def random_order(nodes: Sequence[Node], random: Random) -> Iterator[int]:
    """Places in `nodes`, in an order that keeps every dependency on one of them, and is otherwise chosen at random."""
    place_of = {node.index: place for place, node in enumerate(nodes)}
    followers: list[list[int]] = [[] for _ in nodes]
    missing = [0] * len(nodes)
    for place, node in enumerate(nodes):
        for dependency in node.dependencies:
            if dependency in place_of:
                followers[place_of[dependency]].append(place)
                missing[place] += 1
    ready = [place for place, count in enumerate(missing) if count == 0]
    while ready:
        choice = int(random.random() * len(ready))
        place = ready[choice]
        ready[choice] = ready[-1]
        ready.pop()
        yield place
        for follower in followers[place]:
            missing[follower] -= 1
            if missing[follower] == 0:
                ready.append(follower)


def check_signals(nodes: Sequence[Node]) -> None:
    """AssertionError for a wait that no write of its value and no host function precedes.

    A device may do it before the signal that it waits for is issued, and then hang.
    """
    for node in nodes:
        if node.kind == "wait" and not _is_signalled(nodes, node):
            raise AssertionError(f"{node} waits for {node.value}, and nothing that must come before gives the signal")


def _is_signalled(nodes: Sequence[Node], wait: Node) -> bool:
    past = (nodes[index] for index in before(nodes, wait.dependencies))
    return any(node.kind == "host" or (node.kind == "write" and node.value == wait.value) for node in past)


class Timeline:
    """Steps in the order in which they were issued, and what each stream's next one follows.

    With `origin`, only streams that follow something of the origin's may take part, as in the capture of a graph.
    """

    def __init__(self, origin: Stream | None = None) -> None:
        self.steps: list[Step] = []
        self.nodes: list[Node] = []
        self.origin = origin
        self._tails: dict[Stream, frozenset[int]] = {} if origin is None else {origin: frozenset()}

    def tail(self, stream: Stream) -> frozenset[int]:
        """The nodes that the next one of a stream follows."""
        if self.origin is not None:
            assert stream in self._tails, f"stream {stream.label!r} takes no part in the capture under way"
        return self._tails.get(stream, frozenset())

    def join(self, stream: Stream, ends: frozenset[int]) -> None:
        """The next node of a stream follows `ends`, too."""
        self._tails[stream] = self._tails.get(stream, frozenset()) | ends

    def add(
        self, stream: Stream, kind: Kind, name: str, run: Callable[[], None], address: int = 0, value: int = 0
    ) -> None:
        """Issue a step to a stream."""
        index = len(self.steps)
        self._append(Node(index, kind, name, stream.label, self.tail(stream), address, value), run)
        self._tails[stream] = frozenset((index,))

    def extend(self, stream: Stream, steps: Sequence[Step]) -> None:
        """Issue a graph to a stream: after all that was issued to it before, before all that comes after."""
        first = len(self.steps)
        tail = self.tail(stream)
        followed: set[int] = set()
        for step in steps:
            followed |= step.node.dependencies
            follows = frozenset(first + index for index in step.node.dependencies) or tail
            self._append(replace(step.node, index=first + step.node.index, dependencies=follows), step.run)
        ends = frozenset(first + step.node.index for step in steps if step.node.index not in followed)
        self._tails[stream] = ends or tail

    def check_joined(self) -> None:
        """AssertionError where a stream has work that the origin does not follow."""
        assert self.origin is not None
        joined = before(self.nodes, self._tails[self.origin])
        loose = [str(node) for node in self.nodes if node.index not in joined]
        assert not loose, f"the capture ends with work that was not joined to it: {', '.join(loose)}"

    def _append(self, node: Node, run: Callable[[], None]) -> None:
        self.nodes.append(node)
        self.steps.append(Step(node, run))
