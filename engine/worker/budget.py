"""What a worker's memory is divided into, and how the division changes while it serves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from engine.base.errors import FreetokenError
from engine.base.units import ExpertRoom, KvBudget
from engine.memory.budget import ContextPlan, plan_resize
from engine.memory.pages import PAGE_TOKENS
from engine.memory.resizing import grow, shrink
from engine.program.executor import Executor
from engine.worker.protocol import ExpertCache, experts_notes
from engine.worker.scheduler import Scheduler


@dataclass(frozen=True)
class Budget:
    """Context memory, and on a device the slots of each bank. `room` is the room for experts that was asked for."""

    context: ContextPlan
    slots: tuple[int, ...] = ()
    room: ExpertRoom | None = None


class Planner(Protocol):
    """Decides budgets. Nothing is moved here."""

    @property
    def device_total(self) -> int:
        """Bytes of the device's memory; 0 on the cpu."""
        ...

    def resized(self, now: Budget, kv: KvBudget | None, experts: ExpertRoom | None) -> Budget:
        """The budget that somebody wants who asks for `kv` and `experts`; what is not asked for stays.

        Raises DoesNotFitError or UsageError with what would work.
        """
        ...

    def cache(self, budget: Budget) -> ExpertCache | None:
        """The experts' room in a budget; None where experts run in place from memory."""
        ...

    def notes(self, budget: Budget, experts: str | None) -> tuple[str, ...]:
        """What somebody is told who asked for so much room for experts and got this budget."""
        ...


@dataclass(frozen=True)
class HostPlanner:
    """On the cpu: context memory alone. `available` tells the bytes that are free besides it."""

    context_limit: int
    context_border: int | None
    available: Callable[[], int]
    device_total: int = 0

    def resized(self, now: Budget, kv: KvBudget | None, experts: ExpertRoom | None) -> Budget:
        if kv is None:
            return now
        return Budget(
            plan_resize(
                now.context,
                kv,
                context_limit=self.context_limit,
                context_border=self.context_border,
                available=self.available(),
            )
        )

    def cache(self, budget: Budget) -> ExpertCache | None:
        return None

    def notes(self, budget: Budget, experts: str | None) -> tuple[str, ...]:
        return experts_notes("cpu", experts)


class ResizableCache(Protocol):
    """The experts on a device, as a resize sees them."""

    @property
    def slots(self) -> tuple[int, ...]:
        """Of each bank."""
        ...

    def resize_experts(self, slots: Sequence[int]) -> None:
        """Give each bank so many slots, keeping the hottest records. NoRoomError, and nothing changes."""
        ...


def move(now: Budget, wanted: Budget, executor: Executor, cache: ResizableCache | None, scheduler: Scheduler) -> None:
    """Go from one budget to another, between two steps. Raises, with the old budget in force, if that fails.

    What shrinks goes first, so that what grows finds its room. If memory was taken by others in between, so that even
    the old budget cannot be had again, `in_force` tells what there is.
    """
    if wanted.context.pages < now.context.pages:
        scheduler.check_limit(min(wanted.context.context, wanted.context.kv_tokens))
        _move_context(wanted, executor, scheduler)
        try:
            _move_experts(now, wanted, cache)
        except FreetokenError:
            _move_context(now, executor, scheduler)
            raise
    else:
        _move_experts(now, wanted, cache)
        try:
            _move_context(wanted, executor, scheduler)
        except FreetokenError:
            _move_experts(wanted, now, cache)
            raise
    scheduler.context = wanted.context.context


def in_force(budget: Budget, executor: Executor, cache: ResizableCache | None) -> Budget:
    """The budget as the executor has it, where `budget` should be."""
    context, room = budget.context, executor.room
    if room != context.room.with_bytes(executor.block_bytes):
        tokens = room.pages * PAGE_TOKENS if executor.block_bytes["page"] else context.kv_tokens
        context = replace(context, kv_tokens=tokens, context=min(context.context, tokens), states=room.states)
    return replace(budget, context=context, slots=budget.slots if cache is None else cache.slots)


def _move_context(wanted: Budget, executor: Executor, scheduler: Scheduler) -> None:
    """Resize context memory; of the kinds that shrink, live blocks are moved to where they stay."""
    memory, room = scheduler.memory, wanted.context.room
    before = memory.room
    if room == before:
        return
    shrink(memory, room, executor)
    try:
        executor.resize_context(room)
    except FreetokenError:
        grow(memory, before)
        raise
    grow(memory, room)


def _move_experts(now: Budget, wanted: Budget, cache: ResizableCache | None) -> None:
    if wanted.slots != now.slots:
        assert cache is not None
        cache.resize_experts(wanted.slots)
