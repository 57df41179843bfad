"""Where a conversation can be taken up again: page borders of which everything is kept.

Keys and values of a prefix can be cut anywhere, but a recurrent state is that of one position, and window pages are
those of one reach. A checkpoint keeps both for a page border. They have a room and an order of their own: what was used
longest ago goes first, except what a live request holds as its own last border.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from engine.memory.pools import BlockPool
from engine.memory.radix import Node
from engine.memory.retention import Rank
from engine.memory.windows import TreeWindows


@dataclass(eq=False)
class Checkpoint:
    """The end of `node`'s page. `state` is its state block (-1: the model has no states), `tail` whose window pages
    it needs. `pins` are the leases whose last border it is; without pins it stays only if it is `kept`."""

    node: Node
    state: int
    tail: tuple[Node, ...]
    rank: Rank
    kept: bool
    pins: int = 0


class Checkpoints:
    """All checkpoints of a tree."""

    def __init__(self, states: BlockPool, windows: TreeWindows) -> None:
        self._states = states
        self._windows = windows
        self._unpinned: OrderedDict[Checkpoint, None] = OrderedDict()  # the least recently used first

    @property
    def unpinned(self) -> int:
        """Checkpoints that can be dropped."""
        return len(self._unpinned)

    def place(self, node: Node, state: int, tail: tuple[Node, ...], rank: Rank, kept: bool) -> Checkpoint:
        """The checkpoint at the end of `node`. If there was one, it is as good, and `state` is given back.

        One that is not `kept` must be pinned at once.
        """
        known = node.checkpoint
        if known is not None:
            if state >= 0:
                self._states.give([state])
            if kept:
                self.keep(known, rank)
            return known
        checkpoint = node.checkpoint = Checkpoint(node, state, tail, rank, kept)
        self._windows.hold(tail)
        self._unpinned[checkpoint] = None
        return checkpoint

    def keep(self, checkpoint: Checkpoint, rank: Rank) -> None:
        """Let it outlive its pins; this counts as a use."""
        checkpoint.kept = True
        checkpoint.rank = max(checkpoint.rank, rank)
        self.touch(checkpoint)

    def touch(self, checkpoint: Checkpoint) -> None:
        """It was used now."""
        if checkpoint.pins == 0:
            self._unpinned.move_to_end(checkpoint)

    def pin(self, checkpoint: Checkpoint) -> None:
        """Keep it until `unpin`. Pins count."""
        checkpoint.pins += 1
        self._unpinned.pop(checkpoint, None)

    def unpin(self, checkpoint: Checkpoint) -> None:
        """Undo one `pin`; it counts as used now, or is dropped if nobody keeps it."""
        assert checkpoint.pins > 0
        checkpoint.pins -= 1
        if checkpoint.pins:
            return
        self._unpinned[checkpoint] = None
        if not checkpoint.kept:
            self.drop(checkpoint)

    def drop_oldest(self) -> None:
        """Drop the one that was used longest ago."""
        self.drop(next(iter(self._unpinned)))

    def drop(self, checkpoint: Checkpoint) -> None:
        """Forget one that nobody pins."""
        state = self.surrender(checkpoint)
        if state >= 0:
            self._states.give([state])

    def surrender(self, checkpoint: Checkpoint) -> int:
        """Forget one that nobody pins; its state block is the caller's."""
        assert checkpoint.pins == 0
        assert checkpoint.node.checkpoint is checkpoint
        del self._unpinned[checkpoint]
        checkpoint.node.checkpoint = None
        self._windows.release(checkpoint.tail)
        return checkpoint.state
