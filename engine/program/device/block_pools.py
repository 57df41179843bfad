"""Context memory of a device: blocks of each kind, in ranges of addresses that grow and shrink in place."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from typing import get_args

import numpy as np

from engine.base.errors import NoRoomError
from engine.device.driver import Driver
from engine.memory.blocks import BlockKind, ContextRoom
from engine.program.executor import Bytes
from engine.program.native import no_room

BLOCK_KINDS: tuple[BlockKind, ...] = get_args(BlockKind)


class BlockPools:
    """Blocks of `block_bytes` bytes a kind, end to end. Nothing is done while a step is under way."""

    def __init__(self, driver: Driver, block_bytes: Mapping[BlockKind, int]) -> None:
        self._driver = driver
        self._stream = driver.stream("blocks")
        self.block_bytes = block_bytes
        self.room = ContextRoom()
        total = driver.memory()[0]
        with ExitStack() as made:
            self._ranges = {}
            for kind in BLOCK_KINDS:
                self._ranges[kind] = driver.reserve(max(block_bytes[kind], total))
                made.callback(self._ranges[kind].free)
            self._made = made.pop_all()

    def address(self, kind: BlockKind) -> int:
        """Where block 0 begins; it stays there."""
        return self._ranges[kind].address

    def resize(self, room: ContextRoom) -> None:
        """Blocks below both counts keep their contents. NoRoomError, and nothing is changed, where there is no room."""
        wanted = room.with_bytes(self.block_bytes)
        before = {kind: held.mapped for kind, held in self._ranges.items()}
        sizes = {kind: wanted.count(kind) * self.block_bytes[kind] for kind in BLOCK_KINDS}
        # What grows goes first: where it fails, nothing has been given up yet.
        order = sorted(BLOCK_KINDS, key=lambda kind: sizes[kind] < before[kind])
        try:
            for kind in order:
                if sizes[kind] > self._ranges[kind].size:
                    raise no_room(room)
                self._ranges[kind].map(sizes[kind])
        except NoRoomError:
            for kind in order:
                self._ranges[kind].map(min(before[kind], self._ranges[kind].mapped))
            raise no_room(room) from None
        self.room = wanted

    def copy(self, kind: BlockKind, source: int, target: int) -> None:
        """Copy a block onto another. IndexError for one that is not there."""
        self._driver.copy(self._stream, self._block(kind, target), self._block(kind, source), self.block_bytes[kind])
        self._driver.synchronise(self._stream)

    def read(self, kind: BlockKind, block: int) -> Bytes:
        """What a block holds. IndexError for one that is not there."""
        data = np.empty(self.block_bytes[kind], np.uint8)
        self._driver.download(self._block(kind, block), data)
        return data

    def write(self, kind: BlockKind, block: int, data: Bytes) -> None:
        """Fill a block. IndexError for one that is not there, ValueError for data of another size."""
        if len(data) != self.block_bytes[kind]:
            raise ValueError(f"a block of {self.block_bytes[kind]} bytes instead of {len(data)}")
        self._driver.upload(self._block(kind, block), np.ascontiguousarray(data))

    def free(self) -> None:
        """Give all memory back."""
        self._made.close()

    def _block(self, kind: BlockKind, number: int) -> int:
        count = self.room.count(kind)
        if not 0 <= number < count:
            raise IndexError(f"{kind} {number} of {count}")
        return self.address(kind) + number * self.block_bytes[kind]


def room_bytes(room: ContextRoom, block_bytes: Mapping[BlockKind, int]) -> int:
    """Bytes of all blocks."""
    return sum(room.count(kind) * block_bytes[kind] for kind in BLOCK_KINDS)
