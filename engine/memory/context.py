"""Context memory: the page pool and the radix tree together, as the requests of a worker use them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from engine.base.errors import DoesNotFitError
from engine.memory.pages import PAGE_TOKENS, PagePool, pages_for
from engine.memory.radix import Node, RadixTree


@dataclass(eq=False)
class Lease:
    """The pages one request holds, in order of position.

    The first `shared` of `pages` belong to the tree (its path to `node`, which is pinned); the others are the request's
    alone. `pages` may be rewritten by every call to `ContextMemory`, so it is read anew for every step.
    """

    node: Node
    shared: int = 0
    pages: list[int] = field(default_factory=list)

    @property
    def capacity(self) -> int:
        """Positions there is room for."""
        return len(self.pages) * PAGE_TOKENS


class ContextMemory:
    """Gives pages to requests and keeps what they computed for the next ones.

    Every page is free, or in the tree, or held by exactly one lease beyond its `shared` part.
    """

    def __init__(self, capacity: int) -> None:
        self.pool = PagePool(capacity)
        self.tree = RadixTree()
        self._leases: set[Lease] = set()

    @property
    def available(self) -> int:
        """Pages that requests could still get: the free ones and those the tree can forget."""
        return self.pool.free + self.tree.evictable

    @property
    def held(self) -> int:
        """Pages that live requests hold."""
        return self.pool.capacity - self.available

    def open(self) -> Lease:
        """A lease on nothing yet."""
        lease = Lease(self.tree.root)
        self._leases.add(lease)
        return lease

    def reuse(self, lease: Lease, tokens: Sequence[int]) -> int:
        """Extend the lease by pages that the tree has for `tokens`; positions that are then in the cache.

        The last token is never taken from the cache: its logits are still wanted. A lease with pages of its own is left
        as it is.
        """
        if len(lease.pages) == lease.shared:
            found = self.tree.match(tokens, (len(tokens) - 1) // PAGE_TOKENS, lease.node, lease.shared)
            if found:
                self._advance(lease, found[-1])
                lease.pages += [node.page for node in found]
                lease.shared = len(lease.pages)
        return lease.shared * PAGE_TOKENS

    def reserve(self, lease: Lease, tokens: int) -> bool:
        """Make room for `tokens` positions, forgetting old prefixes if need be. Without room: False, no change."""
        missing = pages_for(tokens) - len(lease.pages)
        if missing <= 0:
            return True
        if missing > self.available:
            return False
        if missing > self.pool.free:
            self.pool.give(self.tree.evict(missing - self.pool.free))
        lease.pages += self.pool.take(missing)
        return True

    def keep(self, lease: Lease, tokens: Sequence[int], computed: int) -> None:
        """Put every page that is full after `computed` positions into the tree, where other requests find it."""
        for index in range(lease.shared, computed // PAGE_TOKENS):
            letters = tuple(tokens[index * PAGE_TOKENS : (index + 1) * PAGE_TOKENS])
            node, taken = self.tree.insert(lease.node, letters, lease.pages[index])
            self._advance(lease, node)
            if not taken:  # another request computed the same page at the same time; equal tokens give equal bits
                self.pool.give([lease.pages[index]])
                lease.pages[index] = node.page
            lease.shared = index + 1

    def close(self, lease: Lease) -> None:
        """Let go of everything. What `keep` put into the tree stays there until somebody needs the room."""
        self._leases.remove(lease)
        self.pool.give(lease.pages[lease.shared :])
        if lease.node is not self.tree.root:
            self.tree.unpin(lease.node)
        lease.pages, lease.shared, lease.node = [], 0, self.tree.root

    def discard(self, lease: Lease) -> None:
        """Close the lease and forget its tokens as far back as no other request or prefix builds on them."""
        node = lease.node
        self.close(lease)
        self.pool.give(self.tree.prune(node))

    def grow(self, capacity: int) -> None:
        """Add pages; the executor has them already."""
        self.pool.grow(capacity)

    def shrink(self, capacity: int, copy: Callable[[int, int], None]) -> None:
        """Make do with `capacity` pages: forget old prefixes, then move the others below the new limit.

        `copy(source, target)` copies a page's contents. Live requests keep everything; `DoesNotFitError`, before any
        change, if they hold more.
        """
        if self.held > capacity:
            raise DoesNotFitError(
                f"Live requests hold {self.held * PAGE_TOKENS} tokens of context memory, "
                f"{(self.held - capacity) * PAGE_TOKENS} more than --kv {capacity * PAGE_TOKENS} leaves.",
                f"Give --kv {self.held * PAGE_TOKENS} or more, or wait until they have finished.",
            )
        excess = self.pool.capacity - self.pool.free - capacity
        self.pool.give(self.tree.evict(excess))
        moves = self.pool.shrink_moves(capacity)
        for source, target in moves.items():
            copy(source, target)
        self.pool.shrink(capacity, moves)
        for node in self.tree.nodes():
            node.page = moves.get(node.page, node.page)
        for lease in self._leases:
            lease.pages = [moves.get(page, page) for page in lease.pages]

    def _advance(self, lease: Lease, node: Node) -> None:
        self.tree.pin(node)
        if lease.node is not self.tree.root:
            self.tree.unpin(lease.node)
        lease.node = node
