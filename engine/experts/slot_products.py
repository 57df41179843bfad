"""Experts in their slots times the tokens that chose them: native/cuda/{expert,expert_many,expert_glu,group,pack}.cu.

The launches of one bank, for the pairs that hit or for those that were filled. They depend on sizes alone: which pairs
there are, the device finds in the plan's `target`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from engine.device import products
from engine.device.driver import Driver, Grid, Kernel, Memory, Stream
from engine.device.gated_units import GLU_KINDS
from engine.files.codecs import CODECS, TILE_ROWS, align
from engine.files.ftw.manifest import Field
from engine.files.ftw.opening import Bank

HITS, FILLS = 0, 1  # `which` of the kernels

MANY_PAIRS = 4  # an expert, from which on its weights are decoded once for all of them
MOST_PAIRS = 65535  # rows of a grid

ALIGNED_BYTES = 256
_NO_VECTOR = (1 << 64) - 1


@dataclass(frozen=True)
class Activation:
    """What stands between an expert's matrices, as in the program's operation `experts`."""

    name: str
    alpha: float
    limit: float


@dataclass(frozen=True)
class RecordShape:
    """A bank's record as products see it."""

    fields: dict[str, Field]
    hidden: int
    width: int  # of the intermediate

    @staticmethod
    def of(bank: Bank) -> RecordShape:
        fields = {field.name: field for field in bank.fields}
        down = fields["down"].shape
        return RecordShape(fields, hidden=down.rows, width=down.cols)

    @property
    def is_interleaved(self) -> bool:
        return "gate_up" in self.fields

    @property
    def reads_blocks(self) -> bool:
        """Whether up, and gate where there is one, read their input rounded to blocks; both do or neither."""
        return _is_integer(self.fields["gate_up" if self.is_interleaved else "up"])

    @property
    def padded_width(self) -> int:
        return align(self.width, TILE_ROWS)

    def offset(self, name: str) -> int:
        """Where a vector lies in the record, or what says that there is none."""
        return self.fields[name].offset if name in self.fields else _NO_VECTOR


@dataclass(frozen=True)
class PairRows:
    """Where the pairs of a layer are, and how many launches are made for.

    `ids` and `target` are i32 [bucket][top_k], `rows` is the number of live tokens, all on the device.
    """

    ids: int
    target: int
    rows: int
    bucket: int
    top_k: int

    @property
    def count(self) -> int:
        return self.bucket * self.top_k


@dataclass(frozen=True)
class Rows:
    """f32 rows, `stride` values apart, or blocks; `bytes` apart."""

    address: int
    bytes: int

    @property
    def stride(self) -> int:
        return self.bytes // 4


class ProductRoom:
    """Memory between the launches of a layer, one row a pair; shared by all banks, since layers follow each other.

    Hits and fills use rows of their own pairs, except where a launch packs all rows alike: there each has its own.
    """

    def __init__(
        self, driver: Driver, shapes: Sequence[RecordShape], *, experts: int, top_k: int, max_tokens: int
    ) -> None:
        """For the banks that may have slots, of at most `experts` experts a layer. Raises NoRoomError."""
        pairs = max_tokens * top_k
        assert pairs <= MOST_PAIRS, f"{max_tokens} tokens of {top_k} experts are more than a launch can have"
        width = max(shape.padded_width for shape in shapes)
        hidden = shapes[0].hidden
        self._driver = driver
        self._memory: list[Memory] = []
        try:
            self.x = self._rows(max_tokens, packed_bytes(hidden))
            self.gate_up = self._rows(pairs, 4 * 2 * width)
            self.h = self._rows(pairs, 4 * width)
            self.packed = tuple(self._rows(pairs, packed_bytes(width)) for _ in (HITS, FILLS))
            self.outputs = self._rows(pairs, 4 * align(hidden, TILE_ROWS))
            self.starts = tuple(self._allocate(products.starts_bytes(pairs, experts)) for _ in (HITS, FILLS))
            self.order = tuple(self._allocate(4 * pairs) for _ in (HITS, FILLS))
        except BaseException:
            self.free()
            raise

    @property
    def size(self) -> int:
        """Bytes of the device."""
        return sum(memory.size for memory in self._memory)

    def free(self) -> None:
        for memory in self._memory:
            memory.free()
        self._memory.clear()

    def _rows(self, count: int, row_bytes: int) -> Rows:
        return Rows(self._allocate(count * row_bytes), row_bytes)

    def _allocate(self, size: int) -> int:
        self._memory.append(self._driver.allocate(size))
        return self._memory[-1].address


class SlotProducts:
    """The launches of one bank. `slots` is the address of slot 0, slots lie `stride` bytes apart."""

    def __init__(self, driver: Driver, bank: Bank, slots: int, stride: int, room: ProductRoom) -> None:
        self.shape = RecordShape.of(bank)
        self._driver = driver
        self._experts = bank.experts_per_layer
        self._slots = (slots, stride)
        self._room = room
        codecs = {field.shape.codec for field in bank.fields if not field.shape.vector}
        names = ["pack_q16", "group_pairs", "expert_glu", "expert_bias"]
        names += [f"{family}_{codec}" for family in ("expert", "expert_many") for codec in codecs]
        self._kernels: dict[str, Kernel] = {name: driver.kernel(name) for name in names}

    def pack_input(self, stream: Stream, x: Rows, pairs: PairRows) -> Rows:
        """The tokens' rows as gate and up read them; once a layer, before hits and fills."""
        if not self.shape.reads_blocks:
            return x
        self._pack(stream, x, pairs, 1, self.shape.hidden, self._room.x)
        return self._room.x

    def group(self, stream: Stream, which: int, pairs: PairRows) -> None:
        """What `compute` of the same pairs needs before it."""
        if self._takes_many(pairs):
            lists = (self._room.starts[which], self._room.order[which])
            args = (pairs.target, pairs.ids, pairs.rows, pairs.top_k, which, self._experts, *lists)
            self._launch(stream, "group_pairs", (1, 1, 1), products.GROUP_THREADS, *args)

    def compute(self, stream: Stream, which: int, x: Rows, pairs: PairRows, activation: Activation) -> None:
        """Hits or fills: the outputs of their pairs, in the room's `outputs`."""
        shape, room = self.shape, self._room
        if shape.is_interleaved:
            gate_up = shape.fields["gate_up"]
            self._multiply(stream, which, gate_up, 2 * shape.padded_width, x, False, pairs, room.gate_up)
        else:
            columns = {"gate": 0, "up": shape.padded_width}
            for name, column in ((name, column) for name, column in columns.items() if name in shape.fields):
                part = Rows(room.gate_up.address + 4 * column, room.gate_up.bytes)
                self._multiply(stream, which, shape.fields[name], shape.width, x, False, pairs, part)
        self._activate(stream, which, pairs, activation)
        down, h = shape.fields["down"], room.h
        if _is_integer(down):
            h = room.packed[which]
            self._pack(stream, room.h, pairs, pairs.top_k, shape.width, h)
        self._multiply(stream, which, down, shape.hidden, h, True, pairs, room.outputs)
        if "down_bias" in shape.fields:
            args = (*self._slots, shape.offset("down_bias"), shape.hidden, pairs.target, which, pairs.rows, pairs.top_k)
            grid = products.row_grid(shape.hidden, pairs.count)
            self._launch(
                stream, "expert_bias", grid, products.ROW_THREADS, *args, room.outputs.address, room.outputs.stride
            )

    def _takes_many(self, pairs: PairRows) -> bool:
        return pairs.count >= MANY_PAIRS * self._experts

    def _multiply(
        self, stream: Stream, which: int, field: Field, rows: int, x: Rows, per_pair: bool, pairs: PairRows, y: Rows
    ) -> None:
        matrix = (*self._slots, field.offset, rows, field.shape.cols)
        places = (pairs.target, which, pairs.top_k, int(per_pair))
        args = (*matrix, *places, x.address, x.bytes, pairs.rows, y.address, y.stride)
        codec = field.shape.codec
        if self._takes_many(pairs):
            grid = products.many_grid(rows, products.most_groups(pairs.count, self._experts))
            lists = (self._room.starts[which], self._room.order[which])
            self._launch(stream, f"expert_many_{codec}", grid, products.MANY_THREADS, *args, *lists)
        else:
            grid = products.few_grid(rows, pairs.count)
            self._launch(stream, f"expert_{codec}", grid, products.FEW_THREADS, *args)

    def _activate(self, stream: Stream, which: int, pairs: PairRows, activation: Activation) -> None:
        shape, room = self.shape, self._room
        biases = (shape.offset("gate_bias"), shape.offset("up_bias"))
        unit = (GLU_KINDS[activation.name], activation.alpha, activation.limit)
        args = (*self._slots, *biases, int(shape.is_interleaved), shape.width, *unit)
        places = (pairs.target, which, pairs.rows, pairs.top_k)
        rows = (room.gate_up.address, room.gate_up.stride, room.h.address, room.h.stride)
        grid = products.row_grid(shape.width, pairs.count)
        self._launch(stream, "expert_glu", grid, products.ROW_THREADS, *args, *places, *rows)

    def _pack(self, stream: Stream, x: Rows, pairs: PairRows, per_token: int, cols: int, out: Rows) -> None:
        """All rows alike: those of pairs that are not there are never read."""
        grid = products.pack_grid(cols, pairs.bucket * per_token)
        args = (x.address, x.stride, 0, pairs.rows, per_token, cols, out.address, out.bytes)
        self._launch(stream, "pack_q16", grid, products.PACK_THREADS, *args)

    def _launch(self, stream: Stream, name: str, grid: Grid, threads: int, *args: int | float) -> None:
        self._driver.launch(stream, self._kernels[name], grid, threads, args)


def packed_bytes(cols: int) -> int:
    """Bytes between packed rows of `cols` values."""
    return align(products.q16_bytes(cols), ALIGNED_BYTES)


def _is_integer(field: Field) -> bool:
    return not CODECS[field.shape.codec].is_float
