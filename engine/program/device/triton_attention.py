"""Attention of a CUDA device: Triton's kernels over pages in memory that grows and shrinks in place.

Kernels are compiled ahead for the shapes of a program and launched as all others are, so they are captured with them.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from engine.device.driver import Driver, Kernel, Memory, Stream
from engine.device.kernels import KernelSignature
from engine.files.ftw.opening import Tensor
from engine.memory.blocks import BlockKind, ContextRoom
from engine.program.device.buffers import DeviceBuffers, Rows
from engine.program.device.paged_kernels import CHUNK, GROUP, PAGE_TOKENS, TILE
from engine.program.device.step_data import Extent
from engine.program.executor import Batch, Bytes
from engine.program.ir import KV_LANES, Cache, Op, Program
from engine.program.native import no_room

_MOST_PARTS = 16  # of one token and kv head, computed side by side
_ENOUGH_PROGRAMS = 512  # that keep a GPU busy; with more tokens there are fewer parts
_VALUE_BYTES = 2

Constants = Mapping[str, int]


class KernelLoader(Protocol):
    """Compiles a Triton function of `paged_kernels` for the driver's device. `threads` are those of a block."""

    def __call__(self, name: str, types: Mapping[str, str], constants: Constants) -> LoadedKernel: ...


@dataclass(frozen=True)
class LoadedKernel:
    """A compiled kernel, and how it is launched."""

    kernel: Kernel
    threads: int
    shared: int


@dataclass(frozen=True)
class _Layer:
    """Where the keys and values of one attention operation lie within a page, in values."""

    offset: int
    key_values: int  # of one kv head in a page
    value_base: int
    value_values: int
    k_padded: int
    v_padded: int


def _padded(values: int) -> int:
    return -(-values // KV_LANES) * KV_LANES


def _power(values: int) -> int:
    return max(16, 1 << (values - 1).bit_length())


def _layers(caches: tuple[Cache, ...]) -> tuple[tuple[_Layer, ...], int]:
    """The layers of a page, and its values in all."""
    found, end = [], 0
    for cache in caches:
        key, value = _padded(cache.k_dim), _padded(cache.v_dim)
        keys = cache.kv_heads * PAGE_TOKENS * key
        if value:
            found.append(_Layer(end, PAGE_TOKENS * key, keys, PAGE_TOKENS * value, key, value))
        else:  # values are the first columns of the keys
            found.append(_Layer(end, PAGE_TOKENS * key, 0, PAGE_TOKENS * key, key, key))
        end += keys + cache.kv_heads * PAGE_TOKENS * value
    return tuple(found), end


def parts_for(tokens: int, programs_a_token: int) -> int:
    """Into how many parts the positions of a token are divided."""
    return max(1, min(_MOST_PARTS, _ENOUGH_PROGRAMS // max(1, tokens * programs_a_token)))


class TritonAttention:
    """Fulfils `engine.program.device.attention.DeviceAttention` on a driver whose kernels `load` compiles."""

    def __init__(
        self,
        driver: Driver,
        program: Program,
        dense: Mapping[str, Tensor],
        buffers: DeviceBuffers,
        *,
        load: KernelLoader,
        kv_dtype: str,
        page_tokens: int,
        room: ContextRoom,
        max_tokens: int,
        threads: int | None = None,
        isa: str = "",
    ) -> None:
        assert (kv_dtype, page_tokens) == ("f16", PAGE_TOKENS), "the kernels read pages of 16 rows of binary16"
        self._driver, self._buffers, self._load = driver, buffers, load
        self._caches = program.caches
        self._layers, self._page_values = _layers(program.caches)
        self._kernels: dict[tuple[str, tuple[tuple[str, int], ...]], LoadedKernel] = {}
        self._pages = 0
        operations = [op for op in program.ops if op.kind == "attention"]
        total = driver.memory()[0]
        with ExitStack() as made:
            self._cache = driver.reserve(max(self._page_bytes, total))
            made.callback(self._cache.free)
            self._tables = driver.reserve(max(1 << 20, total // max(1, self._page_bytes) * 4 * 64))
            made.callback(self._tables.free)
            self._sums = driver.allocate(max((self._part_bytes(op, max_tokens) for op in operations), default=4))
            made.callback(self._sums.free)
            self._weights = driver.allocate(max((self._weight_bytes(op, max_tokens) for op in operations), default=4))
            made.callback(self._weights.free)
            self._sinks: dict[str, Memory] = {}
            for name in filter(None, (op.weights[0] for op in operations)):
                self._sinks[name] = _vector(driver, dense[name])
                made.callback(self._sinks[name].free)
            self.resize_context(room)
            self._made = made.pop_all()

    @property
    def page_tokens(self) -> int:
        return PAGE_TOKENS

    @property
    def room(self) -> ContextRoom:
        return ContextRoom(self._pages)

    @property
    def block_bytes(self) -> Mapping[BlockKind, int]:
        return {"page": self._page_bytes, "window": 0, "state": 0}

    def resize_context(self, room: ContextRoom) -> None:
        if room.pages * self._page_bytes > self._cache.size:
            raise no_room(room)
        self._cache.map(room.pages * self._page_bytes)
        self._pages = room.pages

    def copy_block(self, kind: BlockKind, source: int, target: int) -> None:
        stream = self._driver.stream("pages")
        self._driver.copy(stream, self._block(kind, target), self._block(kind, source), self._page_bytes)
        self._driver.synchronise(stream)

    def read_block(self, kind: BlockKind, block: int) -> Bytes:
        data = np.empty(self.block_bytes[kind], np.uint8)
        self._driver.download(self._block(kind, block), data)
        return data

    def write_block(self, kind: BlockKind, block: int, data: Bytes) -> None:
        if len(data) != self.block_bytes[kind]:
            raise ValueError(f"a block of {self.block_bytes[kind]} bytes instead of {len(data)}")
        self._driver.upload(self._block(kind, block), data)

    @property
    def _page_bytes(self) -> int:
        return self._page_values * _VALUE_BYTES

    def _block(self, kind: BlockKind, block: int) -> int:
        """The address of a block that is there."""
        if not 0 <= block < self.room.count(kind):
            raise IndexError(f"{kind} {block} of {self.room.count(kind)}")
        return self._cache.address + block * self._page_bytes

    def step_bytes(self, tokens: int) -> int:
        """Of each token where in the table the pages of its sequence begin."""
        return 4 * tokens

    def begin(self, batch: Batch, data: NDArray[np.uint8]) -> None:
        sizes = [len(table) for table in batch.page_tables]
        first = np.cumsum([0, *sizes[:-1]], dtype=np.int32)
        data.view(np.int32)[: len(batch.tokens)] = np.repeat(first, np.diff(batch.seq_starts))
        tables = np.concatenate(batch.page_tables)
        if tables.nbytes > self._tables.mapped:
            self._tables.map(tables.nbytes)
        self._driver.upload(self._tables.address, tables)

    def issue(self, stream: Stream, index: int, op: Op, extent: Extent) -> None:
        place = int(op.attrs["cache"])
        cache, layer = self._caches[place], self._layers[place]
        rows = [self._buffers[name] for name in op.reads if name]
        self._append(stream, rows[1], cache.k_dim, layer.k_padded, 0, layer.key_values, place, extent)
        if cache.v_dim:
            self._append(
                stream, rows[2], cache.v_dim, layer.v_padded, layer.value_base, layer.value_values, place, extent
            )
        self._attend(stream, op, rows[0], extent)

    def free(self) -> None:
        """Give all memory back."""
        self._made.close()

    # -- launches

    def _append(
        self, stream: Stream, rows: Rows, dim: int, padded: int, base: int, head: int, place: int, extent: Extent
    ) -> None:
        cache = self._caches[place]
        constants = {"DIM": dim, "PADDED": padded, "BLOCK": _power(padded)}
        self._launch(
            stream,
            "append_rows",
            constants,
            (extent.layout.tokens, cache.kv_heads, 1),
            rows=rows.address,
            cache=self._layer_address(place),
            **self._places(extent),
            row_stride=rows.stride,
            page_values=self._page_values,
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
        self._launch(
            stream,
            "attend_parts",
            {
                "HEADS": a_head,
                "KV_HEADS": cache.kv_heads,
                "K_DIM": cache.k_dim,
                "K_PADDED": layer.k_padded,
                "V_DIM": v_dim,
                "V_PADDED": layer.v_padded,
                "V_BLOCK": _power(v_dim),
                "PARTS": parts,
                "CAPPED": int(capped),
                "TILE": TILE,
                "CHUNK": CHUNK,
                "GROUP": GROUP,
            },
            (tokens, programs, parts),
            queries=queries.address,
            cache=self._layer_address(place),
            **self._places(extent),
            part_sums=self._sums.address,
            part_weights=self._weights.address,
            query_stride=queries.stride,
            page_values=self._page_values,
            key_values=layer.key_values,
            value_base=layer.value_base,
            value_values=layer.value_values,
            scale=float(op.attrs["scale"]),
            softcap=float(op.attrs["softcap"]),
            window=int(op.attrs["window"]),
        )
        (out,) = (self._buffers[name] for name in op.writes)
        sinks = self._sinks.get(op.weights[0])
        self._launch(
            stream,
            "merge_parts",
            {"HEADS": heads, "V_DIM": v_dim, "V_BLOCK": _power(v_dim), "PARTS": parts, "HAS_SINKS": int(bool(sinks))},
            (tokens, heads, 1),
            part_sums=self._sums.address,
            part_weights=self._weights.address,
            sinks=sinks.address if sinks else 0,
            live=extent.live(False),
            out=out.address,
            out_stride=out.stride,
        )

    def _places(self, extent: Extent) -> dict[str, int]:
        return {
            "pages": self._tables.address,
            "first_pages": extent.attention,
            "positions": extent.base + extent.layout.positions,
            "live": extent.live(False),
        }

    def _layer_address(self, place: int) -> int:
        return self._cache.address + _VALUE_BYTES * self._layers[place].offset

    def _launch(
        self, stream: Stream, name: str, constants: Constants, grid: tuple[int, int, int], **args: int | float
    ) -> None:
        key = name, tuple(constants.items())
        if key not in self._kernels:
            self._kernels[key] = self._load(name, {argument: TYPES[argument] for argument in args}, constants)
        loaded = self._kernels[key]
        # Two more pointers: scratch memory that Triton's kernels may take, and these do not.
        self._driver.launch(stream, loaded.kernel, grid, loaded.threads, (*args.values(), 0, 0), loaded.shared)

    def _part_bytes(self, op: Op, max_tokens: int) -> int:
        return 4 * int(op.attrs["v_dim"]) * self._rows(op, max_tokens)

    def _weight_bytes(self, op: Op, max_tokens: int) -> int:
        return 8 * self._rows(op, max_tokens)

    def _rows(self, op: Op, max_tokens: int) -> int:
        """The most (token, query head, part) there are in a step of any size."""
        heads, cache = int(op.attrs["heads"]), self._caches[int(op.attrs["cache"])]
        programs = cache.kv_heads * -(-(heads // cache.kv_heads) // GROUP)
        return max(tokens * heads * parts_for(tokens, programs) for tokens in range(1, max_tokens + 1))


TYPES: Mapping[str, str] = {
    **dict.fromkeys(("rows", "queries", "part_sums", "part_weights", "sinks", "out"), "*fp32"),
    **dict.fromkeys(("pages", "first_pages", "positions", "live"), "*i32"),
    "cache": "*fp16",
    **dict.fromkeys(("row_stride", "page_values", "base", "head_values", "query_stride", "key_values"), "i32"),
    **dict.fromkeys(("value_base", "value_values", "window", "out_stride"), "i32"),
    **dict.fromkeys(("scale", "softcap"), "fp32"),
}
"""Triton's types of the parameters of all kernels, by name."""

_LETTERS = {"i32": "i", "fp32": "f"}


def launch_signature(name: str, types: Mapping[str, str]) -> KernelSignature:
    """How a Triton kernel with these parameters is launched, its two scratch pointers included."""
    letters = "".join(_LETTERS.get(kind, "p") for kind in types.values())
    return KernelSignature(name, "", letters + "pp", None)


def _vector(driver: Driver, tensor: Tensor) -> Memory:
    """A vector of f32, copied to the device."""
    values = np.frombuffer(tensor.data, np.float32)
    memory = driver.allocate(values.nbytes)
    driver.upload(memory.address, values)
    return memory
