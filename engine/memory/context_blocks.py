"""The blocks of context memory and what keeps them: the tree of pages, their window pages, and checkpoints."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from engine.memory.blocks import BlockKind, ContextRoom
from engine.memory.checkpoints import Checkpoints
from engine.memory.lookup import ContextTraits
from engine.memory.pools import BlockPool
from engine.memory.radix import Node, RadixTree
from engine.memory.windows import TreeWindows


class ContextBlocks:
    """Where blocks are taken from. What nobody holds is forgotten as they run out."""

    def __init__(self, room: ContextRoom, traits: ContextTraits) -> None:
        self.traits = traits
        self.pages = BlockPool("page", room.pages)
        self.windows = BlockPool("window", room.windows if traits.reach else 0)
        self.states = BlockPool("state", room.states if traits.stateful else 0)
        self.tree = RadixTree()
        self.tree_windows = TreeWindows(self.windows)
        self.checkpoints = Checkpoints(self.states, self.tree_windows)

    @property
    def room(self) -> ContextRoom:
        """Blocks there are of the kinds that the model uses."""
        return ContextRoom(self.pages.capacity, self.windows.capacity, self.states.capacity)

    @property
    def pools(self) -> tuple[BlockPool, ...]:
        """Those of the kinds that the model uses."""
        windows, states = (self.windows,) * bool(self.traits.reach), (self.states,) * self.traits.stateful
        return (self.pages, *windows, *states)

    def available(self, kind: BlockKind) -> int:
        """Blocks that requests could still get: the free ones and those that may be forgotten."""
        if kind == "page":
            return self.pages.free + self.tree.evictable
        if kind == "window":
            return self.windows.free + self.tree_windows.unpinned
        return self.states.free + (self.checkpoints.unpinned if self.traits.stateful else 0)

    def held(self, kind: BlockKind) -> int:
        """Blocks that live requests hold."""
        return self.room.count(kind) - self.available(kind)

    def take_pages(self, count: int) -> list[int]:
        """Pages, forgetting old prefixes if need be. The caller has looked at `available` first, as for the others."""
        if count > self.pages.free:
            self.forget(self.tree.evict(count - self.pages.free))
        return self.pages.take(count)

    def take_windows(self, count: int) -> list[int]:
        """Window pages."""
        while self.windows.free < count:
            self.free_window()
        return self.windows.take(count)

    def take_state(self) -> int:
        """A state block."""
        if not self.states.free:
            self.checkpoints.drop_oldest()
        return self.states.take(1)[0]

    def forget(self, nodes: Iterable[Node]) -> None:
        """Free the blocks of nodes that have left the tree; a checkpoint whose pages are gone is gone."""
        for node in nodes:
            if node.checkpoint is not None:
                self.checkpoints.drop(node.checkpoint)
            self.tree_windows.drop(node)
            self.pages.give([node.page])

    def free_window(self) -> None:
        """Free one window page: one that nobody needs, else those of the checkpoint that was used longest ago."""
        if self.tree_windows.loose:
            self.tree_windows.drop_loose()
        else:
            self.checkpoints.drop_oldest()

    def rename(self, kind: BlockKind, moves: Mapping[int, int]) -> None:
        """Write the new numbers of moved blocks wherever they are known."""
        for node in self.tree.nodes() if moves else ():
            if kind == "page":
                node.page = moves.get(node.page, node.page)
            elif kind == "window":
                node.window = moves.get(node.window, node.window)
            elif node.checkpoint is not None:
                node.checkpoint.state = moves.get(node.checkpoint.state, node.checkpoint.state)
