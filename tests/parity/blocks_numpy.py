"""Raw forms in numpy: what docs/numerics.md says of them, read a second time, and the weights that they stand for."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]

BLOCK = 32
E2M1 = np.asarray([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.int32)  # doubled
IQ4_NL = np.asarray([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.int32)


@dataclass(frozen=True)
class Coding:
    """A codec of codes under scales: `block` weights, `group` blocks under a header of `lines` lines.

    The header has `shared` bytes a row first, then `own` bytes a row and block; the first are packed end to end, the
    others begin at a line if there are both. `bits` of a code; `zero` is the code of a zero weight.
    """

    block: int
    group: int
    lines: int
    shared: int
    own: int
    bits: int
    zero: int = 0
    factors: bool = False


CODINGS = {
    "q4_0": Coding(32, 2, 1, 0, 2, 4, 8),
    "q4_1": Coding(32, 1, 1, 0, 4, 4),
    "q5_0": Coding(32, 2, 1, 0, 2, 5, 16),
    "q5_1": Coding(32, 1, 1, 0, 4, 5),
    "q8_0": Coding(32, 2, 1, 0, 2, 8, 128),
    "mxfp4": Coding(32, 4, 1, 0, 1, 4),
    "iq4_nl": Coding(32, 2, 1, 0, 2, 4),
    "iq4_xs": Coding(32, 8, 3, 2, 1, 4),
    "q2_k": Coding(32, 8, 5, 4, 2, 2),
    "q3_k": Coding(32, 8, 5, 2, 2, 3, 4),
    "q4_k": Coding(32, 8, 5, 4, 2, 4),
    "q5_k": Coding(32, 8, 5, 4, 2, 5),
    "q6_k": Coding(32, 8, 5, 2, 2, 6, 32),
    "nvfp4": Coding(32, 2, 1, 0, 2, 4, factors=True),
    "int4_32": Coding(32, 2, 1, 0, 2, 4, 8, factors=True),
    "int4_32z": Coding(32, 1, 1, 0, 4, 4, factors=True),
    "int4_128z": Coding(32, 4, 1, 3, 0, 4, factors=True),
    "fp8": Coding(128, 1, 1, 0, 4, 8),
    "mxfp8": Coding(32, 4, 1, 0, 1, 8),
}
EIGHT_BIT_FLOATS = {"fp8", "mxfp8"}
FLOATS = {"f32": 4, "f16": 2, "bf16": 2}
FORMS = {**{name: name for name in (*CODINGS, *FLOATS)}, "mxfp4_pairs": "mxfp4"}


@dataclass(frozen=True)
class Blocks:
    """Rows of codes: `codes` [rows, cols] unsigned, `own` [rows, blocks, bytes], `shared` [rows, groups, bytes].

    `shared` of q4_k and q5_k are d and dmin, `own` the unpacked scale and minimum; of q2_k `own` are bytes
    of a scale and a minimum, of q3_k unpacked scales, each of sixteen weights; of int4_128z `shared` are the fp16 scale
    and the zero point. `factors` [rows] are the f32 of the row, as the checkpoint has them.
    """

    codec: str
    codes: Bytes
    own: Bytes
    shared: Bytes
    factors: Floats


def read_form(form: str, raw: Bytes, cols: int) -> Blocks:
    """Raw rows [rows, bytes a row] of any form but plain values."""
    rows, codec = len(raw), FORMS[form]
    factors = np.ones(rows, np.float32)
    if CODINGS[codec].factors:
        factors, raw = raw[:, :4].copy().view(np.float32)[:, 0], raw[:, 4:]
    none = np.zeros((rows, 1, 0), np.uint8)
    if codec in ("q4_k", "q5_k"):
        blocks = raw.reshape(rows, cols // 256, -1)
        return Blocks(codec, _k_codes(codec, blocks), _six_bits(blocks[..., 4:16]), blocks[..., :4], factors)
    if codec == "iq4_xs":
        blocks = raw.reshape(rows, cols // 256, -1)
        nibbles = blocks[..., 8:].reshape(rows, -1, 16)
        codes = np.concatenate([nibbles & 15, nibbles >> 4], 2).reshape(rows, -1)
        return Blocks(codec, codes, _scales_in_two(blocks[..., 2:8]), blocks[..., :2], factors)
    if codec in _HALF_SCALES:
        blocks = raw.reshape(rows, cols // 256, -1)
        at, end = _HALF_SCALES[codec]
        own = _signed_six_bits(blocks[..., at:end]) if codec == "q3_k" else blocks[..., at:end].reshape(rows, -1, 2)
        return Blocks(codec, _k_codes(codec, blocks), own, blocks[..., _D[codec] :], factors)
    if codec == "int4_128z":
        scales, codes = _cut(raw, cols, 128, 4, 4)
        return Blocks(codec, codes, np.zeros((rows, cols // 32, 0), np.uint8), scales[..., :3], factors)
    coding = CODINGS[codec]
    scales, codes = _cut(raw, cols, coding.block, coding.own, coding.bits, split=form in _SPLIT)
    if codec == "q8_0":
        codes = codes ^ 0x80
    return Blocks(codec, codes, scales, none, factors)


_HALF_SCALES = {"q2_k": (0, 16), "q3_k": (96, 108), "q6_k": (192, 208)}  # bytes of a block with scales of sixteen
_D = {"q2_k": 80, "q3_k": 108, "q6_k": 208}  # and from which on its own scale, or scale and minimum, lie
_SPLIT = {"q4_0", "q4_1", "mxfp4", "iq4_nl"}  # ggml: the first half of a block in low nibbles, the second in high ones


def _cut(raw: Bytes, cols: int, block: int, scale: int, bits: int, split: bool = False) -> tuple[Bytes, Bytes]:
    """Scales [rows, blocks, bytes] and codes [rows, cols] of blocks, the last of which may be shorter."""
    scales, codes, at = [], [], 0
    for start in range(0, cols, block):
        size = min(block, cols - start) * bits // 8
        scales.append(raw[:, at : at + scale])
        packed = raw[:, at + scale : at + scale + size]
        if bits == 8:
            codes.append(packed)
        elif bits == 5:  # fifth bits, then nibbles
            fifth = np.unpackbits(packed[:, :4], axis=1, bitorder="little")
            codes.append(np.concatenate([packed[:, 4:] & 15, packed[:, 4:] >> 4], 1) | fifth << 4)
        elif split:
            codes.append(np.concatenate([packed & 15, packed >> 4], 1))
        else:
            codes.append(np.stack([packed & 15, packed >> 4], 2).reshape(len(raw), -1))
        at += scale + size
    return np.stack(scales, 1), np.concatenate(codes, 1)


def _k_codes(codec: str, blocks: Bytes) -> Bytes:
    """Codes [rows, cols] of ggml's blocks of 256, [rows, blocks, bytes]."""
    rows = len(blocks)
    if codec in ("q2_k", "q3_k"):
        first = 16 if codec == "q2_k" else 32
        codes = _quarters(blocks[..., first : first + 64]).reshape(rows, -1)
        return codes | _single_bits(blocks[..., :32]).reshape(rows, -1) << 2 if codec == "q3_k" else codes
    if codec == "q6_k":
        low = blocks[..., :128].reshape(rows, -1, 2, 64)  # half of the block, low and high nibbles in turn
        low = np.stack([low & 15, low >> 4], 3).reshape(rows, -1, 2, 4, 32)
        return (low | _quarters(blocks[..., 128:192]) << 4).reshape(rows, -1)
    low = blocks[..., -128:].reshape(rows, -1, 4, 32)
    codes = np.stack([low & 15, low >> 4], 3).reshape(rows, -1, 8, 32)
    if codec == "q5_k":
        codes = codes | _single_bits(blocks[..., 16:48]) << 4
    return codes.reshape(rows, -1)


def _quarters(packed: Bytes) -> Bytes:
    """Two bits each of 256 weights [..., half, layer, 32] out of 64 bytes: a byte holds four layers of its half."""
    return packed.reshape(*packed.shape[:-1], 2, 1, 32) >> np.arange(0, 8, 2, dtype=np.uint8)[:, None] & 3


def _single_bits(packed: Bytes) -> Bytes:
    """A bit of each of 256 weights [..., block of 32, 32] out of 32 bytes: a byte holds one weight of every block."""
    return packed[..., None, :] >> np.arange(8, dtype=np.uint8)[:, None] & 1


def _signed_six_bits(packed: Bytes) -> Bytes:
    """Scales [rows, blocks of 32, 2] out of the twelve bytes of q3_k [rows, blocks of 256, 12], as int8 bits."""
    low = np.concatenate([packed[..., :8] & 15, packed[..., :8] >> 4], -1)
    high = np.concatenate([packed[..., 8:] >> place & 3 for place in (0, 2, 4, 6)], -1)
    return (low | high << 4).reshape(len(packed), -1, 2) - np.uint8(32)


def _scales_in_two(packed: Bytes) -> Bytes:
    """Scales [rows, blocks of 32, 1] out of the six bytes of iq4_xs [rows, blocks of 256, 6], as int8 bits."""
    high = packed[..., :2, None] >> np.arange(0, 8, 2, dtype=np.uint8) & 3  # [.., byte, place]
    low = np.stack([packed[..., 2:] & 15, packed[..., 2:] >> 4], -1)
    scales = low.reshape(*packed.shape[:-1], 8) | high.reshape(*packed.shape[:-1], 8) << 4
    return scales.reshape(len(packed), -1, 1) - np.uint8(32)


def _six_bits(packed: Bytes) -> Bytes:
    """Scale and minimum [rows, blocks of 32, 2] out of twelve bytes [rows, blocks of 256, 12]."""
    first, second, third = packed[..., :4], packed[..., 4:8], packed[..., 8:]
    scale = np.concatenate([first & 63, third & 15 | first >> 6 << 4], -1)
    minimum = np.concatenate([second & 63, third >> 4 | second >> 6 << 4], -1)
    return np.stack([scale, minimum], -1).reshape(len(packed), -1, 2)


@dataclass(frozen=True)
class Integers:
    """Integer scales and minima of halves [rows, blocks, 2] under `d` and `d_min` [rows, blocks]."""

    d: Floats
    d_min: Floats
    scales: NDArray[np.int64]
    minima: NDArray[np.int64]


@dataclass(frozen=True)
class Terms:
    """Weights as the products take them: `(scale * number + minimum) * post`.

    `numbers` [rows, cols]; `scales` [rows, blocks, 1 or 2], two where the halves of a block have their own; `minimum`
    of the same shape or None; `post` [rows]. `integers` are what the products take in place of scales and minima.
    """

    numbers: NDArray[np.float64]
    scales: Floats
    minimum: Floats | None
    post: Floats
    integers: Integers | None = None


def terms(blocks: Blocks) -> Terms:
    """The numbers behind codes and scales. nvfp4, fp8, mxfp8: scale or number is 2^-8 of itself, fp4 codes doubled."""
    codec, rows = blocks.codec, len(blocks.codes)
    numbers, minimum, post, integers = blocks.codes.astype(np.float64), None, blocks.factors, None
    if codec in ("mxfp4", "mxfp8"):
        scales = np.ldexp(np.float32(1), blocks.own.astype(np.int32) - 127).astype(np.float32)
    elif codec == "nvfp4":
        scales = e4m3(blocks.own) / np.float32(256)
        post = blocks.factors * np.float32(128)
    elif codec == "fp8":
        scales = blocks.own.copy().view(np.float32)
    elif codec in ("q4_k", "q5_k"):
        halves = np.repeat(_halves(blocks.shared), 8, 1) * blocks.own.astype(np.float32)
        scales, minimum = halves[..., :1], -halves[..., 1:]
    elif codec in ("q2_k", "q3_k"):
        integers = _integers(blocks)
        scales = integers.d[..., None] * integers.scales.astype(np.float32)
        if codec == "q2_k":
            minimum = -integers.d_min[..., None] * integers.minima.astype(np.float32)
    elif codec in ("q6_k", "iq4_xs"):
        scales = np.repeat(_halves(blocks.shared), 8, 1) * blocks.own.view(np.int8).astype(np.float32)
    elif codec == "int4_128z":
        count = blocks.codes.shape[1] // BLOCK
        scales = np.repeat(_halves(blocks.shared[..., :2]), 4, 1)[:, :count]
        numbers -= np.repeat(blocks.shared[..., 2], 128, 1)[:, : numbers.shape[1]]
    else:
        scales = _halves(blocks.own[..., :2])
    if codec in ("mxfp4", "nvfp4"):
        numbers = E2M1[blocks.codes].astype(np.float64)
    elif codec in ("iq4_nl", "iq4_xs"):
        numbers = IQ4_NL[blocks.codes].astype(np.float64)
    elif codec in EIGHT_BIT_FLOATS:
        numbers = e4m3(blocks.codes).astype(np.float64) / 256
    elif codec == "int4_32z":
        numbers -= np.repeat(blocks.own[..., 2], BLOCK, 1)
    else:
        numbers -= CODINGS[codec].zero
    if codec in ("q4_1", "q5_1"):
        minimum = _halves(blocks.own)[..., 1:]
    if codec == "mxfp4":
        post = np.full(rows, 0.5, np.float32)
    if codec in EIGHT_BIT_FLOATS:
        post = np.full(rows, 256, np.float32)
    return Terms(numbers, scales, minimum, post, integers)


def _integers(blocks: Blocks) -> Integers:
    units = np.repeat(_halves(blocks.shared), 8, 1)
    if blocks.codec == "q3_k":
        scales = blocks.own.view(np.int8).astype(np.int64)
        return Integers(units[..., 0], np.zeros_like(units[..., 0]), scales, np.zeros_like(scales))
    return Integers(
        units[..., 0], units[..., 1], (blocks.own & 15).astype(np.int64), (blocks.own >> 4).astype(np.int64)
    )


def values(blocks: Blocks) -> Floats:
    """The weights [rows, cols], rounded once from exact ones."""
    found = terms(blocks)
    cols = blocks.codes.shape[1]
    width = CODINGS[blocks.codec].block // found.scales.shape[2]
    scales = found.scales.reshape(len(found.scales), -1).astype(np.float64)
    exact = np.repeat(scales, width, 1)[:, :cols] * found.numbers
    if found.minimum is not None:
        exact += np.repeat(found.minimum.reshape(len(exact), -1).astype(np.float64), width, 1)
    with np.errstate(over="ignore"):
        return (exact * found.post[:, None].astype(np.float64)).astype(np.float32)


def plain_values(codec: str, raw: Bytes) -> Floats:
    """Bytes [..., size of a value] of f32, f16 or bf16 as f32."""
    raw = np.ascontiguousarray(raw)
    if codec == "bf16":
        return (raw.view(np.uint16)[..., 0].astype(np.uint32) << 16).view(np.float32)
    return raw.view(np.float32 if codec == "f32" else np.float16)[..., 0].astype(np.float32)


def e4m3(codes: Bytes) -> Floats:
    """OCP e4m3fn by its definition; 0x7f and 0xff are NaN."""
    exponent, mantissa = (codes >> 3 & 15).astype(np.int32), (codes & 7).astype(np.float64)
    size = np.where(exponent == 0, np.ldexp(mantissa, -9), np.ldexp(8 + mantissa, exponent - 10))
    size = np.where(codes & 127 == 127, np.nan, size)
    return np.where(codes & 128, -size, size).astype(np.float32)


def _halves(scales: Bytes) -> Floats:
    return np.ascontiguousarray(scales).view(np.float16).astype(np.float32)
