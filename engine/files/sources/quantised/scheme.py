"""What a reader of one quantised layout is, and what such readers have in common."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from engine.base.errors import UnsupportedError
from engine.files.codecs import CODECS, FORMS
from engine.files.safetensors_header import DTYPE_BITS
from engine.files.source_file import Bytes, SourceFile
from engine.files.sources.quantised.bundle import Bundle
from engine.files.sources.quantised.settings import Settings
from engine.files.sources.tensors import FileTensor, SourceTensor

OTHER_CHECKPOINT = "Use a checkpoint of this model that is quantised in another way; docs/checkpoints.md lists them."

Scheme = Callable[[Bundle, Settings], SourceTensor | None]
"""Presents a bundle as one tensor of a raw form, or returns None for a bundle in another layout.

Raises CorruptFileError for parts that do not fit each other, UnsupportedError for what the form cannot hold; both name
the tensor. Only headers may be looked at: the bytes are not there yet when a conversion is planned.
"""

Floats = npt.NDArray[np.float32]

# e8m0 to f32: 2^(e - 127), of which the smallest is subnormal; 255 is NaN, and packing refuses it
_E8M0 = (np.arange(256, dtype=np.uint32) << 23).view(np.float32).copy()
_E8M0[0], _E8M0[255] = 2.0**-127, np.nan
E8M0_TYPES = frozenset({"f8_e8m0", "u8"})
FLOAT_TYPES = ("f16", "bf16", "f32")
PAIR_TYPES = frozenset({"u8", "i8", "f4"})  # of two 4-bit values a byte


def value_bits(tensor: FileTensor) -> int:
    """Bits a value of a tensor of a safetensors file."""
    return DTYPE_BITS[tensor.form.upper()]


def paired_shape(codes: FileTensor) -> tuple[int, ...]:
    """The shape of a matrix whose 4-bit values are kept in pairs; F4 counts values, integers count bytes."""
    return codes.shape if codes.form == "f4" else (*codes.shape[:-1], codes.shape[-1] * 2)


def read_lines(tensor: FileTensor, line_bytes: int, start: int, stop: int) -> Bytes:
    """The bytes of lines `start .. stop` of a tensor that is seen as lines of `line_bytes` bytes."""
    out = np.empty((stop - start, line_bytes), np.uint8)
    tensor.file.read(tensor.start + start * line_bytes, out)
    return out


def decode_scales(raw: Bytes, kind: str) -> Floats:
    """Values of one of FLOAT_TYPES or E8M0_TYPES [rows, bytes] as f32 [rows, values]; every one is exact."""
    if kind in E8M0_TYPES:
        return _E8M0[raw]
    if kind == "bf16":
        return (raw.view("<u2").astype(np.uint32) << 16).view(np.float32)
    return raw.view("<f4" if kind == "f32" else "<f2").astype(np.float32, copy=False)


def interleave(out: Bytes, scales: Bytes, scale_bytes: int, codes: Bytes, code_bytes: int) -> None:
    """Fills rows of blocks [rows, blocks * (scale_bytes + code_bytes)]: in each block its scale, then its codes.

    Whole blocks are copied as values of a type, an order of magnitude faster than byte by byte.
    """
    blocks = out.view(np.dtype([("scale", f"V{scale_bytes}"), ("codes", f"V{code_bytes}")]))
    blocks["scale"] = scales.view(f"V{scale_bytes}")
    blocks["codes"] = codes.view(f"V{code_bytes}")


def files_of(*tensors: FileTensor) -> tuple[SourceFile, ...]:
    """The files of some tensors, each once."""
    return tuple({id(tensor.file): tensor.file for tensor in tensors}.values())


def check_columns(name: str, form: str, cols: int) -> None:
    """Raises UnsupportedError, naming the tensor, for rows that are not whole blocks of the form."""
    codec = CODECS[FORMS[form].codec]
    if not codec.valid_cols(cols):
        raise UnsupportedError(
            f"The tensor {name} has rows of {cols} values, which are not whole blocks of {codec.cols_unit} "
            f"as {codec.name} needs.",
            OTHER_CHECKPOINT,
        )


@dataclass(frozen=True)
class ScaleGrid:
    """Scales of a matrix [.., rows, cols]: one for each block of `block_rows` rows and some columns.

    The tensor is a list of lines of `line` scales. Each of the `indices` of the leading dimension has `lines` lines of
    its own, unless all share them (`indices` of 1).
    """

    tensor: FileTensor
    rows: int
    block_rows: int
    line: int
    lines: int
    indices: int = 1

    def read(self, start: int, stop: int) -> Bytes:
        """The scales of rows `start .. stop`, all leading dimensions being rows: bytes [stop - start, line bytes]."""
        index, row = np.divmod(np.arange(start, stop), self.rows)
        wanted = row // self.block_rows + (index * self.lines if self.indices > 1 else 0)
        low, high = int(wanted[0]), int(wanted[-1]) + 1
        lines = read_lines(self.tensor, self.line * value_bits(self.tensor) // 8, low, high)
        return lines if len(lines) == len(wanted) else lines[wanted - low]
