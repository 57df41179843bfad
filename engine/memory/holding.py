"""A prefix that is kept from being forgotten while it goes to a file or comes from one."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from engine.memory.blocks import BlockKind
from engine.memory.checkpoints import Checkpoint
from engine.memory.context import ContextMemory
from engine.memory.pages import PAGE_TOKENS
from engine.memory.pools import BlockPool
from engine.memory.radix import Node
from engine.memory.retention import Rank
from engine.memory.windows import first_seen

Write = Callable[[BlockKind, int], None]
"""Fills a block."""


class Hold:
    """A path of the tree, and window pages and checkpoints on it, which stay until `let_go`. Blocks may move meanwhile.

    The `put_` methods take blocks; the caller has looked at what is available first.
    """

    def __init__(
        self,
        memory: ContextMemory,
        path: Sequence[Node] = (),
        windows: Sequence[Node] = (),
        checkpoints: Sequence[Checkpoint] = (),
    ) -> None:
        self._memory = memory
        self.path, self.windows, self.checkpoints = list(path), list(windows), list(checkpoints)
        memory.prefixes.add(self)
        if self.path:
            memory.tree.pin(self.path[-1])
        memory.tree_windows.pin(self.windows)
        for checkpoint in self.checkpoints:
            memory.checkpoints.pin(checkpoint)

    def let_go(self, forget: bool = False) -> None:
        """End it; with `forget` its tokens are forgotten as far back as nobody else builds on them."""
        memory, end = self._memory, self._end
        memory.prefixes.discard(self)
        memory.tree_windows.unpin(self.windows)
        for checkpoint in self.checkpoints:
            memory.checkpoints.unpin(checkpoint)
        if self.path:
            memory.tree.unpin(end)
        self.path, self.windows, self.checkpoints = [], [], []
        if forget:
            memory.forget(memory.tree.prune(end))

    @property
    def _end(self) -> Node:
        return self.path[-1] if self.path else self._memory.tree.root

    def put_page(self, letters: tuple[int, ...], write: Write) -> Node:
        """Extend the path by the page with these tokens, which is written unless it is there."""
        memory, parent = self._memory, self._end
        node = parent.children.get(letters)
        if node is None:
            (page,) = memory.take_pages(1)
            _fill(memory.pages, page, write)
            node, _ = memory.tree.insert(parent, letters, page)
        memory.tree.pin(node)
        if self.path:
            memory.tree.unpin(parent)
        self.path.append(node)
        return node

    def put_window(self, node: Node, write: Write) -> None:
        """Hold the window page of a node too; it is written unless it is there."""
        memory = self._memory
        if node.window < 0:
            (window,) = memory.take_windows(1)
            _fill(memory.windows, window, write)
            memory.tree_windows.put(node, window)
        memory.tree_windows.pin([node])
        self.windows.append(node)

    def put_checkpoint(self, node: Node, write: Write) -> None:
        """Make a node of the path a checkpoint, unless it is one or lacks what its window shows."""
        memory, reach = self._memory, self._memory.traits.reach
        tail = self.path[first_seen(node.depth * PAGE_TOKENS, reach) :] if reach else []
        if node.checkpoint is not None or any(page.window < 0 for page in tail):
            return
        state = -1
        if memory.traits.stateful:
            state = memory.take_state()
            _fill(memory.states, state, write)
        memory.checkpoints.place(node, state, tuple(tail), Rank.END, kept=True)


def _fill(pool: BlockPool, block: int, write: Write) -> None:
    """Write a block that was just taken, and give it back if that fails."""
    try:
        write(pool.kind, block)
    except BaseException:
        pool.give([block])
        raise
