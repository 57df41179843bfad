"""Matrices of 4-bit floats (e2m1) in blocks of 16 with e4m3 scales, and one factor for all: NVFP4.

ModelOpt writes `weight` U8 [.., R, C/2], `weight_scale` F8_E4M3 [.., R, C/16] and `weight_scale_2` f32, a factor;
compressed-tensors `weight_packed`, `weight_scale` and `weight_global_scale`, a divisor. Element 2i is the low nibble of
byte i in both. A divisor becomes the factor that is nearest to its inverse in f32.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from engine.base.errors import CorruptFileError, UnsupportedError
from engine.files.source_file import Bytes, SourceFile
from engine.files.sources.quantised.bundle import Bundle
from engine.files.sources.quantised.scheme import (
    FLOAT_TYPES,
    OTHER_CHECKPOINT,
    PAIR_TYPES,
    check_columns,
    decode_scales,
    files_of,
    interleave,
    paired_shape,
    read_lines,
    value_bits,
)
from engine.files.sources.quantised.settings import Settings
from engine.files.sources.tensors import FileTensor

BLOCK, HALF = 32, 16


def nvfp4(bundle: Bundle, settings: Settings) -> Nvfp4Tensor | None:
    """Presents pairs of e2m1 values whose block scales are e4m3 in the form nvfp4."""
    role = bundle.weight_role
    if bundle.form(role) not in PAIR_TYPES or bundle.form("scale") != "f8_e4m3":
        return None
    bundle.refuse("zero_point", "pre_quant_scale", "g_idx", "shape")
    codes, scale = bundle.parts[role], bundle.parts["scale"]
    shape = paired_shape(codes)
    if len(shape) < 2:
        raise UnsupportedError(f"The tensor {bundle.describe(role)} is quantised and no matrix.", OTHER_CHECKPOINT)
    check_columns(bundle.name, "nvfp4", shape[-1])
    expected = (*shape[:-1], shape[-1] // HALF)
    if scale.shape != expected:
        raise bundle.misfit("scale", f"{list(expected)}")
    factor, divides = _factor(bundle, shape)
    return Nvfp4Tensor(shape, codes, scale, factor, divides)


def _factor(bundle: Bundle, shape: tuple[int, ...]) -> tuple[FileTensor, bool]:
    """The tensor of the global scale, and whether it divides."""
    found = [role for role in ("scale_2", "global_scale") if bundle.has(role)]
    if len(found) != 1:
        many = "two global scales" if found else "no global scale"
        raise CorruptFileError(
            f"The tensor {bundle.name} is in nvfp4 and has {many}.", "Fetch the checkpoint again, or another one."
        )
    factor = bundle.parts[found[0]]
    lead = shape[:-2]
    if factor.form not in FLOAT_TYPES:
        raise bundle.misfit(found[0], f"of the type {', '.join(FLOAT_TYPES)}")
    if math.prod(factor.shape) not in (1, math.prod(lead)):
        raise bundle.misfit(found[0], "one value" + (f", or {math.prod(lead)}" if lead else ""))
    return factor, found[0] == "global_scale"


@dataclass(frozen=True)
class Nvfp4Tensor:
    """Rows of the form nvfp4: the factor, then in every block of 32 two scales and 16 bytes of pairs."""

    shape: tuple[int, ...]
    codes: FileTensor
    scale: FileTensor
    factor: FileTensor
    divides: bool
    form: str = "nvfp4"

    @property
    def files(self) -> tuple[SourceFile, ...]:
        return files_of(self.codes, self.scale, self.factor)

    def read(self, start: int, stop: int) -> Bytes:
        blocks = self.shape[-1] // BLOCK
        out = np.empty((stop - start, 4 + blocks * 18), np.uint8)
        out[:, :4] = self._factors(start, stop)
        scales = read_lines(self.scale, blocks * 2, start, stop)
        interleave(out[:, 4:], scales, 2, read_lines(self.codes, blocks * 16, start, stop), 16)
        return out

    def _factors(self, start: int, stop: int) -> Bytes:
        """The factor of every row as bytes [rows, 4]."""
        count, rows = math.prod(self.factor.shape), self.shape[-2]
        first, last = (start // rows, (stop - 1) // rows) if count > 1 else (0, 0)
        raw = read_lines(self.factor, value_bits(self.factor) // 8, first, last + 1)
        factors = decode_scales(raw, self.factor.form)
        if self.divides:
            with np.errstate(divide="ignore"):
                factors = np.float32(1) / factors
        place = np.arange(start, stop) // rows - first if count > 1 else np.zeros(stop - start, np.int64)
        return factors.view(np.uint8)[place]
