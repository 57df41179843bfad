"""The graph of a step: what of a MoE layer follows what, and what a step asks of its device."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest

from engine.device.driver import Graph, Stream
from engine.device.graph import Node, before
from engine.device.sim import SimDriver, SimGraph
from engine.experts.hybrid import Signals
from engine.experts.split import Split
from tests.unit.device_rig import MIB, Model, Talk, moe_model, sequence

LAYERS = 4


class WatchedDriver(SimDriver):
    """Keeps every graph that is captured."""

    def __init__(self) -> None:
        super().__init__(256 * MIB, granularity=4096)
        self.graphs: list[SimGraph] = []

    @contextmanager
    def capture(self, stream: Stream) -> Iterator[Graph]:
        with super().capture(stream) as graph:
            yield graph
        assert isinstance(graph, SimGraph)
        self.graphs.append(graph)


@pytest.fixture(scope="module")
def model() -> Model:
    return moe_model()


def captured(model: Model, slots: tuple[int, int], tokens: int = 2, signals: Signals = "memory") -> Sequence[Node]:
    """The nodes of a step's graph."""
    driver = WatchedDriver()
    executor = model.device(slots, Split.carry(0.5), driver=driver, signals=signals)
    executor.step(sequence(range(tokens)))
    (graph,) = driver.graphs
    executor.close()
    return graph.nodes


class Layer:
    """The nodes of one MoE layer: from its plan to its merge."""

    def __init__(self, nodes: Sequence[Node], number: int) -> None:
        merges = [node.index for node in nodes if node.name == "merge"]
        assert len(merges) == LAYERS
        begin = 0 if number == 0 else merges[number - 1] + 1
        self._all = nodes
        self._own = nodes[begin : merges[number] + 1]

    def one(self, name: str) -> Node:
        """The node of a name, of which there is one."""
        (node,) = self.every(name)
        return node

    def every(self, name: str, stream: str = "") -> list[Node]:
        """The nodes whose names begin so."""
        return [node for node in self._own if node.name.startswith(name) and stream in ("", node.label)]

    def follows(self, node: Node, other: Node) -> bool:
        """Whether `node` certainly comes after `other`."""
        return other.index in before(self._all, node.dependencies)


@pytest.mark.parametrize("number", range(LAYERS))
def test_the_cpu_is_asked_first_and_everything_is_awaited_by_the_merge(model: Model, number: int) -> None:
    layer = Layer(captured(model, (5, 3)), number)
    plan, stage, fill, merge = (layer.one(name) for name in ("plan", "stage", "fill", "merge"))
    request, wait = layer.one("write"), layer.one("wait")
    hits, fills = layer.every("expert_", "main"), layer.every("expert_", "side")
    assert len(hits) == len(fills) > 2

    assert request.value == wait.value == number + 1
    assert layer.follows(stage, plan)
    assert layer.follows(request, stage)
    assert layer.follows(fill, plan)
    assert not layer.follows(fill, request), "a fill does not wait for the CPU to be asked"
    assert not layer.follows(request, fill), "nor the CPU for a fill"
    assert request.index < min(node.index for node in (fill, *hits, *fills)), (
        "the CPU is asked before all else is issued"
    )
    assert all(layer.follows(node, request) for node in hits)
    assert not any(layer.follows(node, fill) for node in hits)
    assert all(layer.follows(node, fill) for node in fills)
    assert not any(layer.follows(node, hit) for node in fills for hit in hits), "fills do not wait for hits"
    assert not any(layer.follows(node, wait) for node in (*hits, *fills, fill))
    assert all(layer.follows(merge, node) for node in (*hits, *fills, wait, stage))
    assert layer.follows(wait, request)


@pytest.mark.parametrize("number", range(LAYERS))
def test_with_host_functions_the_cpu_has_a_stream_of_its_own(model: Model, number: int) -> None:
    layer = Layer(captured(model, (5, 3), signals="host"), number)
    asked, merge, stage = layer.one("host"), layer.one("merge"), layer.one("stage")
    products = layer.every("expert_")
    assert not layer.every("write")
    assert not layer.every("wait")
    assert layer.follows(asked, stage)
    assert layer.follows(merge, asked)
    assert not any(layer.follows(node, asked) or layer.follows(asked, node) for node in products)
    assert not layer.follows(asked, layer.one("fill"))


def test_a_bank_without_slots_has_neither_fills_nor_products(model: Model) -> None:
    nodes = captured(model, (0, 3))
    for number in range(LAYERS - 1):
        layer = Layer(nodes, number)
        assert not layer.every("fill")
        assert not layer.every("expert_")
        assert layer.follows(layer.one("merge"), layer.one("wait"))
    assert Layer(nodes, LAYERS - 1).every("fill")


def test_a_step_is_one_copy_up_one_graph_and_one_wait(model: Model) -> None:
    """Nothing is allocated or compiled, and nobody waits, but for the logits at the end."""
    driver = WatchedDriver()
    executor = model.device((5, 3), Split.carry(0.5), driver=driver)
    talk = Talk(model.native(), executor)
    for count in (1, 2, 4, 8, 16, 32, 40):
        talk.step(s0=count)
    captures, before_steps = driver.calls["capture"], driver.calls.copy()
    assert captures == 6
    steps = [1, 2, 3, 5, 9, 17, 31]
    for count in steps:
        talk.step(s1=count)
    calls = driver.calls - before_steps
    attention = sum(op.kind == "attention" for op in model.program.ops)  # copies its rows to the native operation
    assert calls == {
        "synchronise": len(steps),
        "upload": len(steps) * attention,
        "download": 3 * len(steps) * attention,
    }
    assert all(sum(node.kind == "copy" for node in graph.nodes) == 1 for graph in driver.graphs)


def test_graphs_are_captured_again_only_where_banks_get_their_first_or_lose_their_last_slot(model: Model) -> None:
    driver = WatchedDriver()
    executor = model.device((5, 3), driver=driver)
    talk = Talk(model.native(), executor)
    for slots, captures in (((5, 3), 1), ((9, 1), 1), ((0, 1), 2), ((0, 7), 2), ((3, 0), 3), ((2, 2), 3)):
        executor.resize_experts(slots)
        talk.step(s0=1)
        assert len(driver.graphs) == captures, slots
