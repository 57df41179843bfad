"""Tensors of a checkpoint, read by row ranges as raw bytes of their form.

Views compose: a permuted view of a slice of a file reads only what it is asked for. All leading dimensions are rows:
a tensor [E, R, C] has E * R rows of C values.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from engine.base.errors import UnsupportedError
from engine.files.codecs import FORMS, INTEGER_BYTES
from engine.files.source_file import Bytes, SourceFile

Order = npt.NDArray[np.int64]


class SourceTensor(Protocol):
    """A tensor of a checkpoint: `form` names how its raw rows are laid out; one that is unknown is refused later."""

    @property
    def form(self) -> str: ...

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def files(self) -> tuple[SourceFile, ...]:
        """The files that reading it reads."""
        ...

    def read(self, start: int, stop: int) -> Bytes:
        """The raw bytes of rows `start .. stop`, as an array [stop - start, bytes a row]."""
        ...


def row_count(tensor: SourceTensor) -> int:
    """Rows of a tensor; a vector counts as one row."""
    return math.prod(tensor.shape[:-1])


@dataclass(frozen=True)
class FileTensor:
    """A tensor that lies in a file, row after row from byte `start`."""

    file: SourceFile
    start: int
    form: str
    shape: tuple[int, ...]

    @property
    def files(self) -> tuple[SourceFile, ...]:
        return (self.file,)

    def read(self, start: int, stop: int) -> Bytes:
        cols = self.shape[-1]
        size = INTEGER_BYTES.get(self.form)
        row_bytes = FORMS[self.form].row_bytes(cols) if size is None else size * cols
        out = np.empty((stop - start, row_bytes), np.uint8)
        self.file.read(self.start + start * row_bytes, out)
        return out


@dataclass(frozen=True)
class MemoryTensor:
    """A small tensor that was computed rather than read."""

    form: str
    shape: tuple[int, ...]
    data: Bytes  # [rows, bytes a row]

    @property
    def files(self) -> tuple[SourceFile, ...]:
        return ()

    def read(self, start: int, stop: int) -> Bytes:
        return self.data[start:stop]


@dataclass(frozen=True)
class IndexedTensor:
    """One index of the leading dimension of `tensor`."""

    tensor: SourceTensor
    index: int

    @property
    def form(self) -> str:
        return self.tensor.form

    @property
    def shape(self) -> tuple[int, ...]:
        return self.tensor.shape[1:]

    @property
    def files(self) -> tuple[SourceFile, ...]:
        return self.tensor.files

    def read(self, start: int, stop: int) -> Bytes:
        base = self.index * row_count(self)
        return self.tensor.read(base + start, base + stop)


@dataclass(frozen=True)
class ReorderedRows:
    """Row i is row `order[i]` of `tensor`. Cheap when rows that are read together lie near each other."""

    tensor: SourceTensor
    order: Order

    @property
    def form(self) -> str:
        return self.tensor.form

    @property
    def shape(self) -> tuple[int, ...]:
        return self.tensor.shape

    @property
    def files(self) -> tuple[SourceFile, ...]:
        return self.tensor.files

    def read(self, start: int, stop: int) -> Bytes:
        wanted = self.order[start:stop]
        low, high = int(wanted.min()), int(wanted.max()) + 1
        return self.tensor.read(low, high)[wanted - low]


@dataclass(frozen=True)
class ReorderedBlocks:
    """Block i of every row is block `order[i]` of that row of `tensor`: columns move in runs of the form's block."""

    tensor: SourceTensor
    order: Order
    block: int  # columns that move together, whole blocks of the form

    @property
    def form(self) -> str:
        return self.tensor.form

    @property
    def shape(self) -> tuple[int, ...]:
        return self.tensor.shape

    @property
    def files(self) -> tuple[SourceFile, ...]:
        return self.tensor.files

    def read(self, start: int, stop: int) -> Bytes:
        raw = self.tensor.read(start, stop)
        blocks = raw.reshape(len(raw), len(self.order), FORMS[self.form].row_bytes(self.block))
        return blocks[:, self.order].reshape(raw.shape)


def reordered_blocks(name: str, tensor: SourceTensor, order: Order, block: int) -> ReorderedBlocks:
    """The tensor called `name` with its columns moved in runs of `block`.

    Raises UnsupportedError for a form whose blocks are wider than that, or whose rows are more than blocks.
    """
    form = FORMS.get(tensor.form)
    if form is None or form.row_header or block % form.block:
        raise UnsupportedError(
            f"The columns of {name} would have to move in runs of {block}, which {tensor.form} does not allow.",
            "Use a checkpoint of the model in plain values or in a codec of blocks of that size.",
        )
    return ReorderedBlocks(tensor, order, block)


@dataclass(frozen=True)
class StackedTensor:
    """Tensors [E, Ri, C], or matrices [Ri, C], of one form as one [E, R1 + R2 + .., C]."""

    parts: tuple[SourceTensor, ...]

    @property
    def form(self) -> str:
        return self.parts[0].form

    @property
    def shape(self) -> tuple[int, ...]:
        *lead, _, cols = self.parts[0].shape
        return (*lead, sum(part.shape[-2] for part in self.parts), cols)

    @property
    def files(self) -> tuple[SourceFile, ...]:
        return tuple({id(file): file for part in self.parts for file in part.files}.values())

    def read(self, start: int, stop: int) -> Bytes:
        rows_an_index = self.shape[-2]
        runs = []
        while start < stop:
            index, row = divmod(start, rows_an_index)
            for part in self.parts:
                if row < part.shape[-2]:
                    break
                row -= part.shape[-2]
            count = min(stop - start, part.shape[-2] - row)
            base = index * part.shape[-2] + row
            runs.append(part.read(base, base + count))
            start += count
        return runs[0] if len(runs) == 1 else np.concatenate(runs)
