"""What issued work takes on a device whose parts take known times: for claims about schedules where no chip is.

Streams and events alone decide what waits for what; nothing slows anything else down.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from engine.device.driver import Stream
from engine.device.graph import Kind, Node, Step, Timeline

Seconds = Callable[[Node], float]
"""What a node takes by itself."""


@dataclass(frozen=True)
class Span:
    """When a node runs."""

    node: Node
    start: float
    end: float


def schedule(nodes: Sequence[Node], seconds: Seconds) -> list[Span]:
    """Every node begins when all that it follows have ended. `nodes[i].index` is i."""
    spans: list[Span] = []
    for place, node in enumerate(nodes):
        assert node.index == place, f"{node} is number {place}"
        start = max((spans[index].end for index in node.dependencies), default=0.0)
        spans.append(Span(node, start, start + seconds(node)))
    return spans


def makespan(nodes: Sequence[Node], seconds: Seconds) -> float:
    """When the last of them ends."""
    return max((span.end for span in schedule(nodes, seconds)), default=0.0)


class Recording:
    """All that is issued to a device over several steps, in one numbering: what the host waits for, all that comes
    later follows."""

    def __init__(self) -> None:
        self._timeline = Timeline()
        self._waited: frozenset[int] = frozenset()

    @property
    def nodes(self) -> Sequence[Node]:
        """So far."""
        return self._timeline.nodes

    def add(self, stream: Stream, kind: Kind, name: str, address: int = 0, value: int = 0) -> None:
        """Something is issued to a stream."""
        self.wait(stream, self._waited)
        self._timeline.add(stream, kind, name, _nothing, address, value)

    def extend(self, stream: Stream, steps: Sequence[Step]) -> None:
        """A graph is issued to a stream."""
        self.wait(stream, self._waited)
        self._timeline.extend(stream, [Step(step.node, _nothing) for step in steps])

    def tail(self, stream: Stream) -> frozenset[int]:
        """What an event that is recorded now stands for."""
        return self._timeline.tail(stream)

    def wait(self, stream: Stream, ends: frozenset[int]) -> None:
        """A stream waits for an event."""
        self._timeline.join(stream, ends)

    def synchronise(self, stream: Stream) -> None:
        """The host waits for a stream."""
        self._waited = self._waited | self._timeline.tail(stream)


def _nothing() -> None:
    """A recording only tells of work."""
