"""What is still held of earlier conversations: a radix tree whose letters are pages of token ids.

A node is one page; the path from the root spells the tokens whose keys and values its page holds. Because a page's
contents depend on nothing but the tokens up to its end, any request that starts with the same tokens may read it.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from engine.memory.pages import PAGE_TOKENS, common_tokens

if TYPE_CHECKING:
    from engine.memory.checkpoints import Checkpoint

PageTokens = tuple[int, ...]

REMEMBERED = 4096  # evicted pages of which it is still known that they were there


class Node:
    """One page in the tree, and what lies beside it. Block numbers change only when a shrink moves them.

    `window` is its window page (-1: none, or given up); `window_pins` are the leases that see it, `window_tails` the
    checkpoints that do. `checkpoint` is the one at the page's end.
    """

    __slots__ = (
        "checkpoint", "children", "depth", "digest", "page", "parent", "pins", "stamp", "tokens", "window",
        "window_pins", "window_tails",
    )  # fmt: skip

    def __init__(self, tokens: PageTokens, page: int, parent: Node | None) -> None:
        self.tokens = tokens
        self.page = page
        self.parent = parent
        self.children: dict[PageTokens, Node] = {}
        self.depth: int = 0 if parent is None else parent.depth + 1  # pages up to its end
        self.digest: int = 0 if parent is None else hash((parent.digest, tokens))
        self.pins = 0  # requests that end here, plus pinned children
        self.stamp = 0  # when it was last unpinned
        self.window = -1
        self.window_pins = 0
        self.window_tails = 0
        self.checkpoint: Checkpoint | None = None


class RadixTree:
    """Pages by the tokens that they hold, with pins and least-recently-used eviction.

    A pinned node and all its ancestors stay. Only unpinned leaves are evicted, so that what remains is always whole
    prefixes. Matching never mutates; a node is valid while it is pinned. Whoever evicts frees the blocks of the nodes.
    """

    def __init__(self) -> None:
        self.root = Node((), -1, None)
        self._size = 0
        self._pinned = 0
        self._clock = 0
        # (stamp, order, node): candidates for eviction; stale once the node was pinned, extended or evicted.
        self._leaves: list[tuple[int, int, Node]] = []
        self._order = 0
        self._forgotten: OrderedDict[int, None] = OrderedDict()  # digests of evicted pages, the latest last

    @property
    def size(self) -> int:
        """Pages in the tree."""
        return self._size

    @property
    def evictable(self) -> int:
        """Pages that `evict` could free now."""
        return self._size - self._pinned

    def match(self, tokens: Sequence[int], limit: int, start: Node | None = None) -> list[Node]:
        """Nodes for the longest known prefix of `tokens`, at most `limit` pages of it.

        With `start`, which spells the beginning of the same tokens, only the nodes after it.
        """
        node = self.root if start is None else start
        found: list[Node] = []
        for index in range(node.depth, limit):
            child = node.children.get(tuple(tokens[index * PAGE_TOKENS : (index + 1) * PAGE_TOKENS]))
            if child is None:
                break
            found.append(child)
            node = child
        return found

    def shared_part(self, node: Node, tokens: Sequence[int]) -> int:
        """How many tokens after `node` one page of the tree has in common with `tokens`."""
        page = tuple(tokens[node.depth * PAGE_TOKENS : (node.depth + 1) * PAGE_TOKENS])
        return max((common_tokens(page, child) for child in node.children), default=0)

    def forgot(self, node: Node, tokens: Sequence[int]) -> bool:
        """Whether the page after `node` was there once and was evicted since, as far as that is remembered."""
        page = tuple(tokens[node.depth * PAGE_TOKENS : (node.depth + 1) * PAGE_TOKENS])
        return hash((node.digest, page)) in self._forgotten

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
        self._forgotten.pop(node.digest, None)
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

    def evict(self, count: int) -> list[Node]:
        """Forget up to `count` pages, least recently used first and the ends of prefixes before their starts."""
        evicted: list[Node] = []
        while len(evicted) < count and self._leaves:
            stamp, _, node = heapq.heappop(self._leaves)
            if node.parent is None or node.pins or node.children or node.stamp != stamp:
                continue
            parent = self._remove(node)
            self._forgotten[node.digest] = None
            if len(self._forgotten) > REMEMBERED:
                self._forgotten.popitem(last=False)
            evicted.append(node)
            self._offer(parent)
        return evicted

    def prune(self, node: Node) -> list[Node]:
        """Forget `node` and its ancestors up to the first that is pinned or has another child."""
        pruned: list[Node] = []
        while node.parent is not None and not node.pins and not node.children:
            parent = self._remove(node)
            pruned.append(node)
            node = parent
        self._offer(node)
        return pruned

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
