"""The launches of a MoE layer: in which order they are issued, what follows what, and what does not."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pytest

from engine.device.driver import Event, Stream
from engine.device.graph import Node, before
from engine.device.sim import SimDriver
from engine.experts.hybrid import Signals
from engine.experts.split import Split
from tests.unit.hybrid_rig import HALF, BankKind, ExpertsModel, HybridRig, Pair

APART = BankKind("q4_0", down="q8_0", fused=False, biases=True)
PLAIN = BankKind("bf16")


def captured(kind: BankKind, slots: int, signals: Signals = "memory", bucket: int = 4) -> list[Node]:
    rig = HybridRig(ExpertsModel([kind]), [slots], HALF, signals=signals)
    try:
        return list(rig.capture(0, bucket).nodes)
    finally:
        rig.close()


def issued(nodes: Sequence[Node]) -> dict[str, list[str]]:
    """Names by stream, in the order in which they were issued."""
    streams: dict[str, list[str]] = {}
    for node in nodes:
        streams.setdefault(node.label, []).append(node.name)
    return streams


def the(nodes: Sequence[Node], name: str) -> Node:
    (found,) = (node for node in nodes if node.name == name)
    return found


def past(nodes: Sequence[Node], node: Node) -> set[str]:
    """What is done for certain before a node."""
    return {str(nodes[index]).split(":", 1)[1] for index in before(nodes, node.dependencies)}


PRODUCTS = ["expert_q4_0", "expert_q4_0", "expert_glu", "pack_q16", "expert_q8_0", "expert_bias"]


def test_a_layer_is_issued_to_three_streams() -> None:
    assert issued(captured(APART, 4)) == {
        "main": ["pack_q16", "plan", "stage", "write", *PRODUCTS, "wait", "merge"],
        "link": ["fill", "stamp"],
        "side": ["stamp", *PRODUCTS],
    }


def test_rows_of_f32_are_read_as_they_are() -> None:
    products = ["expert_bf16", "expert_glu", "expert_bf16"]
    assert issued(captured(PLAIN, 4)) == {
        "main": ["plan", "stage", "write", *products, "wait", "merge"],
        "link": ["fill", "stamp"],
        "side": ["stamp", *products],
    }


def test_with_host_functions_the_cpu_has_a_stream_and_no_words_are_written() -> None:
    assert issued(captured(PLAIN, 4, "host")) == {
        "main": ["plan", "stage", "expert_bf16", "expert_glu", "expert_bf16", "merge"],
        "cpu": ["host"],
        "link": ["fill", "stamp"],
        "side": ["stamp", "expert_bf16", "expert_glu", "expert_bf16"],
    }


def test_without_slots_there_is_the_cpu_alone() -> None:
    assert issued(captured(APART, 0)) == {"main": ["plan", "stage", "write", "wait", "merge"]}
    assert issued(captured(APART, 0, "host")) == {"main": ["plan", "stage", "merge"], "cpu": ["host"]}


def test_many_pairs_are_grouped_before_they_are_multiplied() -> None:
    rig = HybridRig(ExpertsModel([PLAIN]), [4], HALF, max_tokens=64)
    try:
        streams = issued(rig.capture(0, 64).nodes)
    finally:
        rig.close()
    products = ["group_pairs", "expert_many_bf16", "expert_glu", "expert_many_bf16"]
    assert streams["main"] == ["plan", "stage", "write", *products, "wait", "merge"]
    assert streams["side"] == ["stamp", *products]


@pytest.mark.parametrize("signals", ["memory", "host"])
def test_the_cpu_is_asked_first_and_nobody_waits_for_more_than_it_reads(signals: Signals) -> None:
    nodes = captured(APART, 4, signals)
    ask = the(nodes, "write" if signals == "memory" else "host")
    fill, merge = the(nodes, "fill"), the(nodes, "merge")
    products = [node for node in nodes if node.name.startswith("expert_")]
    assert all(ask.index < node.index for node in (fill, *products)), "something was issued before the CPU was asked"
    assert past(nodes, ask) == {"pack_q16@main", "plan@main", "stage@main"}
    assert past(nodes, fill) == {"pack_q16@main", "plan@main"}
    for node in products:
        done = past(nodes, node)
        assert ("fill@link" in done) == (node.label == "side"), f"{node} after {done}"
        assert not any(name.endswith("@side") for name in done) or node.label == "side"
        assert "host@cpu" not in done
    assert before(nodes, merge.dependencies) == frozenset(range(merge.index)), "merge follows all, and is the last"
    if signals == "memory":
        wait = the(nodes, "wait")
        assert (wait.value, ask.value) == (1, 1)
        assert wait.address != ask.address


def test_stamps_lie_around_fills_and_no_product_waits_for_the_last() -> None:
    nodes = captured(APART, 4)
    began, ended = sorted((node for node in nodes if node.name == "stamp"), key=lambda node: node.label == "link")
    assert past(nodes, began) == {"pack_q16@main", "plan@main"}, "the first stands for the plan"
    assert past(nodes, ended) == {"pack_q16@main", "plan@main", "fill@link"}
    waiting = {str(node).split(":", 1)[1] for node in nodes if ended.index in before(nodes, node.dependencies)}
    assert waiting == {"wait@main", "merge@main"}


def test_a_step_neither_allocates_nor_waits() -> None:
    rig = HybridRig(ExpertsModel([APART]), [4], HALF)
    try:
        rig.experts.begin_step()
        calls = rig.driver.calls.copy()
        rig.experts.launch(0, 8, rig.buffers)
        assert rig.driver.calls == calls
        rig.driver.synchronise(rig.stream)
        rig.experts.end_step()
    finally:
        rig.close()


# --- what happens where an event is missing: the orders of the simulated device find it


def forgetting(is_forgotten: Callable[[Stream, int], bool]) -> type[SimDriver]:
    """A driver that leaves out waits of a stream for an event, by their number."""

    class Forgetful(SimDriver):
        waits = 0

        def wait_event(self, stream: Stream, event: Event) -> None:
            number = self.waits = self.waits + 1
            if not is_forgotten(stream, number):
                super().wait_event(stream, event)

    return Forgetful


@pytest.fixture
def bits_change() -> Iterator[Callable[[type[SimDriver]], bool]]:
    made: list[Pair] = []

    def run(driver: type[SimDriver]) -> bool:
        made.append(Pair([BankKind("q8_0")], [5], Split.all_fill(), driver=driver))
        try:
            for _ in range(30):
                made[-1].agree(0, 3)
        except AssertionError:
            return True
        return False

    yield run
    for pair in made:
        pair.rig.close()


def test_a_fill_that_nobody_waits_for_changes_bits(bits_change: Callable[[type[SimDriver]], bool]) -> None:
    assert not bits_change(SimDriver)
    assert bits_change(forgetting(lambda stream, number: stream.label == "side" and number % 4 == 3))


def test_fills_that_merge_does_not_wait_for_change_bits(bits_change: Callable[[type[SimDriver]], bool]) -> None:
    assert bits_change(forgetting(lambda stream, number: stream.label == "main"))
