"""Rows of buffers in the form that products of integer codecs read, and in the orders of matrices that have one."""

from __future__ import annotations

from dataclasses import dataclass

from engine.device.driver import Driver, Memory
from engine.device.products import input_bytes
from engine.files.codecs import align
from engine.program.device.buffers import Rows

ALIGNED_BYTES = 64
ANY_INTEGER, ANY_FLOAT = "q8_0", "f32"  # all codecs of a kind read the same rows


@dataclass(frozen=True)
class PackedRows:
    """Rows `row_bytes` apart; those of integer codecs in blocks rounded to 16 bits, else f32."""

    address: int
    row_bytes: int


@dataclass
class _Twin:
    rows: PackedRows
    root: str
    is_stale: bool = True


class Activations:
    """Packed rows, made once for all operations that read a buffer between two writes of it.

    It is asked in the order of the program; `written` says that an operation writes a buffer.
    """

    def __init__(self, driver: Driver, max_tokens: int, max_rows: int) -> None:
        self._driver = driver
        self._max_tokens, self._max_rows = max_tokens, max_rows
        self._memory: list[Memory] = []
        self._twins: dict[tuple[str, int, int], _Twin] = {}
        self._ordered: dict[tuple[bool, int, bool, int], PackedRows] = {}
        self._heads: dict[tuple[int, bool], PackedRows] = {}

    def packed(self, rows: Rows) -> tuple[PackedRows, bool]:
        """Rows of a buffer for integer codecs, and whether they must be packed before they are read."""
        key = rows.root, rows.offset, rows.width
        if key not in self._twins:
            self._twins[key] = _Twin(self._allocate(self._capacity(rows.per_row), rows.width, True), rows.root)
        twin = self._twins[key]
        was_stale, twin.is_stale = twin.is_stale, False
        return twin.rows, was_stale

    def ordered(self, rows: Rows, is_integer: bool, number: int) -> PackedRows:
        """Room for rows in another order of their columns, the operation's `number`th: packed anew by each."""
        key = rows.per_row, rows.width, is_integer, number
        if key not in self._ordered:
            self._ordered[key] = self._allocate(self._capacity(rows.per_row), rows.width, is_integer)
        return self._ordered[key]

    def of_heads(self, width: int, is_integer: bool) -> PackedRows:
        """Room for a row of `width` values a token, gathered or packed anew by each operation."""
        key = width, is_integer
        if key not in self._heads:
            self._heads[key] = self._allocate(self._max_tokens, width, is_integer)
        return self._heads[key]

    def written(self, rows: Rows) -> None:
        """An operation writes the buffer."""
        for twin in self._twins.values():
            twin.is_stale = twin.is_stale or twin.root == rows.root

    def free(self) -> None:
        """Give all memory back."""
        for memory in self._memory:
            memory.free()
        self._memory.clear()

    def _capacity(self, per_row: bool) -> int:
        return self._max_rows if per_row else self._max_tokens

    def _allocate(self, rows: int, cols: int, is_integer: bool) -> PackedRows:
        row_bytes = align(input_bytes(ANY_INTEGER if is_integer else ANY_FLOAT, cols), ALIGNED_BYTES)
        self._memory.append(self._driver.allocate(rows * row_bytes))
        return PackedRows(self._memory[-1].address, row_bytes)
