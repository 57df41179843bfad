"""Which cache pages are free. A page holds keys and values of `PAGE_TOKENS` consecutive positions in every layer."""

from __future__ import annotations

import heapq
from collections.abc import Iterable

PAGE_TOKENS = 16


def pages_for(tokens: int) -> int:
    """Pages that `tokens` positions take."""
    return -(-tokens // PAGE_TOKENS)


class PagePool:
    """The free list. It hands out the lowest page numbers first, so that a shrink finds few pages to move."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._free = list(range(capacity))
        self._taken: set[int] = set()

    @property
    def capacity(self) -> int:
        """Pages there are; their numbers are 0 .. capacity - 1."""
        return self._capacity

    @property
    def free(self) -> int:
        """Pages nobody holds."""
        return len(self._free)

    def take(self, count: int) -> list[int]:
        """`count` free pages. The caller has looked at `free` first."""
        assert 0 <= count <= len(self._free), f"{count} pages wanted, {len(self._free)} free"
        pages = [heapq.heappop(self._free) for _ in range(count)]
        self._taken.update(pages)
        return pages

    def give(self, pages: Iterable[int]) -> None:
        """Return pages; each must be held, and by nobody else."""
        for page in pages:
            assert page in self._taken, f"page {page} is returned but was not taken"
            self._taken.remove(page)
            heapq.heappush(self._free, page)

    def grow(self, capacity: int) -> None:
        """Add the pages `self.capacity .. capacity - 1`."""
        assert capacity >= self._capacity
        for page in range(self._capacity, capacity):
            heapq.heappush(self._free, page)
        self._capacity = capacity

    def shrink_moves(self, capacity: int) -> dict[int, int]:
        """The moves {old page: free page} that empty every page from `capacity` on. Changes nothing.

        At most `capacity` pages may be held.
        """
        assert len(self._taken) <= capacity
        high = sorted(page for page in self._taken if page >= capacity)
        low = sorted(page for page in self._free if page < capacity)
        return dict(zip(high, low, strict=False))

    def shrink(self, capacity: int, moves: dict[int, int]) -> None:
        """Carry out `moves` (from `shrink_moves`) in the books and drop the pages from `capacity` on."""
        self._taken -= moves.keys()
        self._taken |= set(moves.values())
        assert all(page < capacity for page in self._taken)
        self._free = [page for page in range(capacity) if page not in self._taken]  # ascending, so already a heap
        self._capacity = capacity
