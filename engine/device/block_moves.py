"""Blocks that change places within the memory of a device, by the kernel that fills slots: a launch for thousands."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from engine.device.driver import Driver, Stream

MOST_MOVES = 4096  # of a launch
_BLOCKS, _THREADS = 512, 256  # enough to have all multiprocessors of any device copy
_UNIT = 16  # bytes that a thread copies at a time
_PAIRS = 64  # bytes of the table before its pairs: where the blocks begin, and the counts
_FILLS = 3  # place of the number of fills among the counts


class BlockMover:
    """Fulfils `Driver.move_blocks` for a driver whose kernels are as fast as its copies.

    It has its table from the start, so that a cache can get smaller on a device that is full. Raises NoRoomError.
    """

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._table = driver.allocate(_PAIRS + 8 * MOST_MOVES)

    def move(self, stream: Stream, base: int, size: int, moves: NDArray[np.int32]) -> None:
        """As the driver's border says."""
        check_moves(base, size, moves)
        table = self._table.address
        for first in range(0, len(moves), MOST_MOVES):
            part = moves[first : first + MOST_MOVES]
            self._driver.synchronise(stream)  # the table may still be read
            head = np.zeros(_PAIRS // 4, np.int32)
            head[:2] = np.array([base], np.uint64).view(np.int32)
            counts = head[2:]
            counts[_FILLS] = len(part)
            self._driver.upload(table, np.concatenate([head, part.reshape(-1)]))
            one_shard = (table, np.iinfo(np.int32).max, size)  # the blocks are the records, in one shard, and the slots
            args = (*one_shard, table + _PAIRS, table + 8, base, size)
            self._driver.launch(stream, self._driver.kernel("fill"), (_BLOCKS, 1, 1), _THREADS, args)


def check_moves(base: int, size: int, moves: NDArray[np.int32]) -> None:
    """AssertionError for moves that cannot be done in any order, or not in units of 16 bytes."""
    assert moves.ndim == 2, "rows (from, to) are wanted"
    assert moves.shape[1] == 2, "rows (from, to) are wanted"
    assert moves.dtype == np.int32, f"places of type {moves.dtype}"
    assert size > 0, f"blocks of {size} bytes"
    assert size % _UNIT == 0, f"blocks of {size} bytes"
    assert base % _UNIT == 0, f"blocks at {base:#x}"
    assert not len(moves) or moves.min() >= 0, "a place below the first"
    assert not np.isin(moves[:, 1], moves[:, 0]).any(), "a block is copied from and copied to"
    assert len(np.unique(moves[:, 1])) == len(moves), "two blocks are copied to one place"
