"""Attention of a CUDA device: Triton's kernels over pages, and over window pages where a cache has a reach."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np

from engine.device.driver import Driver, Stream
from engine.memory.blocks import BlockKind
from engine.program.device.block_pools import BlockPools
from engine.program.device.buffers import DeviceBuffers, Rows
from engine.program.device.mixer_data import MixerLayout, word_address
from engine.program.device.paged_kernels import CHUNK, GROUP, PAGE_TOKENS, TILE
from engine.program.device.step_data import Extent
from engine.program.device.triton_launch import TritonLauncher, block_of
from engine.program.executor import Batch, Ints
from engine.program.ir import KV_LANES, Cache, Op, Program

_MOST_PARTS = 16  # of one token and kv head, computed side by side
_ENOUGH_PROGRAMS = 512  # that keep a GPU busy; with more tokens there are fewer parts
VALUE_BYTES = 2


@dataclass(frozen=True)
class PageLayer:
    """Where the keys and values of one attention operation lie within a page of its kind, in values."""

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
        keys = cache.kv_heads * PAGE_TOKENS * key
        if value:
            a_head = PAGE_TOKENS * value
            found.append(PageLayer(kind, ends[kind], PAGE_TOKENS * key, keys, a_head, key, 1, PAGE_TOKENS, value))
        else:  # values are the first columns of the keys
            found.append(PageLayer(kind, ends[kind], PAGE_TOKENS * key, 0, PAGE_TOKENS * key, key, key, 1, key))
        ends[kind] += keys + cache.kv_heads * PAGE_TOKENS * value
    return tuple(found), ends


def parts_for(tokens: int, programs_a_token: int) -> int:
    """Into how many parts the positions of a token are divided."""
    return max(1, min(_MOST_PARTS, _ENOUGH_PROGRAMS // max(1, tokens * programs_a_token)))


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


class PagedAttention:
    """Launches of `attention`. `sinks` are the addresses of its vectors."""

    def __init__(
        self,
        driver: Driver,
        launcher: TritonLauncher,
        program: Program,
        pools: BlockPools,
        buffers: DeviceBuffers,
        sinks: Mapping[str, int],
        max_tokens: int,
    ) -> None:
        self._launcher, self._pools, self._buffers, self._sinks = launcher, pools, buffers, sinks
        self._caches = program.caches
        self._layers, self._page_values = page_layers(program.caches)
        operations = [op for op in program.ops if op.kind == "attention"]
        rows = [self._rows(op, max_tokens) for op in operations]
        widths = [int(op.attrs["v_dim"]) for op in operations]
        with ExitStack() as made:
            self._tables = PageTables(driver, pools.block_bytes)
            made.callback(self._tables.free)
            self._sums = driver.allocate(4 * max((r * w for r, w in zip(rows, widths, strict=True)), default=1))
            made.callback(self._sums.free)
            self._weights = driver.allocate(8 * max(rows, default=1))
            made.callback(self._weights.free)
            self._made = made.pop_all()

    def begin(self, batch: Batch) -> None:
        """Before a step of this batch."""
        self._tables.begin(batch)

    def issue(self, stream: Stream, op: Op, extent: Extent) -> None:
        """The launches of one operation: append keys and values that it has, attend in parts, merge them."""
        place = int(op.attrs["cache"])
        cache, layer = self._caches[place], self._layers[place]
        rows = [self._buffers[name] for name in op.reads if name]
        if len(rows) > 1:
            keys = {"DIM": cache.k_dim, "PADDED": layer.k_padded, "BLOCK": block_of(layer.k_padded)}
            keys |= {"PLACE": layer.k_place, "COLUMN": layer.k_column}
            self._append(stream, rows[1], keys, 0, layer.key_values, place, extent)
        if len(rows) > 2:
            values = {"DIM": cache.v_dim, "PADDED": layer.v_padded, "BLOCK": block_of(layer.v_padded)}
            values |= {"PLACE": layer.v_padded, "COLUMN": 1}
            self._append(stream, rows[2], values, layer.value_base, layer.value_values, place, extent)
        self._attend(stream, op, rows[0], extent)

    def free(self) -> None:
        """Give all memory back."""
        self._made.close()

    def _append(
        self,
        stream: Stream,
        rows: Rows,
        constants: Mapping[str, int],
        base: int,
        head: int,
        place: int,
        extent: Extent,
    ) -> None:
        cache = self._caches[place]
        self._launcher.launch(
            stream,
            "append_rows",
            constants,
            (extent.layout.tokens, cache.kv_heads, 1),
            rows=rows.address,
            **self._places(place, extent),
            row_stride=rows.stride,
            page_values=self._page_values[self._layers[place].kind],
            base=base,
            head_values=head,
        )

    def _attend(self, stream: Stream, op: Op, queries: Rows, extent: Extent) -> None:
        place = int(op.attrs["cache"])
        cache, layer = self._caches[place], self._layers[place]
        tokens, heads, v_dim = extent.layout.tokens, int(op.attrs["heads"]), int(op.attrs["v_dim"])
        a_head = heads // cache.kv_heads
        programs = cache.kv_heads * -(-a_head // GROUP)
        parts = parts_for(tokens, programs)
        capped = float(op.attrs["softcap"]) != 0.0
        self._launcher.launch(
            stream,
            "attend_parts",
            {
                "HEADS": a_head,
                "KV_HEADS": cache.kv_heads,
                "K_DIM": cache.k_dim,
                "K_PLACE": layer.k_place,
                "K_COLUMN": layer.k_column,
                "V_DIM": v_dim,
                "V_PADDED": layer.v_padded,
                "V_BLOCK": block_of(v_dim),
                "PARTS": parts,
                "CAPPED": int(capped),
                "TILE": TILE,
                "CHUNK": CHUNK,
                "GROUP": GROUP,
            },
            (tokens, programs, parts),
            queries=queries.address,
            **self._places(place, extent),
            part_sums=self._sums.address,
            part_weights=self._weights.address,
            query_stride=queries.stride,
            page_values=self._page_values[layer.kind],
            key_values=layer.key_values,
            value_base=layer.value_base,
            value_values=layer.value_values,
            scale=float(op.attrs["scale"]),
            softcap=float(op.attrs["softcap"]),
            window=int(op.attrs["window"]),
            chunk=int(op.attrs["chunk"]),
        )
        (out,) = (self._buffers[name] for name in op.writes)
        sinks = self._sinks[op.weights[0]] if op.weights[0] else 0
        self._launcher.launch(
            stream,
            "merge_parts",
            {"HEADS": heads, "V_DIM": v_dim, "V_BLOCK": block_of(v_dim), "PARTS": parts, "HAS_SINKS": int(sinks != 0)},
            (tokens, heads, 1),
            part_sums=self._sums.address,
            part_weights=self._weights.address,
            sinks=sinks,
            live=extent.live(False),
            out=out.address,
            out_stride=out.stride,
        )

    def _places(self, place: int, extent: Extent) -> dict[str, int]:
        layer, layout = self._layers[place], MixerLayout(extent.layout.tokens)
        first = layout.first_windows if layer.kind == "window" else layout.first_pages
        return {
            "cache": self._pools.address(layer.kind) + VALUE_BYTES * layer.offset,
            "pages": self._tables.address(layer.kind),
            "first_pages": word_address(extent, first),
            "positions": extent.base + extent.layout.positions,
            "live": extent.live(False),
        }

    def _rows(self, op: Op, max_tokens: int) -> int:
        """The most (token, query head, part) there are in a step of any size."""
        heads, cache = int(op.attrs["heads"]), self._caches[int(op.attrs["cache"])]
        programs = cache.kv_heads * -(-(heads // cache.kv_heads) // GROUP)
        return max(tokens * heads * parts_for(tokens, programs) for tokens in range(1, max_tokens + 1))


def _padded(values: int) -> int:
    return -(-values // KV_LANES) * KV_LANES
