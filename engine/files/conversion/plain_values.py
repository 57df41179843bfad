"""Quantised rows as the f32 values that they stand for, for what no codec holds otherwise."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from engine.files.codecs import CODECS, FORMS
from engine.files.conversion.bad_rows import bad_row, unusable
from engine.files.source_file import Bytes, SourceFile
from engine.files.sources.tensors import SourceTensor

Values = npt.NDArray[np.float32]


def plain_values(form: str, raw: Bytes, cols: int) -> Values:
    """Raw rows [n, ..] of a form as values [n, cols], by way of the packed form that kernels read.

    Raises ValueError, with the row, for a weight or a scale that is no finite number.
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
        """As every tensor. Raises CorruptFileError, with the row, for a weight or a scale that is none."""
        raw = self.tensor.read(start, stop)
        try:
            values = plain_values(self.tensor.form, raw, self.shape[-1])
        except ValueError as error:
            row, what = bad_row(error, self.name)
            raise unusable(self.files, self.name, start + row, what) from error
        if self.order is not None:
            stored, values = values, np.empty_like(values)
            values[:, self.order.read(0, 1).reshape(-1).view(np.float32).astype(np.int64)] = stored
        return values.view(np.uint8)
