"""Experts on a device and the CPU at once have the bits of the native operation, whoever computes what."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random
from typing import Any

import numpy as np
import pytest

from engine.experts.hybrid import Signals
from engine.experts.slot_products import MANY_PAIRS
from engine.experts.split import Split
from tests.same_bits import assert_same_bits
from tests.unit.hybrid_rig import HALF, BankKind, Pair
from tests.unit.native_model import EXPERTS, TOP_K

KINDS = {
    "one matrix": BankKind(layers=2),
    "apart, with biases": BankKind("q8_0", fused=False, biases=True, activation="clamped_silu"),
    "one matrix, with biases": BankKind("mxfp4", biases=True, activation="clamped_silu"),
    "three codecs": BankKind("q4_1", "nvfp4", "bf16", fused=False),
    "integer down": BankKind("f16", down="q8_0"),
    "odd width": BankKind("bf16", "f16", "fp8", fused=False, width=40, biases=True),
    "scaled": BankKind("fp8", down="mxfp8"),
    "long blocks": BankKind("q4_k", down="q6_k", width=256),
    "two and three bits": BankKind("q2_k", down="q3_k", width=256),
}


@pytest.fixture
def pairs() -> Iterator[Any]:
    """Makes pairs of a model on a device and the same by itself, and closes them."""
    made: list[Pair] = []

    def make(kinds: Sequence[BankKind], slots: Sequence[int], split: Split = HALF, **settings: Any) -> Pair:
        made.append(Pair(kinds, slots, split, **settings))
        return made[-1]

    yield make
    for pair in made:
        pair.rig.close()


def check_slots(pair: Pair) -> None:
    for cache, bank in zip(pair.rig.caches, pair.rig.model.banks, strict=True):
        cache.check(lambda record, bank=bank: np.frombuffer(bank.record(record), np.uint8))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("signals", ["memory", "host"])
def test_hits_fills_and_the_cpu_add_up_to_the_bits_of_the_operation(pairs: Any, kind: str, signals: Signals) -> None:
    pair = pairs([KINDS[kind]], [5], signals=signals)
    for _ in range(3):
        for layer in range(pair.reference.layers):
            for tokens in (1, 2, 7):
                pair.agree(layer, tokens, bucket=8)
    assert (pair.rig.counts() > 0).all(), "hits, fills and the CPU must all have had a part"
    check_slots(pair)


@pytest.mark.parametrize("seed", range(6))
def test_random_lives_keep_the_bits(pairs: Any, seed: int) -> None:
    """Any routing, batch, split, number of slots, order of the device and way of asking, changing all the time."""
    random = Random(seed)
    kinds = random.sample(list(KINDS.values()), 2)
    signals = random.choice(["memory", "host"])
    pair = pairs(kinds, [4, 0], signals=signals, seed=seed, threads=random.randrange(1, 4))
    for _ in range(25):
        bank = random.randrange(2)
        if random.random() < 0.3:
            pair.rig.caches[bank].resize(random.choice([0, TOP_K, random.randrange(TOP_K, 9)]))
        if random.random() < 0.3:
            pair.rig.caches[bank].set_split(random.choice([HALF, Split.all_fill(), Split.all_cpu(), Split.carry(0.3)]))
        tokens = random.randrange(1, 9)
        pair.agree(random.randrange(pair.reference.layers), tokens, bucket=random.randrange(tokens, 9))
    check_slots(pair)
    assert (pair.rig.counts() > 0).all()


@pytest.mark.parametrize("tokens", [40, 70])
def test_many_tokens_are_multiplied_by_groups_with_the_same_bits(pairs: Any, tokens: int) -> None:
    assert tokens * TOP_K >= MANY_PAIRS * EXPERTS
    pair = pairs([BankKind("q4_0", down="q8_0"), BankKind("bf16", fused=False, biases=True)], [6, 4], max_tokens=70)
    for _ in range(2):
        for layer in range(2):
            pair.agree(layer, tokens)
    assert (pair.rig.counts() > 0).all()


def test_banks_without_slots_are_the_cpus_and_cost_the_device_nothing_else(pairs: Any) -> None:
    pair = pairs([BankKind(), BankKind("q8_0")], [0, 4])
    for layer in (0, 1, 0, 1):
        pair.agree(layer, 4)
    none, some = (cache.read_totals() for cache in pair.rig.caches)
    assert (none.hits, none.fills, none.cpu) == (0, 0, none.distinct)
    assert some.fills > 0
    assert pair.rig.experts.shape == (False, True)


def test_a_model_that_never_has_slots_needs_no_room_on_the_device(pairs: Any) -> None:
    pair = pairs([BankKind()], [0], fillable=0)
    assert pair.rig.experts.size == 0
    for tokens in (1, 5, 8):
        pair.agree(0, tokens, bucket=8)


def test_records_that_the_device_cannot_reach_are_the_cpus(pairs: Any) -> None:
    pair = pairs([BankKind()], [4], Split.all_fill(), fillable=4)
    for _ in range(6):
        pair.agree(0, 3)
    hits, fills, cpu = pair.rig.counts()
    assert hits > 0
    assert 0 < fills <= 4
    assert cpu > 0


@pytest.mark.parametrize(
    "split", [Split.all_fill(), Split.all_cpu(), Split.carry(0.3), Split("table", 0.5, (0, 0, 1, 3))]
)
@pytest.mark.parametrize("slots", [3, 8])
def test_no_split_and_no_number_of_slots_changes_a_bit(pairs: Any, split: Split, slots: int) -> None:
    pair = pairs([BankKind()], [slots], split, seed=slots)
    for step in range(8):
        pair.agree(0, 1 + step, bucket=8)


@pytest.mark.parametrize("signals", ["memory", "host"])
def test_captured_launches_are_replayed_for_any_routing_across_a_resize(pairs: Any, signals: Signals) -> None:
    pair = pairs([BankKind(layers=2)], [4], signals=signals)
    graphs = [pair.rig.capture(layer, 4) for layer in range(2)]
    for slots in (4, 9, 3):
        pair.rig.caches[0].resize(slots)
        assert pair.rig.experts.shape == (True,)
        for step in range(6):
            pair.agree(step % 2, 1 + step % 4, bucket=4, graph=graphs[step % 2])
    assert (pair.rig.counts() > 0).all()


@pytest.mark.parametrize("seed", range(4))
def test_no_order_that_the_events_allow_changes_a_bit(pairs: Any, seed: int) -> None:
    pair = pairs([BankKind("q8_0", fused=False, biases=True)], [5], seed=seed)
    graph = pair.rig.capture(0, 6)
    for _ in range(8):
        pair.agree(0, 6, graph=graph)


def test_a_swap_of_two_slots_shows(pairs: Any) -> None:
    pair = pairs([BankKind()], [8], Split.all_fill())
    pair.agree(0, 8)
    arena = pair.rig.arenas[0]
    first, second = (arena.address + slot * arena.stride for slot in (0, 1))
    one, other = (np.zeros(arena.stride, np.uint8) for _ in range(2))
    pair.rig.driver.download(first, one)
    pair.rig.driver.download(second, other)
    pair.rig.driver.upload(first, other)
    pair.rig.driver.upload(second, one)
    with pytest.raises(AssertionError):
        pair.agree(0, 8)


def test_a_value_that_is_not_finite_spoils_its_own_token_alone(pairs: Any) -> None:
    pair = pairs([BankKind("q4_0", down="f32")], [5])
    rows = pair.reference.rows(0, 4, pair.rng)
    sound = pair.rig.step(0, rows, 4).copy()
    rows.x[2, 5] = np.inf
    spoilt = pair.rig.step(0, rows, 4)
    assert np.isnan(spoilt[2]).all()
    assert_same_bits(np.delete(spoilt, 2, 0), np.delete(sound, 2, 0))
