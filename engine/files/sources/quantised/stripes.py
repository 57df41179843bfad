"""Columns of a stored matrix read as rows: layouts that keep a matrix as [in, out] are asked for output rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from engine.files.source_file import Bytes
from engine.files.sources.quantised.nibbles import IN_WORD, Words, unpack_words
from engine.files.sources.quantised.scheme import value_bits
from engine.files.sources.tensors import FileTensor

Columns = npt.NDArray[np.unsignedinteger]

STRIPE_BYTES = 16 << 20  # read at a time: most experts' matrices, or some columns of a larger one


def read_columns(tensor: FileTensor, start: int, stop: int) -> Columns:
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


class Stripes:
    """A tensor [rows, cols] of a file whose columns are asked for a few at a time, in order.

    A read of every row for a few values each would take long: so many columns are read at once, and kept until the
    last of them was asked for.
    """

    def __init__(self, tensor: FileTensor) -> None:
        self._tensor = tensor
        rows, self._cols = tensor.shape
        self._wide = max(1, STRIPE_BYTES * 8 // (rows * value_bits(tensor)))
        self._kept: tuple[int, Columns] | None = None

    def columns(self, start: int, stop: int) -> Columns:
        """As `read_columns`; side by side in memory, since what is done with them is several times slower otherwise."""
        parts: list[Columns] = []
        while start < stop:
            base, stripe = self._stripe(start)
            parts.append(stripe[:, start - base : stop - base])
            start += parts[-1].shape[1]
            if start == base + stripe.shape[1]:
                self._kept = None
        return np.ascontiguousarray(parts[0]) if len(parts) == 1 else np.concatenate(parts, axis=1)

    def _stripe(self, column: int) -> tuple[int, Columns]:
        """The stripe that holds a column, and its first column."""
        if self._kept is None or not self._kept[0] <= column < self._kept[0] + self._kept[1].shape[1]:
            self._kept = None  # not two at once
            self._kept = (column, read_columns(self._tensor, column, min(column + self._wide, self._cols)))
        return self._kept


class ColumnValues:
    """The values of a column of `tensor` [groups, rows] as the bytes of a row."""

    def __init__(self, tensor: FileTensor) -> None:
        self._stripes = Stripes(tensor)

    def read(self, start: int, stop: int) -> Bytes:
        return np.ascontiguousarray(self._stripes.columns(start, stop).T).view(np.uint8)


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
        self._stripes = Stripes(tensor)
        self._places = places
        self._add_to_words = np.uint32(add_to_words)
        self._add_to_values = np.uint8(add_to_values)

    def read(self, start: int, stop: int) -> Bytes:
        first = start // IN_WORD
        words = self._stripes.columns(first, -(-stop // IN_WORD)).view(np.uint32) + self._add_to_words
        values = unpack_words(words, self._places)[:, start - first * IN_WORD : stop - first * IN_WORD]
        return np.ascontiguousarray(values.T) + self._add_to_values


class ColumnCodes:
    """Codes of output rows out of `tensor` I32 [.., rows / unit], `unit` output rows in a column.

    `decode` turns some of its columns, words [.., n], into the codes of n * unit rows.
    """

    def __init__(self, tensor: FileTensor, unit: int, decode: Callable[[Words], Bytes]) -> None:
        self._stripes = Stripes(tensor)
        self._unit = unit
        self._decode = decode

    def read(self, start: int, stop: int) -> Bytes:
        first = start // self._unit
        words = self._stripes.columns(first, -(-stop // self._unit)).view(np.uint32)
        return self._decode(words)[start - first * self._unit : stop - first * self._unit]
