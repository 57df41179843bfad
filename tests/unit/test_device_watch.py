"""The watcher's moves where context memory has window pages and states: pages and windows move, states stay."""

from __future__ import annotations

from engine.base.units import MIB, ExpertRoom, KvBudget
from engine.memory.budget import ContextNeeds
from engine.memory.device_budget import DeviceNeeds, plan_device
from engine.memory.slots import BankSize, SlotTable
from engine.worker.budget import Budget
from engine.worker.device_planner import DevicePlanner, budget_of
from engine.worker.device_watch import DeviceWatch
from engine.worker.watcher import WatchPolicy

TOTAL = 1024 * MIB
TABLE = SlotTable((BankSize(MIB, 400, 400),), 8, 1)
NEEDS = DeviceNeeds(16 * MIB, 16 * MIB, ContextNeeds(2000, 1000, 512, MIB), 1 << 20, TABLE)
POLICY = WatchPolicy(low=16 * MIB, aim=32 * MIB, high=64 * MIB, step=512 * MIB, grain=MIB)


def start(kv: int, free: int) -> tuple[DeviceWatch, DevicePlanner, Budget]:
    """With 200 slots, and so many bytes of the device that are nobody's."""
    budget = budget_of(plan_device(NEEDS, TOTAL, kv=KvBudget(tokens=kv), experts=ExpertRoom(slots=200)))
    planner = DevicePlanner(NEEDS, 1 << 20, None, TOTAL, lambda: 0)
    return DeviceWatch(planner, lambda: (TOTAL, free), budget, lambda total, wish: POLICY), planner, budget


def after_a_while(watch: DeviceWatch, budget: Budget, wanted: int) -> Budget:
    """What should be in force once memory has been low, or contexts short, for long enough."""
    assert watch.look(0.0, budget, wanted) is None
    found = watch.look(100.0, budget, wanted)
    assert found is not None
    return found[0]


def test_experts_give_what_others_take() -> None:
    watch, _, budget = start(64_000, free=0)
    moved = after_a_while(watch, budget, 64_000)
    assert sum(moved.slots) == 200 - POLICY.aim // MIB
    assert moved.context == budget.context


def test_contexts_that_are_short_get_pages_and_windows_within_what_experts_give() -> None:
    free = 48 * MIB
    watch, planner, budget = start(64_000, free)
    moved = after_a_while(watch, budget, 96_000)
    assert moved.context.kv_tokens >= 96_000
    assert moved.context.states == budget.context.states > 0
    assert moved.context.room.windows > budget.context.room.windows
    before, after = planner.plan(budget), planner.plan(moved)
    assert 0 < after.kv + after.experts - before.kv - before.experts <= free - POLICY.aim
