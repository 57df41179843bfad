"""What all layouts of 4-bit integers in groups have in common: the form that they become, and how its rows are made.

A weight is `scale * (code - zero)`; the columns of a group share scale and zero. Layouts differ in where codes, scales
and zeros lie, and in the order of the columns.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from engine.base.errors import CorruptFileError, UnsupportedError
from engine.files.codecs import FORMS
from engine.files.source_file import Bytes, SourceFile
from engine.files.sources.quantised.bundle import Bundle
from engine.files.sources.quantised.group_index import GroupIndex
from engine.files.sources.quantised.scheme import OTHER_CHECKPOINT, check_columns, decode_scales
from engine.files.sources.tensors import FileTensor

BITS = 4
SYMMETRIC_ZERO = 8

_HALF_TOP = 16  # frexp's exponent of the largest values that binary16 holds
_FACTOR_EXPONENTS = (-126, 127)  # of normal numbers in f32

_BLOCKS = {
    "int4_32": np.dtype([("scale", "<u2"), ("codes", "V16")]),
    "int4_32z": np.dtype([("scale", "<u2"), ("zero", "<u2"), ("codes", "V16")]),
    "int4_128z": np.dtype([("scale", "<u2"), ("zero", "<u2"), ("codes", "V64")]),
}


class Rows(Protocol):
    """Something of every output row of a matrix, wherever it lies."""

    def read(self, start: int, stop: int) -> Bytes:
        """Bytes [stop - start, bytes a row]."""
        ...


@dataclass(frozen=True)
class Int4Tensor:
    """A matrix [.., R, C] of 4-bit integers as rows of a form: the row's factor, then blocks of scale, zero and codes.

    `codes` gives C / 2 bytes a row, element 2i in the low nibble of byte i; `scales` the scales of its groups in the
    type `scale_type`; `zeros` a byte a group, or None where every zero is 8. With `order` the columns are stored so
    that groups are contiguous, and `codes` gives them so.
    """

    name: str
    shape: tuple[int, ...]
    form: str
    group: int
    codes: Rows
    scales: Rows
    scale_type: str
    zeros: Rows | None
    order: GroupIndex | None
    parts: tuple[FileTensor, ...]

    @property
    def files(self) -> tuple[SourceFile, ...]:
        return tuple({id(part.file): part.file for part in self.parts}.values())

    def read(self, start: int, stop: int) -> Bytes:
        codes = self.codes.read(start, stop)
        halves, factors = exact_halves(self.scales.read(start, stop), self.scale_type, self.name, start)
        zeros = None if self.zeros is None else self.zeros.read(start, stop)
        if zeros is not None and self.form == "int4_32":
            self._check_symmetric(zeros, start)
        return self._put_together(codes, halves, zeros, factors)

    def _check_symmetric(self, zeros: Bytes, start: int) -> None:
        wrong = np.argwhere(zeros != SYMMETRIC_ZERO)
        if len(wrong):
            row, group = (int(place) for place in wrong[0])
            raise CorruptFileError(
                f"The tensor {self.name} has the zero point {zeros[row, group]} in row {start + row}; config.json says "
                f"that it is symmetric, which would be {SYMMETRIC_ZERO}.",
                "Correct `sym` in config.json, or use another checkpoint.",
            )

    def _put_together(
        self, codes: Bytes, halves: npt.NDArray[np.uint16], zeros: Bytes | None, factors: npt.NDArray[np.float32]
    ) -> Bytes:
        form, cols = FORMS[self.form], self.shape[-1]
        blocks = -(-cols // form.block)
        place = np.arange(blocks) * form.block // self.group
        if not np.array_equal(place, np.arange(halves.shape[1])):
            halves = halves[:, place]
            zeros = zeros if zeros is None else zeros[:, place]
        kind = _BLOCKS[self.form]
        out = np.empty((len(codes), form.row_bytes(cols)), np.uint8)
        out[:, :4] = factors.view(np.uint8).reshape(-1, 4)
        whole = cols // form.block
        rows = out[:, 4 : 4 + whole * kind.itemsize].view(kind)
        rows["scale"] = halves[:, :whole]
        rows["codes"] = codes[:, : whole * form.block // 2].view(kind["codes"])
        if "zero" in (kind.names or ()):
            rows["zero"] = SYMMETRIC_ZERO if zeros is None else zeros[:, :whole]
        if whole < blocks:  # of int4_128z alone
            rest = out[:, 4 + whole * kind.itemsize :]
            rest[:, :2] = halves[:, whole:].view(np.uint8).reshape(-1, 2)
            rest[:, 2] = SYMMETRIC_ZERO if zeros is None else zeros[:, whole]
            rest[:, 3] = 0
            rest[:, 4:] = codes[:, whole * form.block // 2 :]
        return out


def int4_form(name: str, cols: int, group: int, symmetric: bool) -> str:
    """The form for rows of `cols` columns in groups of `group`. Raises UnsupportedError, naming the tensor."""
    if group >= cols or group % FORMS["int4_128z"].block == 0:
        form = "int4_128z"
    elif group % FORMS["int4_32"].block == 0:
        form = "int4_32" if symmetric else "int4_32z"
    else:
        raise UnsupportedError(
            f"The tensor {name} has groups of {group} columns; this release reads whole rows and multiples of 32.",
            OTHER_CHECKPOINT,
        )
    check_columns(name, form, cols)
    return form


def group_columns(bundle: Bundle, role: str, cols: int, groups: int, *sizes: int) -> int:
    """Columns of a group, where a row of `cols` has `groups` of them: what config.json says (`sizes`), if it can be so.

    Raises CorruptFileError, naming the tensor of `role`, for groups that do not fill a row.
    """
    if groups == 1:
        return cols
    for size in sizes:
        if size > 0 and -(-cols // size) == groups:
            return size
    if groups < 1 or cols % groups:
        raise bundle.misfit(role, f"a scale for equal groups of {cols} columns")
    return cols // groups


def check_bits(bundle: Bundle, bits: int) -> None:
    """Raises UnsupportedError, naming the tensor, for integers of another width."""
    if bits != BITS:
        raise UnsupportedError(
            f"The tensor {bundle.name} is quantised to integers of {bits} bits; this release reads {BITS}.",
            "Use a checkpoint in 4 bits, or one in a float format.",
        )


def check_shapes(bundle: Bundle, expected: Mapping[str, tuple[int, ...] | int]) -> None:
    """Raises CorruptFileError for a part of another shape, or of another number of dimensions."""
    for role, shape in expected.items():
        found = bundle.parts[role].shape
        if (len(found) if isinstance(shape, int) else found) != shape:
            raise bundle.misfit(role, f"of {shape} dimensions" if isinstance(shape, int) else f"{list(shape)}")


def check_types(bundle: Bundle, expected: Mapping[str, tuple[str, ...]]) -> None:
    """Raises CorruptFileError for a part that is missing or of another type than it may have."""
    for role, types in expected.items():
        if not bundle.has(role):
            raise CorruptFileError(
                f"The tensor {bundle.name} is quantised to integers and has no {role}.",
                "Fetch the checkpoint again, or check that no shard is absent.",
            )
        if bundle.form(role) not in types:
            raise bundle.misfit(role, f"of the type {' or '.join(types)}")


def exact_halves(
    raw: Bytes, kind: str, name: str, first_row: int
) -> tuple[npt.NDArray[np.uint16], npt.NDArray[np.float32]]:
    """Scales [rows, bytes] of a type as binary16 bits [rows, groups] and a power of two a row, whose products they are.

    Raises UnsupportedError, naming the tensor and the row, where the scales of a row span more than binary16 can hold.
    What is not finite stays so; packing refuses it.
    """
    if kind == "f16":
        return raw.view("<u2"), np.ones(len(raw), np.float32)
    scales = decode_scales(raw, kind).astype(np.float64)
    finite = np.isfinite(scales)
    _, exponents = np.frexp(np.abs(np.where(finite, scales, 0)).max(axis=1))
    exponents = np.clip(exponents - _HALF_TOP, *_FACTOR_EXPONENTS)
    scaled = np.ldexp(scales, -exponents[:, None])
    with np.errstate(over="ignore"):
        halves = scaled.astype(np.float16)
    inexact = np.flatnonzero(((halves != scaled) & finite).any(axis=1))
    if len(inexact):
        raise UnsupportedError(
            f"The scales of row {first_row + int(inexact[0])} of the tensor {name} lie too far apart, or are too fine, "
            "to be kept without a loss.",
            "Use another checkpoint of this model.",
        )
    return halves.view(np.uint16), np.ldexp(np.float32(1), exponents).astype(np.float32)
