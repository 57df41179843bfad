"""Context memory grows and shrinks between two steps; live requests keep everything."""

from __future__ import annotations

from collections import Counter

from engine.base.errors import DoesNotFitError
from engine.memory.blocks import BlockKind, ContextRoom
from engine.memory.context import BlockStore, ContextMemory
from engine.memory.pages import PAGE_TOKENS


def grow(memory: ContextMemory, room: ContextRoom) -> None:
    """Add blocks of the kinds of which `room` has more; the executor has them already."""
    for pool in memory.pools:
        pool.grow(max(pool.capacity, room.count(pool.kind)))


def shrink(memory: ContextMemory, room: ContextRoom, store: BlockStore) -> None:
    """Make do with `room` where it has fewer blocks: forget what nobody holds, then move the others below its limits.

    Checkpoints are dropped first, in their order. DoesNotFitError, before any change, if what is in use takes more.
    """
    for pool in memory.pools:
        _check(pool.kind, memory.held(pool.kind) - _droppable(memory, pool.kind), room.count(pool.kind))
    if memory.held("state") > room.states and memory.traits.stateful:
        memory.let_go_of_last_borders()
    _forget(memory, room)
    for pool in memory.pools:
        capacity = min(pool.capacity, room.count(pool.kind))
        moves = pool.shrink_moves(capacity)
        if pool.kind != "page" or memory.traits.paged:
            for source, target in moves.items():
                store.copy_block(pool.kind, source, target)
        pool.shrink(capacity, moves)
        memory.rename(pool.kind, moves)


def _droppable(memory: ContextMemory, kind: BlockKind) -> int:
    """Blocks that live requests alone hold and can do without: the states at their last borders."""
    if kind != "state":
        return 0
    last_borders = Counter(lease.last for lease in memory.leases if lease.last is not None)
    return sum(checkpoint.pins == leases for checkpoint, leases in last_borders.items())


def _forget(memory: ContextMemory, room: ContextRoom) -> None:
    """Drop what stands in the way and nobody holds."""
    states, windows, pages = memory.states, memory.windows, memory.pages
    while memory.traits.stateful and states.capacity - states.free > room.states:
        memory.checkpoints.drop_oldest()
    while memory.traits.reach and windows.capacity - windows.free > room.windows:
        memory.free_window()
    memory.forget(memory.tree.evict(max(0, pages.capacity - pages.free - room.pages)))


def _check(kind: BlockKind, held: int, capacity: int) -> None:
    if held <= capacity:
        return
    if kind == "state":
        raise DoesNotFitError(
            f"{held} recurrent states are in use, {held - capacity} more than there would be room for.",
            "Wait until some requests have finished, or give a larger --kv.",
        )
    where = "context memory" if kind == "page" else "context memory for their windows"
    raise DoesNotFitError(
        f"Live requests hold {held * PAGE_TOKENS} tokens of {where}, "
        f"{(held - capacity) * PAGE_TOKENS} more than --kv {capacity * PAGE_TOKENS} leaves.",
        f"Give --kv {held * PAGE_TOKENS} or more, or wait until they have finished.",
    )
