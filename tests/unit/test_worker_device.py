"""The engine of a worker on a device: sizes that move while requests run, counts, and a device that breaks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.base.errors import NoRoomError
from engine.base.units import ExpertRoom, KvBudget
from engine.worker.budget import Budget
from engine.worker.device_planner import DevicePlanner
from engine.worker.device_watch import DeviceWatch
from engine.worker.engine import Engine
from engine.worker.protocol import Done, ExpertCache, Failed, GetStats, Resize, Resized, Stats
from engine.worker.watcher import WatchPolicy
from tests.unit.engine_rig import Front
from tests.unit.fake_device import EXPERTS, LAYERS, RECORD, TOP_K, TOTAL, FakeDevice, fake_device_model
from tests.unit.fake_executor import answer

POOL = LAYERS * EXPERTS


def make(**settings: Any) -> tuple[Front, FakeDevice]:
    model = fake_device_model(**settings)
    assert isinstance(model.executor, FakeDevice)
    return Front(Engine(model)), model.executor


def resize(front: Front, kv: KvBudget | None = None, experts: str | None = None) -> Resized | Failed:
    (message,) = front.engine.handle(Resize(7, kv, experts))
    assert isinstance(message, Resized | Failed)
    return message


def test_a_worker_says_what_room_it_has() -> None:
    front, device = make(experts=ExpertRoom(share=0.5))
    ready = front.engine.ready()
    assert ready.cache == ExpertCache(slots=32, bytes=32 * RECORD, share=0.5)
    assert (ready.device, ready.device_total, sum(device.slots)) == ("sim", TOTAL, 32)


@pytest.mark.parametrize(
    ("text", "slots"), [("16", 16), ("25%", 16), ("20KB", 20), ("0", 0), ("0%", 0), ("100%", POOL), ("2", TOP_K)]
)
def test_experts_are_resized_by_slots_shares_and_bytes(text: str, slots: int) -> None:
    front, device = make(experts=ExpertRoom(slots=8), kv=KvBudget(tokens=160))
    resized = resize(front, experts=text)
    assert isinstance(resized, Resized)
    assert resized.cache_before == ExpertCache(8, 8 * RECORD, 8 / POOL)
    assert resized.cache_after == ExpertCache(slots, slots * RECORD, slots / POOL)
    assert (sum(device.slots), resized.kv_before, resized.kv_after) == (slots, 160, 160)
    assert resized.seconds >= 0


@pytest.mark.parametrize("text", ["1", "1%", "1KB"])
def test_fewer_slots_than_a_token_has_experts_are_refused_with_what_works(text: str) -> None:
    front, device = make(experts=ExpertRoom(slots=8))
    failed = resize(front, experts=text)
    assert isinstance(failed, Failed)
    assert failed.error == "DoesNotFitError"
    assert failed.remedy == "Give --experts 2 or more, or --experts 0 to cache none."
    assert sum(device.slots) == 8


def test_more_experts_than_there_are_get_a_slot_each_and_a_sentence() -> None:
    front, _ = make(experts=ExpertRoom(slots=8), kv=KvBudget(tokens=160))
    resized = resize(front, experts="1000")
    assert isinstance(resized, Resized)
    assert resized.cache_after is not None
    assert resized.cache_after.slots == POOL
    assert "is more than the 64 experts" in resized.notes[0]


def test_what_shrinks_goes_first_so_that_what_grows_finds_its_room() -> None:
    front, device = make(experts=ExpertRoom(slots=8), kv=KvBudget(tokens=4000), size=440_000)
    assert isinstance(resize(front, KvBudget(tokens=400), "64"), Resized)
    assert isinstance(resize(front, KvBudget(tokens=4000), "4"), Resized)
    assert device.moves == ["kv 250 25", "experts 8 64", "experts 64 4", "kv 25 250"]


def test_a_share_of_context_moves_memory_between_both_ways() -> None:
    front, device = make(size=300_000)
    before = device.taken
    small = resize(front, KvBudget(share=0.2))
    large = resize(front, KvBudget(share=0.9))
    assert isinstance(small, Resized)
    assert isinstance(large, Resized)
    assert small.kv_after < small.kv_before
    assert large.kv_after > 4 * small.kv_after
    assert small.cache_after is not None
    assert large.cache_after is not None
    assert small.cache_after.slots > large.cache_after.slots
    assert before <= device.size


def test_too_much_is_refused_with_the_numbers_and_nothing_moves() -> None:
    front, device = make(experts=ExpertRoom(slots=8), kv=KvBudget(tokens=1600), size=250_000)
    failed = resize(front, KvBudget(tokens=4000), "64")
    assert isinstance(failed, Failed)
    assert failed.error == "NoRoomError"
    assert failed.ticket == 7
    assert "more than the" in failed.message
    assert "Give --" in failed.remedy
    assert device.moves == []


@pytest.mark.parametrize("kv", [1520, 4000])
def test_a_resize_that_fails_half_way_leaves_the_old_sizes(kv: int) -> None:
    front, device = make(experts=ExpertRoom(slots=8), kv=KvBudget(tokens=1600))
    front.generate(1, [30, 31, 32], 40)
    for _ in range(5):
        front.hear(front.engine.step())
    device.size = device.taken + 20 * RECORD - 1  # what the plan counts on goes to somebody else
    lying = replace(front.engine._model.planner, free=lambda: TOTAL)  # type: ignore[type-var]
    front.engine._planner = lying
    failed = resize(front, KvBudget(tokens=kv), "28" if kv > 1600 else "64")
    assert isinstance(failed, Failed)
    assert failed.error == "NoRoomError"
    assert (device.slots, device.room.pages) == ((8,), 100)
    assert front.engine.ready().kv_tokens == 1600
    front.run()
    assert front.tokens[1] == answer([30, 31, 32], 40)


def test_when_not_even_the_old_size_can_be_had_again_what_there_is_counts() -> None:
    front, device = make(experts=ExpertRoom(slots=8), kv=KvBudget(tokens=1600))

    def refuse(slots: Any) -> None:
        device.size = device.taken  # what context gave up is gone
        raise NoRoomError("There is no room.", "Give less.")

    device.resize_experts = refuse  # type: ignore[method-assign]
    assert isinstance(resize(front, KvBudget(tokens=400), "64"), Failed)
    ready = front.engine.ready()
    assert (ready.kv_tokens, device.room.pages) == (400, 25)
    front.generate(1, [40] * 300, 20)
    front.run()
    assert front.tokens[1] == answer([40] * 300, 20)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(st.sampled_from([800, 1600, 3200]), st.sampled_from(["0", "2", "17", "64"])), max_size=30))
def test_resizes_while_requests_run_lose_none_and_change_no_token(sizes: list[tuple[int, str]]) -> None:
    front, _ = make(experts=ExpertRoom(slots=8), kv=KvBudget(tokens=1600))
    prompts = {number: [50 + number, 60, 70] * (5 * number) for number in (1, 2, 3)}
    for number, prompt in prompts.items():
        front.generate(number, prompt, 40)
    for kv, experts in sizes:
        front.hear(front.engine.step())
        assert isinstance(resize(front, KvBudget(tokens=kv), experts), Resized)
    front.run()
    assert front.tokens == {number: answer(prompt, 40) for number, prompt in prompts.items()}


def test_hits_fills_and_the_cpus_share_are_counted_and_told_of_each_answer() -> None:
    front, device = make(experts=ExpertRoom(share=0.5), kv=KvBudget(tokens=1600))
    front.generate(1, [30], 11)
    front.run()
    done = front.done[1]
    assert done.experts is not None
    counts = done.experts.counts
    assert (counts["plans"], counts["hits"], counts["misses"]) == (10 * LAYERS, 20 * LAYERS, 20 * LAYERS)
    assert (counts["fills"], counts["cpu_experts"]) == (10 * LAYERS, 10 * LAYERS)
    assert counts["link_bytes"] == counts["fills"] * RECORD
    assert counts["link_seconds"] > 0
    assert done.experts.clock == "rtx4090-server"
    assert done.experts.why
    (stats,) = front.engine.handle(GetStats(1))
    assert isinstance(stats, Stats)
    assert stats.values["hit_rate"] == pytest.approx(0.5)
    assert stats.values["misses_per_layer"] == 2.0
    assert stats.values["cpu_share"] == 0.25
    assert 0 < stats.values["link_gbps"] < 25.1
    assert stats.values["expert_share"] == 0.5
    assert stats.experts is not None
    assert stats.experts.counts["plans"] == 11 * LAYERS
    assert device.splits, "the split was never put in force"


def test_the_split_follows_what_steps_show() -> None:
    front, device = make(experts=ExpertRoom(share=0.5), kv=KvBudget(tokens=3200))
    first = device.splits[-1]
    front.generate(1, [30], 2000)
    front.run()
    assert len(device.splits) > 1
    assert device.splits[-1] != first
    assert front.done[1].experts is not None
    assert front.done[1].experts.fraction == pytest.approx(device.splits[-1].fraction)


def test_a_step_that_fails_is_a_sentence_to_its_requests_and_the_worker_goes_on() -> None:
    front, device = make(kv=KvBudget(tokens=1600))
    front.generate(1, [30], 50)
    front.hear(front.engine.step())
    device.broken = 1
    front.run()
    assert front.failed[1].message == "The CPU did not finish its experts."
    front.generate(2, [31], 5)
    front.run()
    assert front.tokens[2] == answer([31], 5)
    assert isinstance(front.done[2], Done)


def patient(total: int, wish: int) -> WatchPolicy:
    return WatchPolicy(low=5_000, aim=10_000, high=15_000, step=20_000, grain=1_000, give_after=2.0, take_after=5.0)


def test_experts_make_way_for_other_programs_and_come_back() -> None:
    now = 0.0
    model = fake_device_model(KvBudget(tokens=1600), ExpertRoom(slots=60))
    device = model.executor
    assert isinstance(device, FakeDevice)
    assert isinstance(model.planner, DevicePlanner)
    free = 50_000
    watch = DeviceWatch(model.planner, lambda: (TOTAL, free), model.budget, patient)
    engine = Engine(replace(model, watch=watch), clock=lambda: now)
    assert engine.idle_seconds == pytest.approx(1.0)

    def pass_seconds(seconds: int) -> list[Resized]:
        nonlocal now
        heard = []
        for _ in range(seconds):
            now += 1.0
            heard += engine.watch()
        assert all(isinstance(message, Resized) and message.ticket == 0 for message in heard)
        return heard  # type: ignore[return-value]

    assert pass_seconds(30) == []
    free = 0
    (given,) = pass_seconds(4)
    assert sum(device.slots) == 50
    assert "are free: experts give back" in given.notes[0]
    assert given.cache_after == engine.ready().cache
    free = 100_000
    assert pass_seconds(10)
    assert sum(device.slots) == 60
    assert pass_seconds(30) == []


def test_what_somebody_asks_for_is_what_the_watcher_comes_back_to() -> None:
    model = fake_device_model(KvBudget(tokens=1600), ExpertRoom(slots=60))
    wished: list[Budget] = []

    class Watch:
        def wished(self, budget: Budget) -> None:
            wished.append(budget)

        def look(self, now: float, budget: Budget, wanted_tokens: int) -> None:
            return None

    front = Front(Engine(replace(model, watch=Watch())))
    assert isinstance(resize(front, experts="20"), Resized)
    assert [budget.slots for budget in wished] == [(20,)]
    assert isinstance(resize(front, experts="1"), Failed)
    assert len(wished) == 1
