"""Matrices of 4-bit integers as compressed-tensors packs them (pack-quantized): [out, in], eight inputs a word.

`weight_packed` I32 [.., out, in / 8] holds input i in nibble i % 8 of word i // 8, plus 8; `weight_scale`
[.., out, groups]; `weight_zero_point` I32 [.., out / 8, groups], packed along the outputs, or I8 [.., out, groups], and
absent where it is zero; `weight_g_idx` I32 [in], the group of every input; `weight_shape`, the shape unpacked.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from engine.base.errors import CorruptFileError
from engine.files.source_file import Bytes
from engine.files.sources.quantised.bundle import Bundle
from engine.files.sources.quantised.group_index import GroupIndex
from engine.files.sources.quantised.int4 import (
    SYMMETRIC_ZERO,
    Int4Tensor,
    Rows,
    check_bits,
    check_shapes,
    check_types,
    group_columns,
    int4_form,
)
from engine.files.sources.quantised.nibbles import IN_WORD, take_columns
from engine.files.sources.quantised.scheme import FLOAT_TYPES, read_lines, value_bits
from engine.files.sources.quantised.settings import Settings
from engine.files.sources.tensors import FileTensor


def packed_ints(bundle: Bundle, settings: Settings) -> Int4Tensor | None:
    """Presents `weight_packed` and what goes with it in one of the forms int4."""
    if bundle.form("packed") != "i32":
        return None
    bundle.refuse("scale_2", "global_scale", "pre_quant_scale")
    check_types(bundle, {"scale": FLOAT_TYPES})
    widths = [bits for bits in (group.get("num_bits") for group in settings.groups()) if bits is not None]
    if widths and 4 not in widths:
        check_bits(bundle, widths[0])
    packed, scale = bundle.parts["packed"], bundle.parts["scale"]
    shape = (*packed.shape[:-1], packed.shape[-1] * IN_WORD)
    if len(shape) < 2 or len(scale.shape) != len(shape):
        raise bundle.misfit("scale", f"[.., {shape[0]}, groups]")
    cols, groups = shape[-1], scale.shape[-1]
    check_shapes(bundle, {"scale": (*shape[:-1], groups)})
    if bundle.has("shape"):
        check_types(bundle, {"shape": ("i64", "i32")})
    sizes = [size for size in (group.get("group_size") for group in settings.groups()) if isinstance(size, int)]
    group = group_columns(bundle, "scale", cols, groups, *sizes)
    order = _order(bundle, shape, group) if groups > 1 else None
    return Int4Tensor(
        name=bundle.name,
        shape=shape,
        form=int4_form(bundle.name, cols, group, symmetric=not bundle.has("zero_point")),
        group=group,
        codes=RowCodes(bundle.name, packed, order, bundle.parts.get("shape"), shape),
        scales=Lines(scale, groups),
        scale_type=scale.form,
        zeros=_zeros(bundle, shape, groups, settings),
        order=order,
        parts=tuple(bundle.parts.values()),
    )


def _order(bundle: Bundle, shape: tuple[int, ...], group: int) -> GroupIndex | None:
    if not bundle.has("g_idx"):
        return None
    if len(shape) > 2:
        bundle.refuse("g_idx")
    check_types(bundle, {"g_idx": ("i32",)})
    check_shapes(bundle, {"g_idx": shape[-1:]})
    return GroupIndex(bundle.names["g_idx"], bundle.parts["g_idx"], group)


def _zeros(bundle: Bundle, shape: tuple[int, ...], groups: int, settings: Settings) -> Rows | None:
    if not bundle.has("zero_point"):
        if {group.get("symmetric", True) for group in settings.groups()} == {False}:
            check_types(bundle, {"zero_point": ("i32",)})
        return None
    check_types(bundle, {"zero_point": ("i32", "i8")})
    *lead, rows, _ = shape
    zero_point = bundle.parts["zero_point"]
    if zero_point.form == "i8":
        check_shapes(bundle, {"zero_point": (*lead, rows, groups)})
        return SignedZeros(bundle.names["zero_point"], zero_point, groups)
    check_shapes(bundle, {"zero_point": (*lead, -(-rows // IN_WORD), groups)})
    return RowZeros(zero_point, rows, groups)


@dataclass(frozen=True)
class Lines:
    """Rows of `width` values of a tensor that lie one after the other."""

    tensor: FileTensor
    width: int

    def read(self, start: int, stop: int) -> Bytes:
        return read_lines(self.tensor, self.width * value_bits(self.tensor) // 8, start, stop)


@dataclass(frozen=True)
class RowCodes:
    """Pairs of codes out of words of eight inputs, whose bytes are four pairs already."""

    name: str
    packed: FileTensor
    order: GroupIndex | None
    unpacked_shape: FileTensor | None
    shape: tuple[int, ...]

    def read(self, start: int, stop: int) -> Bytes:
        if start == 0 and self.unpacked_shape is not None:
            self._check(self.unpacked_shape)
        pairs = read_lines(self.packed, self.shape[-1] // 2, start, stop)
        return pairs if self.order is None else take_columns(pairs, self.order.columns())

    def _check(self, unpacked_shape: FileTensor) -> None:
        """Raises CorruptFileError if the shape that was packed is another one."""
        size = value_bits(unpacked_shape) // 8
        told = read_lines(unpacked_shape, size * math.prod(unpacked_shape.shape), 0, 1).view(f"<i{size}")[0]
        if tuple(told) != self.shape[-len(told) :]:
            raise CorruptFileError(
                f"The tensor {self.name} has the shape {list(self.shape)}, and its weight_shape says {told.tolist()}.",
                "Fetch the checkpoint again, or use another one.",
            )


@dataclass(frozen=True)
class RowZeros:
    """Zero points packed along the outputs: row r of an index is nibble r % 8 of its line r // 8."""

    tensor: FileTensor
    rows: int
    groups: int

    def read(self, start: int, stop: int) -> Bytes:
        index, row = np.divmod(np.arange(start, stop), self.rows)
        line = index * -(-self.rows // IN_WORD) + row // IN_WORD
        words = read_lines(self.tensor, 4 * self.groups, int(line[0]), int(line[-1]) + 1).view("<u4")[line - line[0]]
        zeros: Bytes = (words >> (4 * (row % IN_WORD)).astype(np.uint32)[:, None] & np.uint32(15)).astype(np.uint8)
        return zeros


@dataclass(frozen=True)
class SignedZeros:
    """Zero points as they are, -8 to 7."""

    name: str
    tensor: FileTensor
    groups: int

    def read(self, start: int, stop: int) -> Bytes:
        zeros = read_lines(self.tensor, self.groups, start, stop).view(np.int8)
        wrong = np.argwhere((zeros < -SYMMETRIC_ZERO) | (zeros >= SYMMETRIC_ZERO))
        if len(wrong):
            row, group = (int(place) for place in wrong[0])
            raise CorruptFileError(
                f"The tensor {self.name} holds the zero point {zeros[row, group]} in row {start + row}, which is no "
                "4-bit integer.",
                "Fetch the checkpoint again, or use another one.",
            )
        return (zeros + SYMMETRIC_ZERO).view(np.uint8)
