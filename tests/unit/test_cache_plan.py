"""What the plan of a MoE layer decides, case by case, on the simulated device. docs/experts.md states the rules."""

from __future__ import annotations

import random

import pytest

from engine.experts.split import CARRIED, Branch, Split, Timing
from tests.unit.cache_model import CPU, PADDING, RETURNED
from tests.unit.cache_rig import CacheRig, Geometry


def rig(split: Split | None = None, **geometry: int) -> CacheRig:
    return CacheRig(Geometry(**geometry), split or Split.all_fill())


def hit(slot: int) -> int:
    return 2 * slot


def fill(slot: int) -> int:
    return 2 * slot + 1


def held(cache: CacheRig) -> dict[int, int]:
    """Record by slot, as the device has it."""
    return {slot: record for slot, record in enumerate(cache.cache.snapshot().owner.tolist()) if record >= 0}


def test_misses_are_filled_and_found_again() -> None:
    cache = rig()
    first = cache.step([[5, 2], [2, 7]], bucket=2, layer=0)
    assert first.fills == [(2, 0), (5, 1), (7, 2)]
    assert first.target == [fill(1), fill(0), fill(0), fill(2)]
    again = cache.step([[7, 5]], bucket=1, layer=0)
    assert again.target == [hit(2), hit(1)]
    assert again.counts == {"distinct": 2, "hits": 2, "misses": 0, "fills": 0, "cpu": 0}
    cache.compare()


def test_layers_share_the_slots_and_not_the_experts() -> None:
    cache = rig()
    cache.step([[5, 2]], bucket=1, layer=0)
    other = cache.step([[5, 2]], bucket=1, layer=1)
    assert other.fills == [(8 + 2, 2), (8 + 5, 3)]
    assert held(cache) == {0: 2, 1: 5, 2: 10, 3: 13}


def test_ids_beyond_the_experts_are_nobodys() -> None:
    cache = rig()
    planned = cache.step([[5, 8], [11, 9]], bucket=3, layer=0)
    assert planned.target == [fill(0), RETURNED, RETURNED, RETURNED, PADDING, PADDING]
    assert planned.counts == {"distinct": 1, "hits": 0, "misses": 1, "fills": 1, "cpu": 0}
    assert held(cache) == {0: 5}, "id 8 is not the first expert of the layer behind"
    cache.compare()


def test_padding_touches_nothing() -> None:
    cache = rig()
    planned = cache.step([[1, 3]], bucket=4, layer=0)
    assert planned.target == [fill(0), fill(1)] + [PADDING] * 6
    nobody = cache.step([], bucket=4, layer=0)
    assert nobody.target == [PADDING] * 8
    assert nobody.counts["distinct"] == 0
    assert held(cache) == {0: 1, 1: 3}
    cache.compare()


def test_the_slots_used_least_recently_go_first() -> None:
    cache = rig(slots=4)
    for experts in ([0, 1], [2, 3], [0, 1]):
        cache.step([experts], bucket=1, layer=0)
    assert cache.step([[4, 5]], bucket=1, layer=0).fills == [(4, 2), (5, 3)]
    assert held(cache) == {0: 0, 1: 1, 2: 4, 3: 5}


def test_slots_used_equally_long_ago_go_by_their_number() -> None:
    cache = rig(slots=3, top_k=3)
    cache.step([[6, 1, 4]], bucket=1, layer=0)
    cache.set_split(Split("table", 0.0, (0, 1, 1, 2)))
    assert cache.step([[0, 3, 5]], bucket=1, layer=0).fills == [(0, 0), (3, 1)]
    assert held(cache) == {0: 0, 1: 3, 2: 6}


def test_victims_are_given_away_in_ascending_order() -> None:
    cache = rig(slots=4, experts=16, top_k=1)
    for expert in (0, 1, 2, 3):
        cache.step([[expert]], bucket=1, layer=0)
    for expert in (1, 0, 3, 2):  # from now on slot 1 is the oldest, then 0, 3, 2
        cache.step([[expert]], bucket=1, layer=0)
    planned = cache.step([[9], [8]], bucket=2, layer=0)
    assert planned.fills == [(8, 0), (9, 1)]


def test_the_misses_used_last_are_filled_and_the_rest_is_the_cpus() -> None:
    cache = rig(Split.all_cpu(), slots=4)
    for expert in (6, 1, 4):
        cache.step([[expert, 0]], bucket=1, layer=0)
    cache.set_split(Split("table", 0.0, (0, 1, 2, 2, 2)))
    planned = cache.step([[6, 1], [4, 3]], bucket=2, layer=0)
    assert planned.fills == [(4, 0), (1, 1)]
    assert planned.target == [CPU, fill(1), fill(0), CPU]


def test_misses_used_equally_long_ago_are_filled_by_their_number() -> None:
    cache = rig(Split("table", 0.0, (0, 1, 1, 1, 2)), slots=4)
    assert cache.step([[6, 5], [4, 7]], bucket=2, layer=0).fills == [(4, 0), (5, 1)]


def test_an_expert_of_this_step_is_no_victim() -> None:
    cache = rig(slots=2)
    cache.step([[0, 1]], bucket=1, layer=0)
    planned = cache.step([[0, 1], [2, 3]], bucket=2, layer=0)
    assert planned.fills == []
    assert planned.target == [hit(0), hit(1), CPU, CPU]
    one_free = cache.step([[0, 2], [0, 3]], bucket=2, layer=0)  # 2 and 3 were used equally long ago
    assert one_free.fills == [(2, 1)]
    assert one_free.target == [hit(0), fill(1), hit(0), CPU]
    cache.compare()


def test_fewer_slots_than_a_step_has_experts() -> None:
    cache = rig(slots=2, experts=16, top_k=4, max_tokens=4)
    planned = cache.step([[9, 3, 5, 7], [9, 1, 3, 2]], bucket=2, layer=0)
    assert planned.counts == {"distinct": 6, "hits": 0, "misses": 6, "fills": 2, "cpu": 4}
    assert planned.fills == [(1, 0), (2, 1)]
    cache.compare()


def test_no_slots_leave_all_to_the_cpu() -> None:
    cache = rig(slots=0)
    assert cache.step([[1, 2]], bucket=2, layer=0).target == [CPU, CPU, PADDING, PADDING]
    cache.compare()


def test_records_that_the_device_cannot_read_are_the_cpus_and_do_not_count_for_the_rule() -> None:
    cache = rig(Split("table", 0.0, (0, 0, 2, 0)), fillable=5, max_tokens=2)
    planned = cache.step([[4, 5], [3, 6]], bucket=2, layer=0)  # two of four can be filled: table[2]
    assert planned.fills == [(3, 0), (4, 1)]
    assert planned.target == [fill(1), CPU, fill(0), CPU]
    assert planned.counts == {"distinct": 4, "hits": 0, "misses": 4, "fills": 2, "cpu": 2}
    assert cache.step([[0, 1]], bucket=1, layer=1).counts["cpu"] == 2


@pytest.mark.parametrize(
    ("split", "fills"),
    [
        (Split.all_fill(), [1, 2, 3, 4, 5, 6]),
        (Split.all_cpu(), [0, 0, 0, 0, 0, 0]),
        (Split("table", 0.0, (0, 1, 1, 2)), [1, 1, 2, 2, 2, 2]),
        (Split("table", 0.5, (0, 1, 1, 2)), [1, 1, 2, 2, 3, 3]),
        (Split("table", 1.0, (0,)), [1, 2, 3, 4, 5, 6]),
        (Split("table", 0.5, (0, CARRIED, CARRIED, 2, CARRIED, 1)), [0, 1, 2, 2, 1, 1]),  # 0.5, 1 + 0.5, 2 + 0.5
        (Split.carry(0.5), [0, 1, 2, 2, 2, 3]),  # 0.5, 1 + 0.5, 1.5 + 0.5, 2, 2.5, 3 + 0.5
        (Split.carry(0.0), [0, 0, 0, 0, 0, 0]),
        (Split.carry(1.0), [1, 2, 3, 4, 5, 6]),
        (Split.usual(Timing(Branch(0.0, 0.7), Branch(0.0, 0.3))), [0, 0, 1, 1, 1, 2]),  # 0.3, 0.9 and 1.8 are carried
    ],
    ids=lambda value: f"{value.rule}-{value.fraction}" if isinstance(value, Split) else "",
)
def test_rules_divide_the_misses(split: Split, fills: list[int]) -> None:
    cache = rig(split, experts=32, layers=1, slots=32, top_k=1, max_tokens=8)
    first, found, carry = 0, [], 0
    for misses in range(1, 7):
        planned = cache.step([[first + i] for i in range(misses)], bucket=8, layer=0)
        wished, carry = split.fills(misses, carry)
        assert planned.counts["fills"] == wished
        found.append(planned.counts["fills"])
        first += misses
    assert found == fills
    cache.compare()


def test_a_carry_is_kept_across_clamping_layers_and_splits() -> None:
    cache = rig(Split.carry(0.75), slots=1, top_k=1, max_tokens=3)
    assert cache.step([[0], [1], [2]], bucket=3, layer=0).counts["fills"] == 1  # 2.25 wished, one victim
    assert cache.cache.snapshot().carry == 1 << 14
    assert cache.step([[0]], bucket=1, layer=1).counts["fills"] == 1  # 0.25 + 0.75
    cache.set_split(Split.carry(0.5))
    cache.step([[1]], bucket=1, layer=1)
    assert cache.cache.snapshot().carry == 1 << 15
    cache.compare()


def test_a_chunk_of_a_prompt_with_many_experts() -> None:
    """512 tokens of 64 experts each among 4096."""
    rng = random.Random(4)
    cache = rig(layers=1, experts=4096, slots=700, top_k=64, max_tokens=512, threads=1024)
    for split, rows in ((Split.carry(0.4), 511), (Split.all_fill(), 20)):
        cache.set_split(split)
        tokens = [rng.sample(range(4096), 64) for _ in range(rows)]
        planned = cache.step(tokens, bucket=512, layer=0)
        assert planned.counts["fills"] > 0
    snapshot = cache.cache.snapshot()
    snapshot.check()
    assert dict(enumerate(snapshot.owner.tolist()[:700])) == cache.model.held


@pytest.mark.parametrize("threads", [32, 96, 1024])
def test_the_size_of_the_block_changes_nothing(threads: int) -> None:
    rng = random.Random(9)
    cache = rig(Split.carry(0.6), layers=2, experts=50, slots=37, top_k=5, max_tokens=4, threads=threads)
    for _ in range(30):
        tokens = [rng.sample(range(50), 5) for _ in range(rng.randint(0, 4))]
        cache.step(tokens, bucket=4, layer=rng.randrange(2))
    cache.compare()


def test_totals_add_up_and_each_layer_keeps_its_last_plan() -> None:
    cache = rig()
    cache.step([[0, 1]], bucket=1, layer=0)
    cache.step([[0, 2]], bucket=1, layer=0)
    cache.step([[3, 4], [3, 5]], bucket=2, layer=1)
    assert cache.cache.layer_counts().tolist() == [[2, 1, 1, 1, 0], [3, 0, 3, 3, 0]]
    totals = cache.cache.read_totals()
    assert (totals.distinct, totals.hits, totals.misses, totals.fills, totals.cpu, totals.plans) == (7, 1, 6, 6, 0, 3)
