"""Context memory of the reference executor: tensors whose first axis counts blocks."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from engine.base.errors import NoRoomError
from engine.memory.blocks import NO_BLOCKS, BlockKind, ContextRoom
from engine.program.executor import Bytes
from engine.program.ir import Program


@dataclass
class CachePages:
    """One operation's cache: keys [pages, entries of a page, kv_heads, k_dim], values alike, or none."""

    kind: BlockKind
    keys: Tensor
    values: Tensor | None


class ReferenceContext:
    """Keys, values and states of a program, in f32.

    `states[i]` is a tensor [slots, values] of the program's recurrent operation `i`.
    """

    def __init__(self, program: Program, page_tokens: int) -> None:
        self.caches = [
            CachePages(
                "window" if cache.reach else "page",
                torch.zeros(0, max(1, page_tokens // cache.every), cache.kv_heads, cache.k_dim),
                torch.zeros(0, page_tokens, cache.kv_heads, cache.v_dim) if cache.v_dim else None,
            )
            for cache in program.caches
        ]
        self.states = [torch.zeros(0, state.values) for state in program.states]
        self.room = NO_BLOCKS

    @property
    def block_bytes(self) -> Mapping[BlockKind, int]:
        """Bytes of one block of each kind."""
        kinds: tuple[BlockKind, ...] = ("page", "window", "state")
        return {kind: sum(4 * math.prod(store.shape[1:]) for store in self._stores(kind)) for kind in kinds}

    def resize(self, room: ContextRoom) -> None:
        """As `engine.program.executor.Executor.resize_context`."""
        used = {cache.kind for cache in self.caches}
        room = ContextRoom(
            room.pages if "page" in used else 0,
            room.windows if "window" in used else 0,
            room.states if self.states else 0,
        )
        try:
            caches = [
                CachePages(
                    cache.kind,
                    _resized(cache.keys, room.count(cache.kind)),
                    None if cache.values is None else _resized(cache.values, room.count(cache.kind)),
                )
                for cache in self.caches
            ]
            states = [_resized(state, room.states) for state in self.states]
        except (MemoryError, RuntimeError):
            raise NoRoomError(f"There is no memory for {room.pages} pages of context.", "Ask for fewer.") from None
        self.caches, self.states, self.room = caches, states, room

    def copy(self, kind: BlockKind, source: int, target: int) -> None:
        """Copy a block. Raises IndexError for one that is not there."""
        self._check(kind, source)
        self._check(kind, target)
        for store in self._stores(kind):
            store[target] = store[source]

    def read(self, kind: BlockKind, block: int) -> Bytes:
        """The contents of a block."""
        self._check(kind, block)
        parts = [store[block].numpy().reshape(-1).view(np.uint8) for store in self._stores(kind)]
        return np.concatenate([np.zeros(0, np.uint8), *parts])

    def write(self, kind: BlockKind, block: int, data: Bytes) -> None:
        """Fill a block with what `read` gave. Raises ValueError for data of another size."""
        self._check(kind, block)
        if len(data) != self.block_bytes[kind]:
            raise ValueError(f"a block of {self.block_bytes[kind]} bytes instead of {len(data)}")
        begin = 0
        for store in self._stores(kind):
            end = begin + 4 * store[block].numel()
            store[block] = torch.from_numpy(data[begin:end].copy().view(np.float32)).view(store[block].shape)
            begin = end

    def _stores(self, kind: BlockKind) -> list[Tensor]:
        if kind == "state":
            return self.states
        found = [(cache.keys, cache.values) for cache in self.caches if cache.kind == kind]
        return [store for pair in found for store in pair if store is not None]

    def _check(self, kind: BlockKind, block: int) -> None:
        if not 0 <= block < self.room.count(kind):
            raise IndexError(f"{kind} {block} of {self.room.count(kind)}")


def _resized(store: Tensor, blocks: int) -> Tensor:
    resized = torch.zeros(blocks, *store.shape[1:])
    kept = min(blocks, len(store))
    resized[:kept] = store[:kept]
    return resized
