"""Matrices of 4-bit floats (e2m1) in blocks of 32 with power-of-two scales (e8m0): MXFP4.

gpt-oss writes `X_blocks` U8 [E, R, C/32, 16] and `X_scales` U8 [E, R, C/32]; DeepSeek `weight` I8 [R, C/2] and `scale`
F8_E8M0 [R, C/32]; ModelOpt and compressed-tensors `weight` or `weight_packed` U8 and `weight_scale` U8. Element 2i is
the low nibble of byte i in all of them, and rows are outputs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from engine.base.errors import CorruptFileError, UnsupportedError
from engine.files.source_file import Bytes, SourceFile
from engine.files.sources.quantised.bundle import Bundle
from engine.files.sources.quantised.scheme import (
    E8M0_TYPES,
    OTHER_CHECKPOINT,
    PAIR_TYPES,
    check_columns,
    files_of,
    interleave,
    paired_shape,
    read_lines,
)
from engine.files.sources.quantised.settings import Settings
from engine.files.sources.tensors import FileTensor

BLOCK, BLOCK_BYTES = 32, 16


def mxfp4(bundle: Bundle, settings: Settings) -> Mxfp4Tensor | None:
    """Presents pairs of e2m1 values whose block scales are e8m0 in the form mxfp4_pairs."""
    role = bundle.weight_role
    if role == "blocks" and not bundle.has("scale"):
        scales = bundle.name.removesuffix("_blocks") + "_scales"
        raise CorruptFileError(
            f"The tensor {bundle.name} has no scales: {scales} is missing.", "Fetch the checkpoint again."
        )
    if bundle.form(role) not in PAIR_TYPES or bundle.form("scale") not in E8M0_TYPES:
        return None
    bundle.refuse("scale_2", "global_scale", "zero_point", "pre_quant_scale", "g_idx", "shape")
    codes, scale = bundle.parts[role], bundle.parts["scale"]
    if role == "blocks":
        if len(codes.shape) < 3 or codes.shape[-1] != BLOCK_BYTES:
            raise UnsupportedError(
                f"The tensor {bundle.describe(role)} does not hold blocks of {BLOCK_BYTES} bytes.", OTHER_CHECKPOINT
            )
        shape = (*codes.shape[:-2], codes.shape[-2] * BLOCK)
    else:
        shape = paired_shape(codes)
    if len(shape) < 2:
        raise UnsupportedError(f"The tensor {bundle.describe(role)} is quantised and no matrix.", OTHER_CHECKPOINT)
    check_columns(bundle.name, "mxfp4_pairs", shape[-1])
    expected = (*shape[:-1], shape[-1] // BLOCK)
    if scale.shape != expected:
        raise bundle.misfit("scale", f"{list(expected)}")
    return Mxfp4Tensor(shape, codes, scale)


@dataclass(frozen=True)
class Mxfp4Tensor:
    """Rows of the form mxfp4_pairs: in every block of 32 its scale, then 16 bytes of pairs."""

    shape: tuple[int, ...]
    codes: FileTensor
    scale: FileTensor
    form: str = "mxfp4_pairs"

    @property
    def files(self) -> tuple[SourceFile, ...]:
        return files_of(self.codes, self.scale)

    def read(self, start: int, stop: int) -> Bytes:
        blocks = self.shape[-1] // BLOCK
        out = np.empty((stop - start, blocks * (1 + BLOCK_BYTES)), np.uint8)
        scales = read_lines(self.scale, blocks, start, stop)
        interleave(out, scales, 1, read_lines(self.codes, blocks * BLOCK_BYTES, start, stop), BLOCK_BYTES)
        return out
