"""The watcher's moves as budgets: it thinks in bytes of a device, a worker in slots and pages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from engine.memory.budget import crosses
from engine.memory.pages import PAGE_TOKENS, pages_for
from engine.worker.budget import Budget
from engine.worker.device_planner import DevicePlanner
from engine.worker.watcher import MemoryReader, Move, Observation, Watcher, WatchPolicy, Wish

PolicyOf = Callable[[int, int], WatchPolicy]
"""The policy for a device of so many bytes whose experts were given so many."""


class DeviceWatch:
    """Fulfils `engine.worker.loaded.Watch`. `read` tells the device's bytes in all and those that are free."""

    def __init__(
        self, planner: DevicePlanner, read: MemoryReader, wish: Budget, policy_of: PolicyOf = WatchPolicy.of_device
    ) -> None:
        self._planner = planner
        self._read = read
        self._policy_of = policy_of
        self._watcher = self._begin(wish)

    def wished(self, budget: Budget) -> None:
        """Somebody has asked for this budget: it is what to come back to."""
        self._watcher = self._begin(budget)

    def look(self, now: float, budget: Budget, wanted_tokens: int) -> tuple[Budget, str] | None:
        """Another budget that should be in force, and why; None while this one should stay.

        `wanted_tokens` are those that live and waiting requests need together.
        """
        plan = self._planner.plan(budget)
        seen = Observation(
            now=now,
            free=self._read()[1],
            experts=plan.experts,
            kv=plan.kv,
            kv_wanted=replace(budget.context, kv_tokens=pages_for(wanted_tokens) * PAGE_TOKENS).kv_bytes,
        )
        move = self._watcher.observe(seen)
        if move is None:
            return None
        moved = self._moved(budget, move)
        return None if moved == budget else (moved, move.why)

    def _begin(self, wish: Budget) -> Watcher:
        plan, table = self._planner.plan(wish), self._planner.needs.table
        least = table.bytes_of(table.least) if sum(wish.slots) else 0
        policy = self._policy_of(self._planner.device_total, plan.experts)
        return Watcher(policy, Wish(experts=plan.experts, kv=plan.kv, least=least))

    def _moved(self, budget: Budget, move: Move) -> Budget:
        planner, context = self._planner, budget.context
        empty = planner.needs.nothing(context.states)
        tokens = max(PAGE_TOKENS, planner.needs.tokens_within(move.kv, empty))
        wanted = replace(empty, context=min(planner.context_limit, tokens), kv_tokens=tokens)
        if crosses(planner.context_border, context.context, wanted.context):
            wanted = context  # what has been read would be wrong
        return replace(budget, context=wanted, slots=planner.needs.table.within(move.experts))
