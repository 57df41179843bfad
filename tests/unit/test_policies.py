"""Policies against plain twins, against the model of the device's cache, and Belady against trying everything."""

import math
import random
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.base.errors import UsageError
from engine.experts.policies import (
    POLICIES,
    Clairvoyant,
    LeastFrequent,
    LeastRecent,
    Policy,
    Pool,
    PrefillRefresh,
    Static,
    make_policy,
    next_uses,
    policies_named,
)
from engine.experts.split import Split
from tests.unit.cache_model import CacheModel, Rule
from tests.unit.routing import drifting

EVERY = int  # the rule that fills every miss


def _misses(policy: Policy, rows: np.ndarray) -> list[int]:
    return [
        policy.step(token, layer, ids, EVERY).misses
        for token, layers in enumerate(rows.tolist())
        for layer, ids in enumerate(layers)
    ]


def _model_rule(split: Split) -> Rule:
    return Rule(split.rule, split.fixed, split.table)


@settings(deadline=None)
@given(
    slots=st.integers(1, 60),
    seed=st.integers(0, 1000),
    stay=st.floats(0, 0.9),
    split=st.sampled_from(
        [Split.all_fill(), Split.all_cpu(), Split.carry(0.4), Split.of_fraction(0.3), Split.of_fraction(0.8)]
    ),
)
def test_lru_is_what_the_device_does(slots: int, seed: int, stay: float, split: Split) -> None:
    """Plan for plan: misses, fills and which record lies in which slot, with fewer slots than a token's experts too."""
    rows = drifting(60, 3, 16, 4, stay, seed)
    pool = Pool(3, 16, slots)
    policy, model = LeastRecent(pool), CacheModel(48, slots, 48, _model_rule(split))
    carry = 0

    def rule(misses: int) -> int:
        nonlocal carry
        fills, carry = split.fills(misses, carry)
        return fills

    for token, layers in enumerate(rows.tolist()):
        for layer, ids in enumerate(layers):
            step = policy.step(token, layer, ids, rule)
            planned = model.plan([ids], 1, 4, layer * 16)
            assert (step.misses, step.fills) == (planned.counts["misses"], planned.counts["fills"])
            assert {slot: record for slot, record in enumerate(policy._owner) if record >= 0} == model.held


@settings(deadline=None)
@given(slots=st.integers(4, 48), seed=st.integers(0, 1000), stay=st.floats(0, 0.9), half_life=st.floats(0.5, 50))
def test_lfu_against_a_list_that_is_searched(slots: int, seed: int, stay: float, half_life: float) -> None:
    rows = drifting(60, 3, 16, 4, stay, seed)
    policy = LeastFrequent(Pool(3, 16, slots), half_life)
    uses: dict[int, list[int]] = {}
    held: dict[int, int] = {}  # record -> slot
    stamp = [0] * slots
    free = list(range(slots))
    expected, clock, last = [], 0, {}

    def score(record: int) -> float:
        return sum(math.exp(at * math.log(2) / half_life) for at in uses[record])

    for token, layers in enumerate(rows.tolist()):
        for layer, ids in enumerate(layers):
            records = [layer * 16 + expert for expert in ids]
            missed = sorted((r for r in records if r not in held), key=lambda r: (-last.get(r, 0), r))
            clock += 1
            expected.append(len(missed))
            others = [r for r in held if r not in records]
            others.sort(key=lambda r: (score(r), stamp[held[r]], held[r]))
            taken = []
            for _ in missed:
                if free:
                    taken.append(free.pop(0))
                else:
                    taken.append(held.pop(others.pop(0)))
            for record, slot in zip(missed, sorted(taken), strict=True):
                held[record] = slot
            for record in records:
                uses.setdefault(record, []).append(token)
                stamp[held[record]] = last[record] = clock
    assert _misses(policy, rows) == expected


def test_scores_that_grow_for_ever_are_scaled_down() -> None:
    rows = drifting(4000, 1, 12, 2, 0.3)
    short = LeastFrequent(Pool(1, 12, 5), 0.9)  # 2 ** (4000 / 0.9) is beyond any float
    misses = _misses(short, rows)
    assert all(math.isfinite(score) for score in short._score)
    # at so short a half-life the last use outweighs all before it but for the time between, so it is all but LRU
    assert sum(misses) == pytest.approx(sum(_misses(LeastRecent(Pool(1, 12, 5)), rows)), rel=0.05)


def _least_misses(sequence: tuple[int, ...], slots: int) -> int:
    """The fewest misses of any way to serve one record at a time, every miss filled, by trying all."""

    @cache
    def fewest(at: int, held: frozenset[int]) -> int:
        if at == len(sequence):
            return 0
        record = sequence[at]
        if record in held:
            return fewest(at + 1, held)
        if len(held) < slots:
            return 1 + fewest(at + 1, held | {record})
        return 1 + min(fewest(at + 1, held - {victim} | {record}) for victim in held)

    return fewest(0, frozenset())


@settings(deadline=None, max_examples=60)
@given(sequence=st.lists(st.integers(0, 5), min_size=1, max_size=14), slots=st.integers(1, 4))
def test_the_clairvoyant_misses_as_little_as_can_be(sequence: list[int], slots: int) -> None:
    rows = np.array(sequence, np.int32).reshape(-1, 1, 1)
    clairvoyant = sum(_misses(Clairvoyant(Pool(1, 6, slots), rows), rows))
    assert clairvoyant == _least_misses(tuple(sequence), slots)


@settings(deadline=None, max_examples=40)
@given(slots=st.integers(4, 48), seed=st.integers(0, 1000), stay=st.floats(0, 0.9))
def test_nobody_who_fills_on_demand_beats_the_clairvoyant(slots: int, seed: int, stay: float) -> None:
    rows = drifting(60, 3, 16, 4, stay, seed)
    pool = Pool(3, 16, slots)
    bound = sum(_misses(Clairvoyant(pool, rows), rows))
    assert bound <= sum(_misses(LeastRecent(pool), rows))
    assert bound <= sum(_misses(LeastFrequent(pool), rows))


def test_the_clairvoyant_fills_first_what_comes_soonest() -> None:
    rows = np.array([[[0, 1, 2]], [[3, 4, 5]], [[1, 6, 7]], [[2, 0, 8]]], np.int32)
    policy = Clairvoyant(Pool(1, 9, 9), rows)
    policy.step(0, 0, [0, 1, 2], lambda misses: 1)
    assert [record for record in policy._owner if record >= 0] == [1]


def test_next_uses_are_those_of_a_search() -> None:
    rows = drifting(20, 2, 6, 2)
    uses = next_uses(rows, 6)
    for token in range(20):
        for layer in range(2):
            for expert in rows[token, layer].tolist():
                later = [t * 2 + layer for t in range(token + 1, 20) if expert in rows[t, layer]]
                assert uses[token][layer][expert] == (later[0] if later else math.inf)


def test_static_sets_are_even_fixed_and_fill_the_pool() -> None:
    pool = Pool(7, 10, 33)
    policy = Static(pool)
    assert sorted({pool.share(layer) for layer in range(7)}) == [4, 5]
    assert sum(pool.share(layer) for layer in range(7)) == 33
    assert [len(kept) for kept in policy._kept] == [pool.share(layer) for layer in range(7)]
    rows = drifting(50, 7, 10, 3)
    expected = [
        sum(e not in policy._kept[layer] for e in ids) for layers in rows.tolist() for layer, ids in enumerate(layers)
    ]
    before = [set(kept) for kept in policy._kept]
    assert _misses(policy, rows) == expected
    assert policy._kept == before
    assert Static(pool)._kept == before  # the same in every run


def test_a_prompt_brings_its_experts_and_leaves_the_rest_alone() -> None:
    policy = PrefillRefresh(Pool(1, 8, 4))
    policy._kept = [{4, 5, 6, 7}]
    policy.prompt(np.array([[3, 0, 1, 0, 0, 0, 2, 0]]))
    # 0, 6 and 2 were routed to; of the rest, all with none, 4 was there and has the lowest number
    assert policy._kept == [{0, 2, 4, 6}]
    assert policy.step(0, 0, [0, 1], EVERY).misses == 1
    policy.prompt(np.array([[0, 9, 8, 7, 6, 5, 0, 0]]))
    assert policy._kept == [{1, 2, 3, 4}]


@pytest.mark.parametrize("name", POLICIES)
def test_a_pool_that_holds_everything_misses_each_expert_at_most_once(name: str) -> None:
    rows = drifting(100, 2, 8, 3)
    policy = make_policy(name, Pool(2, 8, 16), rows)
    distinct = len({(layer, e) for layers in rows.tolist() for layer, ids in enumerate(layers) for e in ids})
    assert sum(_misses(policy, rows)) == (0 if name in ("static", "prefill") else distinct)


@pytest.mark.parametrize("name", ["lru", "lfu", "clairvoyant"])
def test_fewer_fills_never_keep_more_than_was_filled(name: str) -> None:
    rows = drifting(80, 2, 8, 3)
    policy = make_policy(name, Pool(2, 8, 7), rows)
    chance, evictions, fills = random.Random(0), 0, 0
    for token, layers in enumerate(rows.tolist()):
        for layer, ids in enumerate(layers):
            step = policy.step(token, layer, ids, lambda misses: chance.randrange(misses + 1))
            assert step.fills <= step.misses
            fills, evictions = fills + step.fills, evictions + step.evictions
    assert isinstance(policy, LeastRecent | LeastFrequent | Clairvoyant)
    held = [record for record in policy._owner if record >= 0]
    assert fills - evictions == len(held) == len(set(held))
    assert all(policy._slot_of[record] == slot for slot, record in enumerate(policy._owner) if record >= 0)


def test_policies_are_found_by_name() -> None:
    assert policies_named("all") == POLICIES
    assert policies_named("lru, static,lru") == ("lru", "static")
    assert policies_named("lru,all") == POLICIES
    with pytest.raises(UsageError) as caught:
        policies_named("clarvoyant")
    assert "Did you mean clairvoyant?" in caught.value.remedy
    with pytest.raises(UsageError, match="''"):
        policies_named("")
