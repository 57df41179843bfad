"""Rounding values to q8_0, mxfp4 and nvfp4 as docs/numerics.md says, in numpy, bit for bit."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .blocks_numpy import BLOCK, Bytes, Floats, e4m3

SIZES = np.asarray([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)  # of e2m1, by code
SCALES = e4m3(np.arange(0x7F, dtype=np.uint8))  # of e4m3, by code


def encode(form: str, values: Floats) -> Bytes:
    """Values [rows, cols] to raw rows."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return {"q8_0": _q8_0, "mxfp4": _mxfp4, "nvfp4": _nvfp4}[form](values)


def _q8_0(values: Floats) -> Bytes:
    blocks = values.reshape(len(values), -1, BLOCK)
    d = (np.abs(blocks).max(2, keepdims=True) / np.float32(127)).astype(np.float16)
    quotients = np.where(d == 0, np.float32(0), blocks / d.astype(np.float32))
    codes = np.rint(np.clip(quotients, -127, 127)).astype(np.int8)
    return np.concatenate([d.view(np.uint8), codes.view(np.uint8)], 2).reshape(len(values), -1)


def _mxfp4(values: Floats) -> Bytes:
    blocks = values.reshape(len(values), -1, BLOCK)
    largest = np.abs(blocks).max(2, keepdims=True)
    exponents = np.frexp(largest)[1] - 1  # floor of log2
    scales = np.where(largest == 0, 0, np.maximum(exponents - 2 + 127, 0))
    units = (blocks.astype(np.float64) * np.ldexp(1.0, 127 - scales)).astype(np.float32)
    fine, fine_error = _codes(units, np.float32(1))
    coarse, coarse_error = _codes(units, np.float32(2))
    take_fine = fine_error <= coarse_error
    codes = np.where(take_fine, fine, coarse)
    scales = (scales + ~take_fine).astype(np.uint8)
    return np.concatenate([scales, codes[..., :16] | codes[..., 16:] << 4], 2).reshape(len(values), -1)


def _nvfp4(values: Floats) -> Bytes:
    rows = len(values)
    factors = np.abs(values).max(1, keepdims=True) / np.float32(2688)
    units = np.where(factors == 0, np.float32(0), values / factors).reshape(rows, -1, 16)
    largest = np.abs(units).max(2, keepdims=True)
    six, four = (_nearest(SCALES, largest / np.float32(target)) for target in (6, 4))
    six_codes, six_error = _codes(units, SCALES[six])
    four_codes, four_error = _codes(units, SCALES[four])
    scales = np.where(six_error <= four_error, six, four).astype(np.uint8).reshape(rows, -1, 2)
    codes = np.where(six_error <= four_error, six_codes, four_codes).reshape(rows, -1, 16, 2)
    blocks = np.concatenate([scales, codes[..., 0] | codes[..., 1] << 4], 2).reshape(rows, -1)
    return np.concatenate([factors.view(np.uint8), blocks], 1)


def _codes(units: Floats, step: Floats | np.float32) -> tuple[Bytes, Floats]:
    """e2m1 codes of [..., n] under a step, and the sum of squares of what rounding changed, [..., 1]."""
    size = np.abs(units)
    codes = _nearest(SIZES, np.where(step == 0, np.float32(0), size / step))
    error = size - step * SIZES[codes]
    return (codes | np.where((units < 0) & (codes > 0), 8, 0)).astype(np.uint8), _lane_sum(error * error)


def _nearest(table: Floats, x: Floats) -> NDArray[np.int64]:
    """Codes of the nearest entries of an ascending table, ties to the even code; beyond its end the last."""
    upper = np.clip(np.searchsorted(table, x), 1, len(table) - 1)
    below = x.astype(np.float64) - table[upper - 1]
    above = table[upper].astype(np.float64) - x
    take_upper = (above < below) | ((above == below) & (upper % 2 == 0))
    return np.where(take_upper, upper, upper - 1)


def _lane_sum(squares: Floats) -> Floats:
    """Sixteen accumulators over the last dimension, then the tree of docs/numerics.md."""
    lanes = np.zeros((*squares.shape[:-1], 16), np.float32)
    for start in range(0, squares.shape[-1], 16):
        lanes = lanes + squares[..., start : start + 16]
    while lanes.shape[-1] > 1:
        half = lanes.shape[-1] // 2
        lanes = lanes[..., :half] + lanes[..., half:]
    return lanes
