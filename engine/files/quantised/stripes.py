"""Columns of a stored matrix read as rows: layouts that keep a matrix as [in, out] are asked for output rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from engine.files.quantised.nibbles import IN_WORD, Words, unpack_words
from engine.files.quantised.scheme import value_bits
from engine.files.source_file import Bytes
from engine.files.tensors import FileTensor

STRIPE_BYTES = 8 << 20  # of codes read at a time: an expert's matrix, or some columns of a large one


def read_columns(tensor: FileTensor, start: int, stop: int) -> npt.NDArray[np.unsignedinteger]:
    """Columns `start .. stop` of a tensor [rows, cols] of a file, as opaque words [rows, stop - start].

    Nothing else of it is read.
    """
    rows, cols = tensor.shape
    size = value_bits(tensor) // 8
    out = np.empty((rows, (stop - start) * size), np.uint8)
    if stop - start == cols:
        tensor.file.read(tensor.start, out)
    else:
        for row, run in enumerate(out):
            tensor.file.read(tensor.start + (row * cols + start) * size, run)
    return out.view(f"<u{size}")


class Columns:
    """The values of a column of `tensor` [groups, rows] as the bytes of a row."""

    def __init__(self, tensor: FileTensor) -> None:
        self._tensor = tensor

    def read(self, start: int, stop: int) -> Bytes:
        return np.ascontiguousarray(read_columns(self._tensor, start, stop).T).view(np.uint8)


class ColumnZeros:
    """Zero points of output rows, eight in a word of `tensor` I32 [groups, rows / 8], a byte each.

    Nibble i of a word, the lowest first, is of row `places[i]` of its eight. What is added makes them what they are.
    """

    def __init__(
        self,
        tensor: FileTensor,
        places: Sequence[int] = range(IN_WORD),
        *,
        add_to_words: int = 0,
        add_to_values: int = 0,
    ) -> None:
        self._tensor = tensor
        self._places = places
        self._add_to_words = np.uint32(add_to_words)
        self._add_to_values = np.uint8(add_to_values)

    def read(self, start: int, stop: int) -> Bytes:
        first = start // IN_WORD
        words = read_columns(self._tensor, first, -(-stop // IN_WORD)).view(np.uint32) + self._add_to_words
        values = unpack_words(words, self._places)[:, start - first * IN_WORD : stop - first * IN_WORD]
        return np.ascontiguousarray(values.T) + self._add_to_values


class StripedCodes:
    """Codes of output rows out of `tensor` I32 [.., rows / unit], `unit` output rows in a column.

    `decode` turns words [.., n] into the codes of n * unit rows, `row_bytes` each. A stripe is read at a time and kept
    until its last row was asked for, since rows are asked for a few at a time, in order.
    """

    def __init__(self, tensor: FileTensor, unit: int, row_bytes: int, decode: Callable[[Words], Bytes]) -> None:
        self._tensor = tensor
        self._unit = unit
        self._wide = max(1, STRIPE_BYTES // (row_bytes * unit))
        self._decode = decode
        self._kept: tuple[int, Bytes] | None = None

    def read(self, start: int, stop: int) -> Bytes:
        parts: list[Bytes] = []
        while start < stop:
            base, codes = self._stripe(start)
            parts.append(codes[start - base : stop - base])
            start += len(parts[-1])
            if start == base + len(codes):
                self._kept = None
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def _stripe(self, row: int) -> tuple[int, Bytes]:
        """The stripe that holds a row, and its first row."""
        if self._kept is None or not self._kept[0] <= row < self._kept[0] + len(self._kept[1]):
            self._kept = None  # not two at once
            first = row // self._unit
            last = min(first + self._wide, self._tensor.shape[1])
            words = read_columns(self._tensor, first, last).view(np.uint32)
            self._kept = (first * self._unit, self._decode(words))
        return self._kept
