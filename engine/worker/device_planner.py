"""Budgets of a worker on a device: `engine.memory.device_budget` over what the device has now."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from engine.base.units import ExpertRoom, KvBudget, parse_experts
from engine.memory.device_budget import DeviceNeeds, DevicePlan, plan_device_resize
from engine.worker.budget import Budget
from engine.worker.device_needs import MAP_CHUNK
from engine.worker.protocol import ExpertCache
from engine.worker.watcher import WatchPolicy


@dataclass(frozen=True)
class DevicePlanner:
    """Fulfils `engine.worker.budget.Planner`. `needs` are as measured; `free` tells the device's free bytes."""

    needs: DeviceNeeds
    context_limit: int
    context_border: int | None
    device_total: int
    free: Callable[[], int]

    def resized(self, now: Budget, kv: KvBudget | None, experts: ExpertRoom | None) -> Budget:
        return budget_of(
            plan_device_resize(
                self.plan(now),
                self.needs,
                plannable(self.device_total, self.free()),
                context_limit=self.context_limit,
                context_border=self.context_border,
                kv=kv,
                experts=experts,
            )
        )

    def cache(self, budget: Budget) -> ExpertCache:
        plan = self.plan(budget)
        return ExpertCache(sum(plan.slots), plan.experts, plan.share)

    def notes(self, budget: Budget, experts: str | None) -> tuple[str, ...]:
        if experts is None:
            return ()
        room, table = parse_experts(experts), self.needs.table
        if room.nothing:
            return ()
        if not sum(table.most):
            return (f"--experts {room} has no effect: there are no experts that the device could hold.",)
        if table.exceeded_by(room):
            return (f"--experts {room} is more than the {sum(table.most)} experts that can be held: each has a slot.",)
        return ()

    def plan(self, budget: Budget) -> DevicePlan:
        """A budget with all its parts stated, of what the model holds."""
        table = self.needs.table
        experts = table.bytes_of(budget.slots)
        return DevicePlan(
            total=self.needs.fixed + budget.context.kv_bytes + experts,
            weights=self.needs.weights,
            buffers=self.needs.buffers,
            context=budget.context,
            experts=experts,
            slots=budget.slots,
            share=table.record_bytes_of(budget.slots) / table.pool_bytes if table.pool_bytes else 0.0,
            largest_context=budget.context.context,
            asked=budget.room,
        )


def budget_of(plan: DevicePlan) -> Budget:
    """What a plan gives to context and experts."""
    return Budget(plan.context, plan.slots, plan.asked)


def plannable(total: int, free: int) -> int:
    """What can be planned with of free bytes.

    Some stay free, and the watcher sees to it later: other programs need a little at any time, and context memory is
    mapped in whole chunks.
    """
    return max(0, free - kept_free(total))


def kept_free(total: int) -> int:
    """Bytes of a device that no plan gives away."""
    return max(MAP_CHUNK, WatchPolicy.of_device(total, 0).aim)
