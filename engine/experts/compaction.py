"""Which records stay when a cache gets smaller, and where to."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Compaction:
    """What a cache with fewer slots keeps: rows of `moves` are (from, to), both ascending; `dropped` slots lose their
    records.

    No slot that is moved from is moved to, so moves may be done in any order.
    """

    moves: NDArray[np.int32]
    dropped: NDArray[np.intp]


def compaction_moves(owner: NDArray[np.int32], slot_used: NDArray[np.uint32], slots: int) -> Compaction:
    """Keep the records used last in the first `slots` slots, and move as few as that takes.

    `owner` and `slot_used` tell of every slot in use which record it holds (-1: none) and when that was last used. On a
    tie the record in the lower slot stays: it may already be where it can remain.
    """
    held = np.flatnonzero(owner >= 0)
    hottest_first = held[np.argsort(-slot_used[held].astype(np.int64), kind="stable")]
    kept = np.sort(hottest_first[:slots])
    stays = np.zeros(len(owner), dtype=bool)
    stays[kept] = True
    sources = kept[kept >= slots]
    targets = np.flatnonzero(~stays[:slots])[: len(sources)]
    moves = np.stack([sources, targets], axis=1).astype(np.int32)
    return Compaction(moves=moves, dropped=np.sort(hottest_first[slots:]))
