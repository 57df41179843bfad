"""Replay: what counts, capacities to the slot, rules and times."""

from collections import OrderedDict
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.base.errors import FreetokenError, UsageError
from engine.base.units import ExpertRoom, parse_experts
from engine.experts.machines import MACHINES
from engine.experts.policies import POLICIES
from engine.experts.replay import CARRY, DEFAULT, FILL, NEAREST, Clock, replay, rules_for, slots_of
from engine.experts.split import Split
from engine.experts.trace import Trace, TraceHeader, read_trace
from tests.unit.routing import drifting, recorded_trace, trace_of

RECORD = 1769472


def _lru(rows: np.ndarray, slots: int, warmup: int) -> float:
    """An ordered dict over (layer, expert), every miss filled: shares nothing with the policies."""
    held: OrderedDict[tuple[int, int], None] = OrderedDict()
    misses = reads = 0
    for token, layers in enumerate(rows.tolist()):
        for layer, ids in enumerate(layers):
            missed = [(layer, expert) for expert in ids if (layer, expert) not in held]
            for expert in ids:
                if (layer, expert) in held:
                    held.move_to_end((layer, expert))
            for key in missed:
                if len(held) == slots:
                    held.popitem(last=False)
                held[key] = None
            if token >= warmup:
                misses += len(missed)
                reads += len(ids)
    return misses / reads


@settings(deadline=None, max_examples=30)
@given(slots=st.integers(4, 60), warmup=st.integers(0, 50), seed=st.integers(0, 99))
def test_lru_is_about_an_ordered_dict(slots: int, warmup: int, seed: int) -> None:
    """They break ties between the experts of one layer of one token in different ways, which hardly shows."""
    rows = drifting(200, 4, 16, 4, 0.5, seed)
    found = replay(trace_of(rows, 16), "lru", slots, warmup).miss_rate
    assert found == pytest.approx(_lru(rows, slots, warmup), abs=0.03)


def test_counts_agree_with_each_other() -> None:
    outcome = replay(trace_of(drifting(120), 16), "lru", 12, 20)
    assert outcome.tokens == 100
    assert sum(outcome.steps_by_misses) == 100 * 3
    assert sum(m * steps for m, steps in enumerate(outcome.steps_by_misses)) == outcome.misses == outcome.fills
    assert outcome.miss_rate == outcome.misses / (100 * 3 * 2)
    assert sum(outcome.misses_by_layer) == pytest.approx(outcome.misses / 100)
    assert outcome.misses_per_layer == pytest.approx(outcome.misses / 300)
    assert sum(outcome.m_shares) == pytest.approx(1)
    assert outcome.seconds == 0
    assert outcome.evictions == outcome.misses  # the pool was full long before


def test_warm_up_is_replayed_and_not_counted() -> None:
    trace = trace_of(drifting(100, stay=0.9), 16)
    cold, warm = replay(trace, "lru", 48, 0), replay(trace, "lru", 48, 50)
    assert cold.tokens == 100
    assert warm.tokens == 50
    assert 0 < warm.miss_rate < cold.miss_rate


@pytest.mark.parametrize("policy", [policy for policy in POLICIES if policy != "prefill"])
def test_prefill_is_not_replayed(policy: str) -> None:
    """What prompts route to leaves no trace in the slots, but for the policy that asks."""
    rows = drifting(60)
    alone = replay(trace_of(rows[20:], 16), policy, 12)
    led = replay(trace_of(rows, 16, "p" * 20 + "d" * 40), policy, 12)
    assert led == alone


def test_prefill_counts_only_requests_whose_prompt_is_there() -> None:
    rows = drifting(40)
    trace = trace_of(rows, 16, "dddddddddd" + "pppppdddddddddd" + "ddddddddddddddd", "a" * 10 + "b" * 15 + "c" * 15)
    assert replay(trace, "prefill", 12).tokens == 10
    assert replay(trace, "prefill", 12, warmup=15).tokens == 5
    with pytest.raises(FreetokenError, match="prompt"):
        replay(trace, "prefill", 12, warmup=20)
    with pytest.raises(FreetokenError, match="prompt"):
        replay(trace_of(rows, 16), "prefill", 12)


def test_a_refreshed_set_is_that_of_the_prompt() -> None:
    """Six experts a layer, of which the prompt routes to four: none of the answer's misses if it stays with those."""
    prompt, other = [[0, 1], [2, 3]], [[4, 5], [6, 7]]
    rows = np.array([[prompt[0]], [prompt[1]], [prompt[0]], [other[0]], [prompt[1]]], np.int32)
    outcome = replay(trace_of(rows, 64, "ppddd"), "prefill", 4)
    assert outcome.steps_by_misses == (2, 0, 1)


def test_requests_may_take_turns() -> None:
    rows = np.array([[[0, 1]], [[2, 3]], [[0, 1]], [[2, 3]]], np.int32)
    outcome = replay(trace_of(rows, 64, "ppdd", "abab"), "prefill", 2)
    assert outcome.misses == 0


@pytest.mark.parametrize(("warmup", "says"), [(10, "leaves none"), (11, "10 decode tokens")])
def test_a_warm_up_as_long_as_the_trace_is_refused(warmup: int, says: str) -> None:
    with pytest.raises(UsageError, match=says) as caught:
        replay(trace_of(drifting(12), 16, "pp" + "d" * 10), "lru", 12, warmup)
    assert "--warmup 9" in caught.value.remedy


def test_nothing_to_count_is_refused() -> None:
    for phases in ("", "ppp"):
        with pytest.raises(FreetokenError, match="no decode tokens"):
            replay(trace_of(drifting(max(len(phases), 1))[: len(phases)], 16, phases), "lru", 12)


HEADER = TraceHeader("any", 40, 256, 8, "synthetic")


@pytest.mark.parametrize(
    ("text", "slots"),
    [
        ("37%", 3788),
        ("100%", 10240),
        ("29%", 2969),
        ("57%", 5836),
        ("0.1%", 10),
        ("8", 8),
        ("10240", 10240),
        ("1G", 606),
    ],
)
def test_capacities_to_the_slot(text: str, slots: int) -> None:
    assert slots_of(parse_experts(text), HEADER, RECORD) == slots


def test_a_whole_share_is_not_lost_to_rounding() -> None:
    """0.29 * 100 is 28.999999999999996: still 29 slots of 100."""
    header = TraceHeader("any", 1, 100, 1, "synthetic")
    assert [slots_of(parse_experts(f"{n}%"), header, 0) for n in range(1, 101)] == list(range(1, 101))


@pytest.mark.parametrize(
    ("room", "says"),
    [
        (ExpertRoom(slots=7), "7 slots are fewer than the 8"),
        (ExpertRoom(share=0.0001), "1 slots are fewer"),
        (ExpertRoom(slots=10241), "more than the 10240"),
        (ExpertRoom(bytes=100), "0 slots are fewer"),
    ],
)
def test_capacities_that_cannot_be(room: ExpertRoom, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        slots_of(room, HEADER, RECORD)


def test_bytes_need_the_size_of_an_expert() -> None:
    with pytest.raises(UsageError, match="size of an expert"):
        slots_of(ExpertRoom(bytes=1 << 30), HEADER, 0)


@pytest.mark.parametrize("policy", ["lru", "lfu", "static", "clairvoyant"])
def test_times_are_those_of_the_machine(policy: str) -> None:
    machine = MACHINES["rtx4090-server"]
    trace = trace_of(drifting(80, 3, 16, 4), 16)
    outcome = replay(trace, policy, 16, 10, Split.all_fill(), Clock(machine, RECORD))
    by_hand = sum(n * machine.seconds(m, m, RECORD) for m, n in enumerate(outcome.steps_by_misses))
    assert outcome.seconds == pytest.approx(by_hand)
    assert outcome.seconds_per_token == pytest.approx(by_hand / 70)
    assert outcome.layer_misses == replay(trace, policy, 16, 10).layer_misses


def test_rules_fill_what_they_say() -> None:
    machine = MACHINES["rtx4060-laptop"]
    trace = trace_of(drifting(300, 4, 32, 6), 32)
    rules = rules_for(machine, RECORD)
    assert list(rules) == [NEAREST, CARRY, DEFAULT, FILL]
    found = {rule: replay(trace, "lru", 40, 50, split, Clock(machine, RECORD)) for rule, split in rules.items()}
    assert found[CARRY].fills / found[CARRY].misses == pytest.approx(rules[CARRY].fraction, abs=0.01)
    assert found[FILL].fills == found[FILL].misses
    # the first rule fills at least one of any misses, so more than the fraction, and what is filled saves misses
    assert found[CARRY].fills < found[NEAREST].fills < found[FILL].fills
    assert found[FILL].misses < found[NEAREST].misses < found[CARRY].misses


@pytest.fixture(scope="module")
def recorded() -> Trace:
    return read_trace(recorded_trace())


def test_the_recorded_trace_agrees_with_an_independent_replay(recorded: Trace) -> None:
    """Decode tokens, the first 128 not counted, 37 % of the pool; the prompts' hot sets over all tokens they lead."""
    slots = slots_of(parse_experts("37%"), recorded.header, 0)
    lru = replay(recorded, "lru", slots, 128)
    assert lru.miss_rate == pytest.approx(0.137, abs=0.0005)
    assert lru.miss_rate == pytest.approx(_lru(recorded.experts[recorded.decode], slots, 128), abs=0.0005)
    assert lru.misses_per_layer == pytest.approx(1.1, abs=0.01)
    assert lru.m_shares[0] == pytest.approx(0.41, abs=0.005)
    assert sum(lru.m_shares[:3]) == pytest.approx(0.87, abs=0.005)
    assert replay(recorded, "static", slots, 128).miss_rate == pytest.approx(0.64, abs=0.02)
    assert replay(recorded, "prefill", slots).miss_rate == pytest.approx(0.31, abs=0.002)


def test_on_the_recorded_trace_more_slots_never_miss_more(recorded: Trace) -> None:
    for policy in ("lru", "static", "clairvoyant"):
        rates = [replay(recorded, policy, 10240 * percent // 100, 128).miss_rate for percent in (5, 20, 37, 70)]
        assert all(more > less for more, less in pairwise(rates))
