"""Caches of a CUDA device: where keys, values and entries lie in pages, tables of pages, and what appends to them."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np

from engine.device.driver import Driver, Stream
from engine.memory.blocks import BlockKind
from engine.program.device.block_pools import BlockPools
from engine.program.device.buffers import Rows
from engine.program.device.mixer_data import MixerLayout, word_address
from engine.program.device.paged_kernels import PAGE_TOKENS
from engine.program.device.step_data import Extent
from engine.program.device.triton_launch import TritonLauncher, block_of
from engine.program.executor import Batch, Ints
from engine.program.ir import KV_LANES, Cache

VALUE_BYTES = 2


@dataclass(frozen=True)
class PageLayer:
    """Where the keys and values of one cache lie within a page of its kind, in values."""

    kind: BlockKind
    offset: int
    key_values: int  # of one kv head in a page
    value_base: int
    value_values: int
    k_padded: int
    k_place: int  # between the keys of neighbouring positions
    k_column: int  # between the dimensions of a key
    v_padded: int


def page_layers(caches: tuple[Cache, ...]) -> tuple[tuple[PageLayer, ...], Mapping[BlockKind, int]]:
    """The layers, and the values of a page of each kind in all of them."""
    found: list[PageLayer] = []
    ends: dict[BlockKind, int] = {"page": 0, "window": 0}
    for cache in caches:
        kind: BlockKind = "window" if cache.reach else "page"
        key, value = _padded(cache.k_dim), _padded(cache.v_dim)
        entries = max(1, PAGE_TOKENS // cache.every)
        keys = cache.kv_heads * entries * key
        if value:
            a_head = entries * value
            found.append(PageLayer(kind, ends[kind], entries * key, keys, a_head, key, 1, PAGE_TOKENS, value))
        else:  # values are the first columns of the keys
            found.append(PageLayer(kind, ends[kind], entries * key, 0, entries * key, key, key, 1, key))
        ends[kind] += keys + cache.kv_heads * entries * value
    return tuple(found), ends


class PageTables:
    """The tables of a batch's sequences, end to end, on the device: of pages and of window pages."""

    def __init__(self, driver: Driver, block_bytes: Mapping[BlockKind, int]) -> None:
        self._driver = driver
        total = driver.memory()[0]
        with ExitStack() as made:
            self._ranges = {}
            for kind in ("page", "window"):
                most = total // max(1, block_bytes[kind]) * 4 * 64  # pages are shared, so tables may be longer
                self._ranges[kind] = driver.reserve(max(1 << 20, most))
                made.callback(self._ranges[kind].free)
            self._made = made.pop_all()

    def address(self, kind: BlockKind) -> int:
        """Where the first table of a kind begins."""
        return self._ranges[kind].address

    def begin(self, batch: Batch) -> None:
        """Bring the tables of a batch to the device."""
        for kind, tables in (("page", batch.page_tables), ("window", batch.window_tables)):
            if tables:
                joined: Ints = np.concatenate(tables)
                held = self._ranges[kind]
                if joined.nbytes > held.mapped:
                    held.map(joined.nbytes)
                self._driver.upload(held.address, joined)

    def free(self) -> None:
        """Give all memory back."""
        self._made.close()


class PagedCaches:
    """The caches of a program, and the launches that append to them."""

    def __init__(self, driver: Driver, launcher: TritonLauncher, caches: tuple[Cache, ...], pools: BlockPools) -> None:
        self._launcher, self._caches, self._pools = launcher, caches, pools
        self.layers, self._page_values = page_layers(caches)
        self._tables = PageTables(driver, pools.block_bytes)

    def __getitem__(self, place: int) -> Cache:
        return self._caches[place]

    def begin(self, batch: Batch) -> None:
        """Before a step of this batch."""
        self._tables.begin(batch)

    def append_keys(self, stream: Stream, place: int, keys: Rows, extent: Extent) -> None:
        """Write the keys of tokens to a cache; of entries of several tokens those that a token completes."""
        cache, layer = self._caches[place], self.layers[place]
        shape = {"DIM": cache.k_dim, "PADDED": layer.k_padded, "PLACE": layer.k_place, "COLUMN": layer.k_column}
        self._append(stream, place, keys, shape, 0, layer.key_values, extent)

    def append_values(self, stream: Stream, place: int, values: Rows, extent: Extent) -> None:
        """Write the values of tokens to a cache that has them beside its keys."""
        cache, layer = self._caches[place], self.layers[place]
        shape = {"DIM": cache.v_dim, "PADDED": layer.v_padded, "PLACE": layer.v_padded, "COLUMN": 1}
        self._append(stream, place, values, shape, layer.value_base, layer.value_values, extent)

    def page_values(self, place: int) -> int:
        """Values between neighbouring pages of a cache."""
        return self._page_values[self.layers[place].kind]

    def places(self, place: int, extent: Extent) -> dict[str, int]:
        """The arguments by which kernels find a cache, and in it the pages of their tokens."""
        layer, layout = self.layers[place], MixerLayout(extent.layout.tokens)
        first = layout.first_windows if layer.kind == "window" else layout.first_pages
        return {
            "cache": self._pools.address(layer.kind) + VALUE_BYTES * layer.offset,
            "pages": self._tables.address(layer.kind),
            "first_pages": word_address(extent, first),
            "positions": extent.base + extent.layout.positions,
            "live": extent.live(False),
        }

    def free(self) -> None:
        """Give the tables' memory back."""
        self._tables.free()

    def _append(
        self, stream: Stream, place: int, rows: Rows, shape: Mapping[str, int], base: int, head: int, extent: Extent
    ) -> None:
        cache = self._caches[place]
        self._launcher.launch(
            stream,
            "append_rows",
            {**shape, "BLOCK": block_of(shape["PADDED"]), "EVERY": cache.every},
            (extent.layout.tokens, cache.kv_heads, 1),
            rows=rows.address,
            **self.places(place, extent),
            row_stride=rows.stride,
            page_values=self.page_values(place),
            base=base,
            head_values=head,
        )


def _padded(values: int) -> int:
    return -(-values // KV_LANES) * KV_LANES
