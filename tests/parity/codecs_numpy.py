"""The packed layout of docs/numerics.md in numpy: a second, independent implementation to check the native one against.

A matrix [rows, cols] becomes tiles of 16 rows; a tile is one stream of bytes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]

TILE, BLOCK, SCALE_LINE = 16, 32, 64
E2M1 = np.asarray([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.float32) / 2


@dataclass(frozen=True)
class Coding:
    """One row of the table: bytes of scales a row and block, blocks a group, bits a code, bytes of a raw block."""

    scale_bytes: int
    group: int
    bits: int
    raw_bytes: int


CODINGS = {
    "q4_0": Coding(2, 2, 4, 18),
    "q4_1": Coding(4, 1, 4, 20),
    "q8_0": Coding(2, 2, 8, 34),
    "mxfp4": Coding(1, 4, 4, 17),
}
FLOATS = {"f32": 4, "f16": 2, "bf16": 2}


def pack(codec: str, raw: Bytes, cols: int) -> Bytes:
    """Raw rows [rows, bytes a row], ggml's block formats or plain values, to tiles [tiles, bytes a tile]."""
    tiles = -(-len(raw) // TILE)
    padded = np.tile(_zero_row(codec, raw.shape[1]), (tiles * TILE, 1))
    padded[: len(raw)] = raw
    return np.stack([_pack_tile(codec, cols, tile) for tile in padded.reshape(tiles, TILE, -1)])


def unpack(codec: str, rows: int, cols: int, packed: Bytes) -> Floats:
    """Tiles to values [rows, cols]."""
    tiles = -(-rows // TILE)
    streams = np.frombuffer(packed, np.uint8).reshape(tiles, -1)
    return np.concatenate([_unpack_tile(codec, cols, stream) for stream in streams])[:rows]


def _zero_row(codec: str, row_bytes: int) -> Bytes:
    """A raw row of weights that are zero, codes included, with scales of zero."""
    row = np.zeros(row_bytes, np.uint8)
    if codec == "q4_0":
        row.reshape(-1, CODINGS[codec].raw_bytes)[:, CODINGS[codec].scale_bytes :] = 0x88
    return row


def _pack_tile(codec: str, cols: int, tile: Bytes) -> Bytes:
    if codec in FLOATS:
        size = FLOATS[codec]
        values = np.zeros((TILE, -(-cols // 4) * 4, size), np.uint8)
        values[:, :cols] = tile.reshape(TILE, cols, size)
        return values.swapaxes(0, 1).reshape(-1)
    coding, blocks = CODINGS[codec], cols // BLOCK
    raw = tile.reshape(TILE, blocks, coding.raw_bytes)
    scales, codes = raw[..., : coding.scale_bytes], _codes(codec, raw[..., coding.scale_bytes :])
    stream = []
    for start in range(0, blocks, coding.group):
        group = range(start, min(start + coding.group, blocks))
        line = np.zeros(SCALE_LINE, np.uint8)
        for place, block in enumerate(group):
            at = place * coding.scale_bytes * TILE
            line[at : at + coding.scale_bytes * TILE] = scales[:, block].reshape(-1)
        stream.append(line)
        stream += [_pack_codes(coding.bits, codes[:, block]) for block in group]
    return np.concatenate(stream)


def _codes(codec: str, quants: Bytes) -> Bytes:
    """Unsigned codes [..., 32] of raw blocks: ggml keeps the first half in low nibbles, the second in high ones."""
    if codec == "q8_0":
        return (quants.view(np.int8).astype(np.int16) + 128).astype(np.uint8)
    return np.concatenate([quants & 15, quants >> 4], -1)


def _pack_codes(bits: int, codes: Bytes) -> Bytes:
    """Codes [16, 32] to lines of 16 dwords, one a row."""
    if bits == 8:
        return codes.reshape(TILE, 8, 4).swapaxes(0, 1).reshape(-1)
    runs = codes.reshape(TILE, 4, 2, 4)  # row, line, low or high nibble, byte
    return (runs[:, :, 0] | runs[:, :, 1] << 4).swapaxes(0, 1).reshape(-1)


def _unpack_tile(codec: str, cols: int, stream: Bytes) -> Floats:
    if codec in FLOATS:
        values = stream.reshape(-1, TILE, FLOATS[codec])[:cols].swapaxes(0, 1)
        return _plain(codec, np.ascontiguousarray(values))
    coding, blocks = CODINGS[codec], cols // BLOCK
    out = np.empty((TILE, blocks, BLOCK), np.float32)
    at = 0
    for block in range(blocks):
        place = block % coding.group
        if place == 0:
            line, at = stream[at : at + SCALE_LINE], at + SCALE_LINE
        lead = place * coding.scale_bytes * TILE
        scales = line[lead : lead + coding.scale_bytes * TILE].reshape(TILE, coding.scale_bytes)
        size = TILE * BLOCK * coding.bits // 8
        out[:, block] = _weights(codec, scales, _unpack_codes(coding.bits, stream[at : at + size]))
        at += size
    return out.reshape(TILE, cols)


def _unpack_codes(bits: int, lines: Bytes) -> Bytes:
    dwords = lines.reshape(-1, TILE, 4)
    if bits == 8:
        return dwords.swapaxes(0, 1).reshape(TILE, BLOCK)
    return np.stack([dwords & 15, dwords >> 4], 2).transpose(1, 0, 2, 3).reshape(TILE, BLOCK)


def _weights(codec: str, scales: Bytes, codes: Bytes) -> Floats:
    """Scales [16, bytes] and codes [16, 32] to weights."""
    if codec == "mxfp4":
        return E2M1[codes] * np.ldexp(np.float32(1), scales.astype(np.int32) - 127)
    halves = np.ascontiguousarray(scales).view(np.float16).astype(np.float32)
    if codec == "q4_1":
        return halves[:, :1] * codes + halves[:, 1:]
    return halves * (codes.astype(np.float32) - (8 if codec == "q4_0" else 128))


def _plain(codec: str, values: Bytes) -> Floats:
    if codec == "bf16":
        return (values.view(np.uint16)[..., 0].astype(np.uint32) << 16).view(np.float32)
    return values.view(np.float32 if codec == "f32" else np.float16)[..., 0].astype(np.float32)


def pack_for_conversion(codec: str, raw: Bytes, cols: int, out: Bytes, stride: int) -> None:
    """`pack` in the form that `engine.files.packing.Pack` describes: tile i goes to byte i * stride of `out`."""
    for tile, stream in enumerate(pack(codec, raw, cols)):
        out[tile * stride : tile * stride + len(stream)] = stream
