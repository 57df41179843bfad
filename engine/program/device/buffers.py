"""A program's buffers in the memory of a device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from engine.base.errors import ON_THE_CPU, UnsupportedError
from engine.device.driver import Driver
from engine.files.codecs import align
from engine.program.executor import Floats
from engine.program.ir import Buffer, Program

ALIGNED_VALUES = 16  # rows of f32 begin at multiples of so many values
ALIGNED_BYTES = 256
READ_IDS = ("experts", "chosen_linear")


@dataclass(frozen=True)
class Rows:
    """A buffer or a view of one: `width` values a row, rows `stride` values apart, of 4 bytes each.

    `root` and `offset` say of which memory it is a view, for who needs to know what a write makes stale.
    """

    address: int
    stride: int
    width: int
    per_row: bool  # one row a wanted logit instead of one a token
    root: str
    offset: int = 0

    def span(self, rows: int) -> int:
        """Values from the first of the first row to the last of the last."""
        return (rows - 1) * self.stride + self.width

    def spread(self, values: Floats, count: int) -> Floats:
        """The rows [count, width] among `span(count)` values that lie as those of the buffer; no copy."""
        return np.lib.stride_tricks.as_strided(values, (count, self.width), (4 * self.stride, 4))


class DeviceBuffers:
    """Memory for `max_tokens` rows of every token buffer and `max_rows` of every row buffer, in one piece.

    What `route` writes lies dense, and so does the output. Raises UnsupportedError for a program whose buffers do not
    fit together, NoRoomError.
    """

    def __init__(self, driver: Driver, program: Program, max_tokens: int, max_rows: int) -> None:
        dense = {program.output, *routed(program)}
        places: dict[str, Rows] = {}
        size = 0
        for name, buffer in program.buffers.items():
            if buffer.base and name not in dense:
                continue
            stride = buffer.width if name in dense else align(buffer.width, ALIGNED_VALUES)
            places[name] = Rows(size, stride, buffer.width, buffer.domain == "row", name)
            size += align(stride * 4 * (max_rows if buffer.domain == "row" else max_tokens), ALIGNED_BYTES)
        self._driver = driver
        self._memory = driver.allocate(size)
        roots = {name: replace(rows, address=self._memory.address + rows.address) for name, rows in places.items()}
        self._rows = {name: roots.get(name) or _view(name, buffer, roots) for name, buffer in program.buffers.items()}

    def __getitem__(self, name: str) -> Rows:
        if name not in self._rows:
            raise UnsupportedError(f"The program names a buffer {name} that it does not have.", ON_THE_CPU)
        return self._rows[name]

    def read(self, name: str, count: int) -> Floats:
        """The first `count` rows [count, width] of a buffer of f32. For safe points: it does not wait for work."""
        rows = self[name]
        values = np.empty(rows.span(count), np.float32)
        self._driver.download(rows.address, values)
        return np.ascontiguousarray(rows.spread(values, count))

    def write(self, name: str, values: Floats) -> None:
        """Replace the first rows of a buffer of f32 by `values` [count, width]; what lies beside a view stays."""
        rows, count = self[name], len(values)
        around = values
        if rows.stride != rows.width:
            around = np.empty(rows.span(count), np.float32)
            self._driver.download(rows.address, around)
            rows.spread(around, count)[:] = values
        self._driver.upload(rows.address, around)

    def free(self) -> None:
        """Give the memory back."""
        self._memory.free()


def routed(program: Program) -> set[str]:
    """What `route` writes. Where that is a view, it shares storage with what is not alive meanwhile, and needs not.

    Raises UnsupportedError where anything but `experts` and `chosen_linear` reads ids, or anything writes what a router
    does.
    """
    names = {name for op in program.ops if op.kind == "route" for name in op.writes}
    ids = {name for name in names if program.buffers[name].dtype == "i32"}
    for op in program.ops:
        misread = op.kind not in READ_IDS and ids.intersection(op.reads)
        if misread or (op.kind != "route" and names.intersection(op.writes)):
            raise UnsupportedError(f"On a device an operation {op.kind} cannot use what the router writes.", ON_THE_CPU)
    return names


def _view(name: str, buffer: Buffer, roots: Mapping[str, Rows]) -> Rows:
    root = roots.get(buffer.base)
    if root is None or root.per_row != (buffer.domain == "row") or buffer.offset + buffer.width > root.width:
        raise UnsupportedError(f"The buffer {name} is no view of {buffer.base}.", ON_THE_CPU)
    return replace(root, address=root.address + 4 * buffer.offset, width=buffer.width, offset=buffer.offset)
