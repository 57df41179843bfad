"""The launches of a prompt take, on a virtual clock, exactly what the law of the pipeline says."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from engine.device.graph import Node, before
from engine.device.virtual_time import Span, makespan, schedule
from engine.experts.prefill import PrefillPolicy
from tests.unit.prefill_rig import Issued, ModelShape, Ring, seconds_of

SHAPE = ModelShape(layers=6, experts=8, top_k=2)
CHUNK = 4096
TWO, ONE = PrefillPolicy(), Ring(buffers=1)


def random_parts(count: int, seed: int = 0) -> list[tuple[float, float]]:
    """(transfer, computation), whole milliseconds, so that sums are exact."""
    return [(float(a), float(b)) for a, b in np.random.default_rng(seed).integers(1, 20, (count, 2))]


def law(parts: list[tuple[float, float]]) -> float:
    """The first transfer, then of each computation and the transfer beside it the longer one."""
    beside = sum(max(computation, transfer) for (_, computation), (transfer, _) in pairwise(parts))
    return parts[0][0] + beside + parts[-1][1]


@pytest.mark.parametrize("chunks", [1, 2, 3])
@pytest.mark.parametrize("seed", range(5))
def test_with_two_buffers_transfers_hide_behind_computations(chunks: int, seed: int) -> None:
    nodes = Issued(SHAPE, 16).prompt([CHUNK] * chunks)
    parts = random_parts(chunks * SHAPE.layers, seed)
    assert makespan(nodes, seconds_of(parts, nodes)) == law(parts)


@pytest.mark.parametrize("chunks", [1, 3])
def test_with_one_buffer_nothing_is_hidden(chunks: int) -> None:
    nodes = Issued(SHAPE, 8, ONE).prompt([CHUNK] * chunks)
    parts = random_parts(chunks * SHAPE.layers)
    assert makespan(nodes, seconds_of(parts, nodes)) == sum(map(sum, parts))


@pytest.mark.parametrize(("transfer", "computation"), [(3.0, 2.0), (2.0, 3.0), (2.0, 2.0)])
def test_a_chunk_takes_the_longer_of_both_for_each_of_its_layers(transfer: float, computation: float) -> None:
    """Layers all alike: the first one's transfer, and then for every layer of every chunk the longer of both.

    The last layer of all has nothing to transfer beside it.
    """
    for chunks in (1, 2, 5):
        nodes = Issued(SHAPE, 16).prompt([CHUNK] * chunks)
        parts = [(transfer, computation)] * (chunks * SHAPE.layers)
        longer = max(transfer, computation) * (len(parts) - 1)
        assert makespan(nodes, seconds_of(parts, nodes)) == transfer + longer + computation


@pytest.mark.parametrize("ring", [2, 4, 6, 10, 12])
def test_the_law_holds_for_parts_of_layers_too(ring: int) -> None:
    issued = Issued(SHAPE, ring)
    nodes = issued.prompt([CHUNK] * 2)
    parts = random_parts(2 * len(issued.experts.stream.turns[0].parts))
    assert len(parts) == 2 * SHAPE.layers * -(-SHAPE.experts // (ring // 2))
    assert makespan(nodes, seconds_of(parts, nodes)) == law(parts)


def test_residents_are_not_transferred() -> None:
    """Layer l has l residents; the transfers of the others, and of no more, make the time."""
    residents = [layer * SHAPE.experts + expert for layer in range(SHAPE.layers) for expert in range(layer)]
    issued = Issued(SHAPE, 16 + len(residents), residents=np.array(residents))
    nodes = issued.prompt([CHUNK] * 2)
    records = [len(part.records) for part in issued.experts.stream.turns[0].parts]
    assert records == [SHAPE.experts - layer for layer in range(SHAPE.layers)]
    assert issued.experts.stream.streamed_records == 2 * sum(records)
    parts = [(3.0 * count, 10.0) for count in records * 2]
    assert makespan(nodes, seconds_of(parts, nodes)) == law(parts) < law([(24.0, 10.0)] * len(parts))


def test_slots_that_held_nothing_are_filled_once() -> None:
    """The first chunk brings everything, the others what found no slot to stay in."""
    free = 12
    issued = Issued(SHAPE, 16 + free)
    nodes = issued.prompt([CHUNK] * 3)
    turns = issued.experts.stream.turns
    first, later = ([len(part.records) for part in turn.parts] for turn in turns[:2])
    assert first == [SHAPE.experts] * SHAPE.layers
    assert later == [SHAPE.experts - free // SHAPE.layers] * SHAPE.layers
    parts = [(3.0 * count, 10.0) for count in (*first, *later, *later)]
    assert makespan(nodes, seconds_of(parts, nodes)) == law(parts)


def test_a_fill_waits_for_the_products_two_parts_before_it_and_for_no_others() -> None:
    nodes = Issued(SHAPE, 16).prompt([CHUNK] * 2)
    fills = [node for node in nodes if node.name == "fill"]
    glus = [node for node in nodes if node.name == "expert_glu"]
    for number, fill in enumerate(fills):
        past = before(nodes, fill.dependencies)
        read = [glu.index in past for glu in glus]
        barrier = SHAPE.layers if number >= SHAPE.layers + 2 else 0  # the host waited for the first chunk
        assert read == [place < max(number - 1, barrier) for place in range(len(glus))], f"fill {number}"


def test_the_next_chunks_first_parts_are_filled_before_the_host_goes_on() -> None:
    nodes = Issued(SHAPE, 16).prompt([CHUNK] * 2)
    fills = [node.index for node in nodes if node.name == "fill"]
    merges = [node.index for node in nodes if node.name == "merge"]
    last_of_first_chunk = merges[SHAPE.layers - 1]
    assert sum(index < last_of_first_chunk for index in fills) == SHAPE.layers + 2
    alone = Issued(SHAPE, 16).prompt([CHUNK])
    assert sum(node.name == "fill" for node in alone) == SHAPE.layers


def test_layers_are_merged_once_and_the_cpu_has_no_part() -> None:
    nodes = Issued(SHAPE, 4).prompt([CHUNK])
    names = [node.name for node in nodes]
    assert names.count("merge") == SHAPE.layers
    assert not {"plan", "stage", "write", "wait", "host"} & set(names)
    assert {node.label for node in nodes} == {"main", "link"}


def test_a_missing_second_buffer_is_noticed() -> None:
    """The law of two buffers does not hold for what is issued with one."""
    nodes = Issued(SHAPE, 8, ONE).prompt([CHUNK])
    parts = random_parts(SHAPE.layers)
    assert makespan(nodes, seconds_of(parts, nodes)) > law(parts)


# --- the clock itself


def node(index: int, label: str, *dependencies: int) -> Node:
    return Node(index, "kernel", "k", label, frozenset(dependencies))


def test_a_node_begins_when_all_that_it_follows_have_ended() -> None:
    nodes = [node(0, "a"), node(1, "b"), node(2, "a", 0), node(3, "b", 1, 2), node(4, "c")]
    took = [5.0, 1.0, 2.0, 4.0, 20.0]
    spans = schedule(nodes, lambda n: took[n.index])
    assert [(span.start, span.end) for span in spans] == [(0, 5), (0, 1), (5, 7), (7, 11), (0, 20)]
    assert isinstance(spans[0], Span)
    assert makespan(nodes, lambda n: took[n.index]) == 20
    assert makespan([], lambda n: 1.0) == 0


def test_nodes_out_of_their_places_are_refused() -> None:
    with pytest.raises(AssertionError, match="number 0"):
        schedule([node(1, "a")], lambda n: 1.0)
