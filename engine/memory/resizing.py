"""Context memory grows and shrinks between two steps; live requests keep everything."""

from __future__ import annotations

from collections import Counter

from engine.base.errors import DoesNotFitError
from engine.memory.blocks import BlockKind, ContextRoom
from engine.memory.context import BlockStore, ContextMemory
from engine.memory.pages import PAGE_TOKENS
from engine.memory.pools import BlockPool


def grow(memory: ContextMemory, room: ContextRoom) -> None:
    """Add blocks of the kinds of which `room` has more; the executor has them already."""
    for pool in _pools(memory):
        pool.grow(max(pool.capacity, room.count(pool.kind)))


def shrink(memory: ContextMemory, room: ContextRoom, store: BlockStore) -> None:
    """Make do with `room` where it has fewer blocks: forget what nobody holds, then move the others below its limits.

    Checkpoints are dropped first, in their order. DoesNotFitError, before any change, if what is in use takes more.
    """
    for pool in _pools(memory):
        _check(pool.kind, memory.held(pool.kind) - _droppable(memory, pool.kind), room.count(pool.kind))
    if memory.held("state") > room.states and memory.traits.stateful:
        _let_go_of_last_borders(memory)
    _forget(memory, room)
    for pool in _pools(memory):
        capacity = min(pool.capacity, room.count(pool.kind))
        moves = pool.shrink_moves(capacity)
        if pool.kind != "page" or memory.traits.paged:
            for source, target in moves.items():
                store.copy_block(pool.kind, source, target)
        pool.shrink(capacity, moves)
        _rename(memory, pool.kind, moves)


def _pools(memory: ContextMemory) -> tuple[BlockPool, ...]:
    used = [memory.pages]
    if memory.traits.reach:
        used.append(memory.windows)
    if memory.traits.stateful:
        used.append(memory.states)
    return tuple(used)


def _droppable(memory: ContextMemory, kind: BlockKind) -> int:
    """Blocks that live requests alone hold and can do without: the states at their last borders."""
    if kind != "state":
        return 0
    last_borders = Counter(lease.last for lease in memory.leases if lease.last is not None)
    return sum(checkpoint.pins == leases for checkpoint, leases in last_borders.items())


def _let_go_of_last_borders(memory: ContextMemory) -> None:
    for lease in memory.leases:
        if lease.last is not None:
            memory.checkpoints.unpin(lease.last)
            lease.last = None


def _forget(memory: ContextMemory, room: ContextRoom) -> None:
    """Drop what stands in the way and nobody holds."""
    states, windows, pages = memory.states, memory.windows, memory.pages
    while memory.traits.stateful and states.capacity - states.free > room.states:
        memory.checkpoints.drop_oldest()
    while memory.traits.reach and windows.capacity - windows.free > room.windows:
        memory.free_window()
    memory.forget(memory.tree.evict(max(0, pages.capacity - pages.free - room.pages)))


def _rename(memory: ContextMemory, kind: BlockKind, moves: dict[int, int]) -> None:
    """Write the new numbers of moved blocks wherever they are known."""
    if not moves:
        return
    for node in memory.tree.nodes():
        if kind == "page":
            node.page = moves.get(node.page, node.page)
        elif kind == "window":
            node.window = moves.get(node.window, node.window)
        elif node.checkpoint is not None:
            node.checkpoint.state = moves.get(node.checkpoint.state, node.checkpoint.state)
    for lease in memory.leases:
        if kind == "page":
            lease.pages = [moves.get(page, page) for page in lease.pages]
        elif kind == "window":
            lease.windows = [moves.get(window, window) for window in lease.windows]
        else:
            lease.state = moves.get(lease.state, lease.state)


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
