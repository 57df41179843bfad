"""Quantised rows as the f32 values that they stand for, for what no codec holds otherwise."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from engine.base.errors import CorruptFileError
from engine.files.codecs import CODECS, FORMS
from engine.files.source_file import Bytes, SourceFile
from engine.files.sources.tensors import SourceTensor

Values = npt.NDArray[np.float32]

_BAD_ROW = re.compile(r"row (\d+)(.*)", re.DOTALL)  # as the packer begins a sentence about a value


def plain_values(form: str, raw: Bytes, cols: int) -> Values:
    """Raw rows [n, ..] of a form as values [n, cols], by way of the packed form that kernels read.

    Raises ValueError, with row and block, for a scale that is no finite number.
    """
    from engine import _native

    codec = CODECS[FORMS[form].codec]
    packed = np.empty(codec.packed_bytes(len(raw), cols), np.uint8)
    _native.pack_rows(form, raw, cols, packed, codec.tile_bytes(cols))
    return _native.unpack(codec.name, len(raw), cols, packed)


@dataclass(frozen=True)
class PlainTensor:
    """The matrix called `name` in f32: every value as a kernel would decode it, at four bytes each.

    Where its columns are stored in an `order`, they are put back: column `order[i]` is what column i of `tensor` was.
    """

    name: str
    tensor: SourceTensor
    order: SourceTensor | None = None
    form: str = "f32"

    @property
    def shape(self) -> tuple[int, ...]:
        return self.tensor.shape

    @property
    def files(self) -> tuple[SourceFile, ...]:
        return (*self.tensor.files, *(self.order.files if self.order is not None else ()))

    def read(self, start: int, stop: int) -> Bytes:
        """As every tensor. Raises CorruptFileError, with the row, for a scale that is no finite number."""
        raw = self.tensor.read(start, stop)
        try:
            values = plain_values(self.tensor.form, raw, self.shape[-1])
        except ValueError as error:
            raise self._unusable(start, error) from error
        if self.order is not None:
            stored, values = values, np.empty_like(values)
            values[:, self.order.read(0, 1).reshape(-1).view(np.float32).astype(np.int64)] = stored
        return values.view(np.uint8)

    def _unusable(self, start: int, error: ValueError) -> CorruptFileError:
        bad = _BAD_ROW.fullmatch(str(error))
        if bad is None:
            raise AssertionError(f"{self.name} was not handed to the packer as planned") from error
        files = " and ".join(dict.fromkeys(str(file.path) for file in self.files))
        return CorruptFileError(
            f"{files}: the tensor {self.name} cannot be used: row {start + int(bad[1])}{bad[2]}.",
            "Fetch the file again; if it is so in the original, use another checkpoint.",
        )
