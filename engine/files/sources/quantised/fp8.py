"""Matrices of 8-bit floats (e4m3fn) under scales: one for all, one a row, or one a block of rows and columns.

As DeepSeek, Qwen, compressed-tensors and ModelOpt write them: `weight` F8_E4M3 [.., R, C] and a scale that multiplies,
in f32, f16, bf16 or e8m0 (F8_E8M0, or U8 of the same bits). A form of ours has a scale for every 128 columns of a row
(`fp8`), or a power of two for every 32 (`mxfp8`); scales of larger blocks are repeated into it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from engine.base.errors import UnsupportedError
from engine.files.source_file import Bytes, SourceFile
from engine.files.sources.quantised.bundle import Bundle
from engine.files.sources.quantised.scheme import (
    E8M0_TYPES,
    FLOAT_TYPES,
    OTHER_CHECKPOINT,
    ScaleGrid,
    check_columns,
    decode_scales,
    files_of,
    interleave,
    read_lines,
)
from engine.files.sources.quantised.settings import Settings
from engine.files.sources.tensors import FileTensor

FP8_BLOCK, MXFP8_BLOCK = 128, 32
SCALE_TYPES = (*FLOAT_TYPES, *sorted(E8M0_TYPES))
_COMMON_BLOCK = (128, 128)


def fp8(bundle: Bundle, settings: Settings) -> Fp8Tensor | None:
    """Presents `weight` F8_E4M3 with its scale in the form fp8 or mxfp8."""
    if bundle.form("weight") != "f8_e4m3" or not bundle.has("scale"):
        return None
    bundle.refuse("scale_2", "global_scale", "zero_point", "pre_quant_scale", "g_idx", "shape")
    weight, scale = bundle.parts["weight"], bundle.parts["scale"]
    if scale.form not in SCALE_TYPES:
        raise bundle.misfit("scale", f"of the type {', '.join(SCALE_TYPES)}")
    if len(weight.shape) < 2:
        raise UnsupportedError(f"The tensor {bundle.describe('weight')} is quantised and no matrix.", OTHER_CHECKPOINT)
    block_rows, block_cols = _block(bundle, settings)
    cols = weight.shape[-1]
    grid = _grid(weight, scale, block_rows, block_cols)
    if block_cols >= cols or block_cols % FP8_BLOCK == 0:
        return Fp8Tensor(weight, grid, block_cols, "fp8")
    if scale.form in E8M0_TYPES and block_cols % MXFP8_BLOCK == 0:
        check_columns(bundle.name, "mxfp8", cols)
        return Fp8Tensor(weight, grid, block_cols, "mxfp8")
    raise UnsupportedError(
        f"The tensor {bundle.name} has a scale for every {block_cols} columns ({bundle.describe('scale')}); "
        f"this release reads blocks of {FP8_BLOCK} columns, or of {MXFP8_BLOCK} whose scales are e8m0.",
        OTHER_CHECKPOINT,
    )


@dataclass(frozen=True)
class Fp8Tensor:
    """8-bit floats and their scales as rows of the form fp8 or mxfp8: in every block its scale, then its bytes."""

    weight: FileTensor
    grid: ScaleGrid
    block_cols: int
    form: Literal["fp8", "mxfp8"]

    @property
    def shape(self) -> tuple[int, ...]:
        return self.weight.shape

    @property
    def files(self) -> tuple[SourceFile, ...]:
        return files_of(self.weight, self.grid.tensor)

    def one_scale_a_run(self, start: int, stop: int, run: int) -> bool:
        """Whether the rows of every run of `run` rows, from row `start` of an index on, have the same scales."""
        firsts = range(start, stop, run)
        return all(row // self.grid.block_rows == (min(row + run, stop) - 1) // self.grid.block_rows for row in firsts)

    def read(self, start: int, stop: int) -> Bytes:
        cols = self.shape[-1]
        block, size = (FP8_BLOCK, 4) if self.form == "fp8" else (MXFP8_BLOCK, 1)
        codes = read_lines(self.weight, cols, start, stop)
        scales = self._scales(start, stop, block)
        whole = cols // block
        width = whole * (size + block)
        out = np.empty((stop - start, scales.shape[1] + cols), np.uint8)
        interleave(out[:, :width], scales[:, : whole * size], size, codes[:, : whole * block], block)
        if whole * block < cols:
            out[:, width : width + size] = scales[:, whole * size :]
            out[:, width + size :] = codes[:, whole * block :]
        return out

    def _scales(self, start: int, stop: int, block: int) -> Bytes:
        """The scale of every block of the form: f32 for fp8, e8m0 for mxfp8, as bytes [rows, all scales of a row]."""
        raw = self.grid.read(start, stop)
        scales = decode_scales(raw, self.grid.tensor.form) if self.form == "fp8" else raw
        place = np.arange(-(-self.shape[-1] // block)) * block // self.block_cols
        return (scales if len(place) == self.grid.line else scales.take(place, 1)).view(np.uint8)


def _block(bundle: Bundle, settings: Settings) -> tuple[int, int]:
    """The rows and columns that share a scale, from the shapes; config.json decides between what they allow."""
    *lead, rows, cols = bundle.parts["weight"].shape
    shape = bundle.parts["scale"].shape
    if len(shape) == len(lead) + 4 and shape[-3] == shape[-1] == 1:  # [blocks, 1, blocks, 1], as ModelOpt has them
        shape = (*lead, shape[-4], shape[-2])
    indices = math.prod(lead)
    if math.prod(shape) == 1 or (lead and shape in ((indices,), (*lead, 1), (*lead, 1, 1))):
        return rows, cols
    if shape in ((*lead, rows), (*lead, rows, 1)):
        return 1, cols
    for block in (*settings.block_sizes(), _COMMON_BLOCK):
        if shape == (*lead, -(-rows // block[0]), -(-cols // block[1])):
            return block
    if shape[:-2] == tuple(lead) and len(shape) == len(lead) + 2 and rows % shape[-2] == 0 and cols % shape[-1] == 0:
        return rows // shape[-2], cols // shape[-1]
    raise bundle.misfit("scale", f"one value, one a row ({rows}), or a grid of blocks for {bundle.describe('weight')}")


def _grid(weight: FileTensor, scale: FileTensor, block_rows: int, block_cols: int) -> ScaleGrid:
    *lead, rows, cols = weight.shape
    line, lines = -(-cols // block_cols), -(-rows // block_rows)
    shared = math.prod(scale.shape) == line * lines
    return ScaleGrid(scale, rows, block_rows, line, lines, 1 if shared else math.prod(lead))
