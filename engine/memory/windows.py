"""Window pages: keys and values in layers that reach back only so far.

A sequence holds the window pages that its next tokens still see. In the tree a page's window page stays until the room
is needed; those within reach of a checkpoint go last, since without them nobody could go on from it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from engine.memory.pages import PAGE_TOKENS
from engine.memory.pools import BlockPool
from engine.memory.radix import Node


def first_seen(position: int, reach: int) -> int:
    """Index of the first window page that a token at `position` sees, itself among the `reach` positions."""
    return max(0, position - reach + 1) // PAGE_TOKENS


def window_pages(tokens: int, reach: int, step: int) -> int:
    """The most window pages that a sequence of `tokens` holds at once, read in steps of `step` tokens."""
    whole = -(-tokens // PAGE_TOKENS)
    if not reach:
        return 0
    return min(whole, -(-(reach - 1) // PAGE_TOKENS) + -(-step // PAGE_TOKENS) + 1)


class TreeWindows:
    """The window pages that the tree holds.

    A node's is pinned by leases that see it, held by checkpoints that need it, or loose: then it may be taken, the
    longest loose first.
    """

    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool
        self._size = 0
        self._pinned = 0
        self._loose: OrderedDict[Node, None] = OrderedDict()

    @property
    def unpinned(self) -> int:
        """Window pages that no lease sees."""
        return self._size - self._pinned

    @property
    def loose(self) -> int:
        """Window pages that nobody needs."""
        return len(self._loose)

    def put(self, node: Node, block: int) -> None:
        """Give a node that has none its window page."""
        assert node.window < 0 <= block
        node.window = block
        self._size += 1
        self._settle(node)

    def pin(self, nodes: Iterable[Node]) -> None:
        """A lease sees these window pages from now on."""
        for node in nodes:
            assert node.window >= 0
            node.window_pins += 1
            if node.window_pins == 1:
                self._pinned += 1
                self._loose.pop(node, None)

    def unpin(self, nodes: Iterable[Node]) -> None:
        """Undo one `pin` of each."""
        for node in nodes:
            assert node.window_pins > 0
            node.window_pins -= 1
            if node.window_pins == 0:
                self._pinned -= 1
                self._settle(node)

    def hold(self, nodes: Iterable[Node]) -> None:
        """A checkpoint needs these window pages from now on."""
        for node in nodes:
            assert node.window >= 0
            node.window_tails += 1
            self._loose.pop(node, None)

    def release(self, nodes: Iterable[Node]) -> None:
        """Undo one `hold` of each."""
        for node in nodes:
            assert node.window_tails > 0
            node.window_tails -= 1
            self._settle(node)

    def drop_loose(self) -> None:
        """Free the page that has been loose for longest."""
        node, _ = self._loose.popitem(last=False)
        self._free(node)

    def drop(self, node: Node) -> None:
        """Free the window page of a node that leaves the tree, if it has one. Nobody may need it."""
        if node.window >= 0:
            del self._loose[node]
            self._free(node)

    def _free(self, node: Node) -> None:
        self._pool.give([node.window])
        node.window = -1
        self._size -= 1

    def _settle(self, node: Node) -> None:
        if node.window_pins == 0 and node.window_tails == 0:
            self._loose[node] = None
