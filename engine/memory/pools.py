"""Which blocks of one kind are free."""

from __future__ import annotations

import heapq
from collections.abc import Iterable

from engine.memory.blocks import BlockKind


class BlockPool:
    """The free list. It hands out the lowest numbers first, so that a shrink finds few blocks to move."""

    def __init__(self, kind: BlockKind, capacity: int) -> None:
        self.kind = kind
        self._capacity = capacity
        self._free = list(range(capacity))
        self._taken: set[int] = set()

    @property
    def capacity(self) -> int:
        """Blocks there are; their numbers are 0 .. capacity - 1."""
        return self._capacity

    @property
    def free(self) -> int:
        """Blocks nobody holds."""
        return len(self._free)

    def take(self, count: int) -> list[int]:
        """`count` free blocks. The caller has looked at `free` first."""
        assert 0 <= count <= len(self._free), f"{count} {self.kind} blocks wanted, {len(self._free)} free"
        blocks = [heapq.heappop(self._free) for _ in range(count)]
        self._taken.update(blocks)
        return blocks

    def give(self, blocks: Iterable[int]) -> None:
        """Return blocks; each must be held, and by nobody else."""
        for block in blocks:
            assert block in self._taken, f"{self.kind} block {block} is returned but was not taken"
            self._taken.remove(block)
            heapq.heappush(self._free, block)

    def grow(self, capacity: int) -> None:
        """Add the blocks `self.capacity .. capacity - 1`."""
        assert capacity >= self._capacity
        for block in range(self._capacity, capacity):
            heapq.heappush(self._free, block)
        self._capacity = capacity

    def shrink_moves(self, capacity: int) -> dict[int, int]:
        """The moves {old block: free block} that empty every block from `capacity` on. Changes nothing.

        At most `capacity` blocks may be held.
        """
        assert len(self._taken) <= capacity
        high = sorted(block for block in self._taken if block >= capacity)
        low = sorted(block for block in self._free if block < capacity)
        return dict(zip(high, low, strict=False))

    def shrink(self, capacity: int, moves: dict[int, int]) -> None:
        """Carry out `moves` (from `shrink_moves`) in the books and drop the blocks from `capacity` on."""
        self._taken -= moves.keys()
        self._taken |= set(moves.values())
        assert all(block < capacity for block in self._taken)
        self._free = [block for block in range(capacity) if block not in self._taken]  # ascending: already a heap
        self._capacity = capacity
