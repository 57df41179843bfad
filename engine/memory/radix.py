"""What the cache still holds of earlier conversations: a radix tree whose letters are pages of token ids.

A node is one page; the path from the root spells the tokens whose keys and values its pages hold. Because a page's
contents depend on nothing but the tokens up to its end, any request that starts with the same tokens may read it.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence

from engine.memory.pages import PAGE_TOKENS

PageTokens = tuple[int, ...]


class Node:
    """One page in the tree. `page` changes only when a shrink moves it."""

    __slots__ = ("children", "page", "parent", "pins", "stamp", "tokens")

    def __init__(self, tokens: PageTokens, page: int, parent: Node | None) -> None:
        self.tokens = tokens
        self.page = page
        self.parent = parent
        self.children: dict[PageTokens, Node] = {}
        self.pins = 0  # requests that end here, plus pinned children
        self.stamp = 0  # when it was last unpinned


class RadixTree:
    """Pages by the tokens that they hold, with pins and least-recently-used eviction.

    A pinned node and all its ancestors stay. Only unpinned leaves are evicted, so that what remains is always whole
    prefixes. Matching never mutates; a node is valid while it is pinned.
    """

    def __init__(self) -> None:
        self.root = Node((), -1, None)
        self._size = 0
        self._pinned = 0
        self._clock = 0
        # (stamp, order, node): candidates for eviction; stale once the node was pinned, extended or evicted.
        self._leaves: list[tuple[int, int, Node]] = []
        self._order = 0

    @property
    def size(self) -> int:
        """Pages in the tree."""
        return self._size

    @property
    def evictable(self) -> int:
        """Pages that `evict` could free now."""
        return self._size - self._pinned

    def match(self, tokens: Sequence[int], limit: int, start: Node | None = None, depth: int = 0) -> list[Node]:
        """Nodes for the longest known prefix of `tokens`, at most `limit` pages of it.

        With `start`, which holds page `depth - 1` of the same tokens, only the nodes after it.
        """
        node = self.root if start is None else start
        found: list[Node] = []
        for index in range(depth, limit):
            child = node.children.get(tuple(tokens[index * PAGE_TOKENS : (index + 1) * PAGE_TOKENS]))
            if child is None:
                break
            found.append(child)
            node = child
        return found

    def insert(self, parent: Node, tokens: PageTokens, page: int) -> tuple[Node, bool]:
        """The child of `parent` (the root or a pinned node) for `tokens`, and whether it took over `page`.

        False: an equal page was there before, and `page` stays the caller's. The child should be pinned at once.
        """
        assert len(tokens) == PAGE_TOKENS
        known = parent.children.get(tokens)
        if known is not None:
            return known, False
        node = Node(tokens, page, parent)
        parent.children[tokens] = node
        self._size += 1
        self._offer(node)
        return node, True

    def pin(self, node: Node) -> None:
        """Keep `node` and its ancestors until `unpin`. Pins count."""
        walk: Node | None = node
        while walk is not None and walk is not self.root:
            walk.pins += 1
            if walk.pins > 1:
                return
            self._pinned += 1
            walk = walk.parent

    def unpin(self, node: Node) -> None:
        """Undo one `pin`. What nobody pins any more counts as used now."""
        self._clock += 1
        walk: Node | None = node
        while walk is not None and walk is not self.root:
            assert walk.pins > 0, "unpinned more often than pinned"
            walk.pins -= 1
            if walk.pins:
                return
            self._pinned -= 1
            walk.stamp = self._clock
            self._offer(walk)
            walk = walk.parent

    def evict(self, count: int) -> list[int]:
        """Forget up to `count` pages, least recently used first and the ends of prefixes before their starts."""
        freed: list[int] = []
        while len(freed) < count and self._leaves:
            stamp, _, node = heapq.heappop(self._leaves)
            if node.parent is None or node.pins or node.children or node.stamp != stamp:
                continue
            parent = self._remove(node)
            freed.append(node.page)
            self._offer(parent)
        return freed

    def prune(self, node: Node) -> list[int]:
        """Forget `node` and its ancestors up to the first that is pinned or has another child; the pages."""
        freed: list[int] = []
        while node.parent is not None and not node.pins and not node.children:
            parent = self._remove(node)
            freed.append(node.page)
            node = parent
        self._offer(node)
        return freed

    def nodes(self) -> Iterator[Node]:
        """Every node, in no promised order."""
        stack = list(self.root.children.values())
        while stack:
            node = stack.pop()
            yield node
            stack.extend(node.children.values())

    def _remove(self, node: Node) -> Node:
        """Take a leaf out; its parent."""
        parent = node.parent
        assert parent is not None
        node.parent = None
        del parent.children[node.tokens]
        self._size -= 1
        return parent

    def _offer(self, node: Node) -> None:
        """Make `node` a candidate for eviction if it is an unpinned leaf."""
        if node is self.root or node.pins or node.children:
            return
        if len(self._leaves) > 2 * self._size + 64:
            self._drop_stale()
        self._order += 1
        heapq.heappush(self._leaves, (node.stamp, self._order, node))

    def _drop_stale(self) -> None:
        live = {id(node): node for node in self.nodes() if not node.pins and not node.children}
        self._leaves = [(node.stamp, order, node) for order, node in enumerate(live.values())]
        self._order = len(live)
        heapq.heapify(self._leaves)
