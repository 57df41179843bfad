"""How the memory of a device is divided: a pure function of what a model needs, what was asked for and what is free.

A device holds the weights outside experts, the buffers of a step, context memory (KV: pages, window pages and recurrent
states) and slots for experts. The first two are given; the other two share what those leave. What was asked for in
numbers is kept or refused, and what was not gives way to it. Every part is stated, and together they are the memory
there is.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from engine.base.errors import NoRoomError, UsageError
from engine.base.units import ExpertRoom, KvBudget, format_size
from engine.memory.budget import (
    DEFAULT_CONTEXT,
    DEFAULT_SHARE,
    LEAST_STATES,
    ContextNeeds,
    ContextPlan,
    check_asked_context,
    check_context,
    crosses,
    most_tokens,
    states_for,
    whole_pages,
)
from engine.memory.pages import PAGE_TOKENS, pages_for
from engine.memory.slots import Slots, SlotTable

# What context memory keeps when experts were given a number and it was not: less is no conversation.
KV_FLOOR = 2048


@dataclass(frozen=True)
class DeviceNeeds:
    """What a model takes on a device. `weights` and `buffers` (graphs, activations: measured) in bytes."""

    weights: int
    buffers: int
    kept: ContextNeeds
    model_context: int
    table: SlotTable

    @property
    def fixed(self) -> int:
        """Bytes without which there is no step."""
        return self.weights + self.buffers

    def nothing(self, states: int) -> ContextPlan:
        """Context memory with so many recurrent states and no token yet."""
        return ContextPlan(0, 0, self.kept, states if self.kept.state_bytes else 0)

    def tokens_within(self, size: int, empty: ContextPlan) -> int:
        """The most tokens, in whole pages, whose context memory takes `size` bytes, those of `empty` included.

        What costs nothing a token is bounded by the model's context.
        """
        each = self.kept.bytes_per_token
        return most_tokens(empty, size, size // each if each else pages_for(self.model_context) * PAGE_TOKENS)


@dataclass(frozen=True)
class DevicePlan:
    """The division of `total` bytes: `weights + buffers + kv + experts + remainder`.

    `slots` are those of each bank. `largest_context` is the most that --context could be with the same experts, or in
    place of experts where nobody asked for any. `asked` is the room for experts that was asked for.
    """

    total: int
    weights: int
    buffers: int
    context: ContextPlan
    experts: int
    slots: Slots
    share: float  # of the pool that has a slot
    largest_context: int
    asked: ExpertRoom | None = None
    notes: tuple[str, ...] = ()

    @property
    def kv(self) -> int:
        """Bytes of context memory."""
        return self.context.kv_bytes

    @property
    def used(self) -> int:
        return self.weights + self.buffers + self.kv + self.experts

    @property
    def remainder(self) -> int:
        """Bytes that nobody gets."""
        return self.total - self.used


def plan_device(
    needs: DeviceNeeds,
    total: int,
    *,
    context: int | None = None,
    kv: KvBudget | None = None,
    experts: ExpertRoom | None = None,
) -> DevicePlan:
    """Divide `total` bytes, all that the model may take of the device.

    `context`, `kv` and `experts` are what was asked for; None: decide for me. A share of KV is one of what KV and
    experts have together. UsageError, DoesNotFitError; NoRoomError when only the free memory is in the way. Each names
    the number, the excess, the flag and the nearest that works.
    """
    check_asked_context(context, needs.model_context)
    room = _room(needs, total)
    empty = needs.nothing(states_for(needs.kept.state_bytes, room))
    slots = None if experts is None else needs.table.wanted(experts)
    if kv is not None:
        kv_tokens = _kv_tokens(kv, needs, room, empty)
    elif context is not None:
        kv_tokens = pages_for(context) * PAGE_TOKENS
    else:
        kv_tokens = _default_kv(needs, room, 0 if slots is None else needs.table.bytes_of(slots), empty)
    if context is None:
        context = min(needs.model_context, kv_tokens)
    check_context(context, kv_tokens, needs.kept.bytes_per_token)
    return _divide(needs, total, replace(empty, context=context, kv_tokens=kv_tokens), slots, experts)


def plan_device_resize(
    current: DevicePlan,
    needs: DeviceNeeds,
    free: int,
    *,
    context_limit: int,
    context_border: int | None,
    kv: KvBudget | None = None,
    experts: ExpertRoom | None = None,
) -> DevicePlan:
    """The plan after a live change of `kv`, `experts` or both; `free` are bytes that the model does not hold yet.

    What is not mentioned stays, but experts that nobody asked for by number take what is left, as they do for a share
    of KV. The context is what the new budget can hold, at most `context_limit`; UsageError if it crosses the border.
    """
    total = current.used + max(0, free)
    room = _room(needs, total)
    empty = needs.nothing(current.context.states)
    asked = experts
    if experts is None and not (kv is not None and kv.share):
        asked = current.asked
    slots: Slots | None = None
    if experts is not None:
        slots = needs.table.wanted(experts)
    elif asked is not None:
        slots = current.slots
    kv_tokens = current.context.kv_tokens if kv is None else _kv_tokens(kv, needs, room, empty)
    context = replace(empty, context=min(context_limit, kv_tokens), kv_tokens=kv_tokens)
    if crosses(context_border, current.context.context, context.context):
        raise UsageError(
            f"--kv {kv_tokens} takes the context from {current.context.context} to {context.context} tokens; beyond "
            f"{context_border} this model counts positions in another way, and what it has read would be wrong.",
            f"Stop the model and load it with --kv {kv_tokens}.",
        )
    return _divide(needs, total, context, slots, asked)


def _room(needs: DeviceNeeds, total: int) -> int:
    """Bytes that KV and experts share."""
    least = needs.fixed + replace(needs.nothing(LEAST_STATES), kv_tokens=PAGE_TOKENS).kv_bytes
    if total < least:
        raise NoRoomError(
            f"The device lacks {format_size(least - total)}: weights take {format_size(needs.weights)}, buffers "
            f"{format_size(needs.buffers)} and the smallest context memory {format_size(least - needs.fixed)}, and "
            f"{format_size(max(0, total))} are free.",
            "Close other programs that use it, or give --device cpu.",
        )
    return total - needs.fixed


def _kv_tokens(kv: KvBudget, needs: DeviceNeeds, room: int, empty: ContextPlan) -> int:
    if kv.share:
        return max(PAGE_TOKENS, needs.tokens_within(int(room * kv.share), empty))
    return whole_pages(kv, needs.kept.bytes_per_token)


def _default_kv(needs: DeviceNeeds, room: int, experts: int, empty: ContextPlan) -> int:
    """Tokens when nobody says anything: a share of the room, up to a long chat, and what experts leave."""
    model = pages_for(needs.model_context) * PAGE_TOKENS
    wanted = min(model, DEFAULT_CONTEXT, needs.tokens_within(int(room * DEFAULT_SHARE) + empty.kv_bytes, empty))
    left = needs.tokens_within(max(0, room - experts), empty)
    floor = min(model, KV_FLOOR, needs.tokens_within(room, empty))
    return max(PAGE_TOKENS, floor, min(wanted, left))


def _divide(
    needs: DeviceNeeds, total: int, context: ContextPlan, slots: Slots | None, asked: ExpertRoom | None
) -> DevicePlan:
    """Context memory as planned and these slots, or (None) as many as fit beside it."""
    table, room = needs.table, total - needs.fixed
    if context.kv_bytes > room:
        most = needs.tokens_within(room, _empty(context))
        raise NoRoomError(
            f"Context memory for {context.kv_tokens} tokens takes {format_size(context.kv_bytes)}, "
            f"{format_size(context.kv_bytes - room)} more than the {format_size(room)} that weights and buffers leave.",
            f"Give --kv {most} or less.",
        )
    if slots is None:
        slots = table.within(room - context.kv_bytes)
    experts = table.bytes_of(slots)
    excess = context.kv_bytes + experts - room
    if excess > 0:
        raise NoRoomError(
            f"{sum(slots)} slots for experts take {format_size(experts)}, {format_size(excess)} more than the "
            f"{format_size(room - context.kv_bytes)} that weights, buffers and context memory for {context.kv_tokens} "
            "tokens leave.",
            _nearest(needs, room, context, experts),
        )
    taken = 0 if asked is None else experts
    return DevicePlan(
        total=total,
        weights=needs.weights,
        buffers=needs.buffers,
        context=context,
        experts=experts,
        slots=slots,
        share=table.record_bytes_of(slots) / table.pool_bytes if table.pool_bytes else 0.0,
        largest_context=min(needs.model_context, needs.tokens_within(room - taken, _empty(context))),
        asked=asked,
        notes=() if asked is None else _notes(table, asked),
    )


def _nearest(needs: DeviceNeeds, room: int, context: ContextPlan, experts: int) -> str:
    most = sum(needs.table.within(room - context.kv_bytes))
    fewer = f"Give --experts {most} or less" if most else "Give --experts 0"
    tokens = needs.tokens_within(room - experts, _empty(context)) if room > experts else 0
    return f"{fewer}, or --kv {tokens} or less." if tokens else f"{fewer}."


def _empty(context: ContextPlan) -> ContextPlan:
    return replace(context, context=0, kv_tokens=0)


def _notes(table: SlotTable, asked: ExpertRoom) -> tuple[str, ...]:
    if asked.nothing:
        return ()
    if not sum(table.most):
        return (f"--experts {asked} has no effect: there are no experts that the device could hold.",)
    if table.exceeded_by(asked):
        return (f"--experts {asked} is more than the {sum(table.most)} experts that can be held: each has a slot.",)
    return ()
