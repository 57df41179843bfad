"""Rounding values to the GGUF codecs that the `gguf` package can only read: q2_k to q6_k, iq4_nl, iq4_xs.

Plain encoders: each block takes its scale from its extremes. They are for making models whose weights lie exactly in a
codec, not for making good ones. Layouts are ggml's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gguf
import numpy as np
from gguf import GGMLQuantizationType
from numpy.typing import NDArray

Array = NDArray[Any]
Floats = NDArray[np.float32]

IQ4_NL_VALUES = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.float32)
_SUPER_BLOCK, _BLOCK = 256, 32


def quantize(values: Floats, codec: GGMLQuantizationType) -> Array:
    """Rows [.., cols] of values as rows of blocks [.., bytes], as `gguf.quantize`, for the codecs it lacks too."""
    encode = _ENCODERS.get(codec)
    if encode is None:
        return gguf.quantize(values, codec)
    per_block, _ = gguf.GGML_QUANT_SIZES[codec]
    blocks = encode(values.reshape(-1, per_block))
    return blocks.reshape(*values.shape[:-1], -1)


def _with_minima(values: Floats, bits: int) -> tuple[Array, Array]:
    """Header (d, dmin, 6-bit scales and minima) and codes [n, 8, 32] of super-blocks [n, 256] with `bits` a code."""
    d, d_min, scales, minima, codes = _scaled_codes(values.reshape(-1, 8, _BLOCK), 63, 2**bits - 1)
    return np.concatenate([_bytes(d), _bytes(d_min), _packed_scales(scales, minima)], axis=1), codes


def _scaled_codes(blocks: Floats, largest_scale: int, largest_code: int) -> tuple[Array, Array, Array, Array, Array]:
    """d and dmin [n, 1], scales and minima [n, m] and codes of `blocks` [n, m, values]."""
    lowest = np.minimum(blocks.min(2), 0)
    d, scales = _in_units((blocks.max(2) - lowest) / largest_code, largest_scale)
    d_min, minima = _in_units(-lowest, largest_scale)
    step = d.astype(np.float32) * scales
    offset = d_min.astype(np.float32) * minima
    codes = np.rint((blocks + offset[:, :, None]) / np.where(step > 0, step, 1)[:, :, None])
    return d, d_min, scales, minima, np.clip(codes, 0, largest_code).astype(np.uint8)


def _in_units(factors: Floats, largest: int) -> tuple[Array, Array]:
    """Factors [n, m] as one fp16 [n, 1] times integers up to `largest`."""
    unit = (factors.max(1, keepdims=True) / largest).astype(np.float16)
    divisor = np.where(unit > 0, unit.astype(np.float32), 1)
    return unit, np.clip(np.rint(factors / divisor), 0, largest).astype(np.uint8)


def _packed_scales(scales: Array, minima: Array) -> Array:
    """Eight scales and eight minima of six bits in twelve bytes."""
    first = scales[:, :4] | scales[:, 4:] >> 4 << 6
    second = minima[:, :4] | minima[:, 4:] >> 4 << 6
    third = scales[:, 4:] & 15 | (minima[:, 4:] & 15) << 4
    return np.concatenate([first, second, third], axis=1)


def _nibble_pairs(codes: Array) -> Array:
    """Low nibbles of blocks [n, 8, 32], two blocks a run of 32 bytes."""
    pairs = codes.reshape(-1, 4, 2, _BLOCK) & 15
    return (pairs[:, :, 0] | pairs[:, :, 1] << 4).reshape(len(codes), -1)


def _q4_k(values: Floats) -> Array:
    header, codes = _with_minima(values, 4)
    return np.concatenate([header, _nibble_pairs(codes)], axis=1)


def _q5_k(values: Floats) -> Array:
    header, codes = _with_minima(values, 5)
    places = np.arange(8, dtype=np.uint8)[None, :, None]
    fifth = np.bitwise_or.reduce((codes >> 4) << places, axis=1)
    return np.concatenate([header, fifth, _nibble_pairs(codes)], axis=1)


def _q2_k(values: Floats) -> Array:
    d, d_min, scales, minima, codes = _scaled_codes(values.reshape(-1, 16, 16), 15, 3)
    return np.concatenate([scales | minima << 4, _bit_pairs(codes), _bytes(d), _bytes(d_min)], axis=1)


def _q3_k(values: Floats) -> Array:
    d, scales, codes = _signed_codes(values, 31, 4)
    biased = (scales + 32).astype(np.uint8)
    upper = np.bitwise_or.reduce((biased >> 4).reshape(-1, 4, 4) << np.array([0, 2, 4, 6], np.uint8)[:, None], axis=1)
    six_bits = [biased[:, :8] & 15 | (biased[:, 8:] & 15) << 4, upper]
    third = np.bitwise_or.reduce((codes.reshape(-1, 8, _BLOCK) >> 2) << np.arange(8, dtype=np.uint8)[:, None], axis=1)
    return np.concatenate([third, _bit_pairs(codes & 3), *six_bits, _bytes(d)], axis=1)


def _q6_k(values: Floats) -> Array:
    d, scales, codes = _signed_codes(values, 127, 32)
    low = codes.reshape(-1, 2, 4, _BLOCK) & 15  # halves of 128: four runs of 32
    lower = np.concatenate([low[:, :, 0] | low[:, :, 2] << 4, low[:, :, 1] | low[:, :, 3] << 4], axis=2)
    parts = [lower.reshape(len(codes), -1), _bit_pairs(codes >> 4), scales.view(np.uint8), _bytes(d)]
    return np.concatenate(parts, axis=1)


def _signed_codes(values: Floats, largest_scale: int, zero: int) -> tuple[Array, Array, Array]:
    """d [n, 1], int8 scales [n, 16] and codes [n, 16, 16] of super-blocks without minima; `zero` is the code of 0."""
    blocks = values.reshape(-1, 16, 16)
    steps = np.abs(blocks).max(2) / (zero - 1)
    d = (steps.max(1, keepdims=True) / largest_scale).astype(np.float16)
    scales = np.rint(steps / np.where(d > 0, d.astype(np.float32), 1)).clip(1, largest_scale).astype(np.int8)
    step = (d.astype(np.float32) * scales)[:, :, None]
    codes = np.rint(blocks / np.where(step > 0, step, 1)).clip(-zero, zero - 1).astype(np.int8) + zero
    return d, scales, codes.astype(np.uint8)


def _bit_pairs(codes: Array) -> Array:
    """Codes [n, ...] of two bits in 64 bytes: one holds the four runs of 32 of its half of 128."""
    places = np.array([0, 2, 4, 6], np.uint8)[:, None]
    return np.bitwise_or.reduce(codes.reshape(-1, 2, 4, _BLOCK) << places, axis=2).reshape(len(codes), -1)


def _iq4_nl(values: Floats) -> Array:
    place = np.abs(values).argmax(1)
    extreme = values[np.arange(len(values)), place][:, None]
    d = (extreme / IQ4_NL_VALUES[0]).astype(np.float16)  # the table's largest magnitude is its first value
    codes = _in_table(values / np.where(d != 0, d.astype(np.float32), 1))
    return np.concatenate([_bytes(d), codes[:, :16] | codes[:, 16:] << 4], axis=1)


def _iq4_xs(values: Floats) -> Array:
    blocks = values.reshape(-1, 8, _BLOCK)
    place = np.abs(blocks).argmax(2)
    steps = np.take_along_axis(blocks, place[..., None], 2)[..., 0] / IQ4_NL_VALUES[0]
    d = (np.abs(steps).max(1, keepdims=True) / 31).astype(np.float16)
    scales = np.rint(steps / np.where(d != 0, d.astype(np.float32), 1)).clip(-32, 31)
    step = (d.astype(np.float32) * scales)[..., None]
    codes = _in_table(blocks / np.where(step != 0, step, 1))
    biased = (scales + 32).astype(np.uint8)
    upper = np.bitwise_or.reduce((biased >> 4).astype(np.uint16) << np.arange(0, 16, 2, dtype=np.uint16), axis=1)
    lower = biased[:, ::2] & 15 | (biased[:, 1::2] & 15) << 4
    nibbles = codes[..., :16] | codes[..., 16:] << 4
    return np.concatenate([_bytes(d), _bytes(upper[:, None]), lower, nibbles.reshape(len(codes), -1)], axis=1)


def _in_table(values: Floats) -> Array:
    middles = (IQ4_NL_VALUES[1:] + IQ4_NL_VALUES[:-1]) / 2
    return np.searchsorted(middles, values).astype(np.uint8)


def _bytes(values: Array) -> Array:
    return np.ascontiguousarray(values).view(np.uint8).reshape(len(values), -1)


_ENCODERS: dict[GGMLQuantizationType, Callable[[Floats], Array]] = {
    GGMLQuantizationType.Q2_K: _q2_k,
    GGMLQuantizationType.Q3_K: _q3_k,
    GGMLQuantizationType.Q4_K: _q4_k,
    GGMLQuantizationType.Q5_K: _q5_k,
    GGMLQuantizationType.Q6_K: _q6_k,
    GGMLQuantizationType.IQ4_NL: _iq4_nl,
    GGMLQuantizationType.IQ4_XS: _iq4_xs,
}
