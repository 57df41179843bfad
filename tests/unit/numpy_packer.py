"""The packing of docs/numerics.md in numpy, slow and obvious: the twin that the native packer is compared with."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]

TILE = 16
FLOAT_BYTES = {"f32": 4, "f16": 2, "bf16": 2}
# codec: bytes of scales in a raw block, where codes start in it, blocks a group
BLOCKS = {"q4_0": (2, 2, 2), "q4_1": (4, 4, 1), "q8_0": (2, 2, 2), "mxfp4": (1, 1, 4)}


def pack_matrix(codec: str, raw: Bytes, cols: int) -> Bytes:
    """Raw rows [rows, bytes a row] as tiles [tiles, bytes a tile]."""
    tiles = -(-len(raw) // TILE)
    if codec in FLOAT_BYTES:
        padded = np.zeros((tiles * TILE, -(-cols // 4) * 4 * FLOAT_BYTES[codec]), np.uint8)
        padded[: len(raw), : raw.shape[1]] = raw
        values = padded.reshape(tiles, TILE, -1, FLOAT_BYTES[codec])
        return np.ascontiguousarray(values.transpose(0, 2, 1, 3)).reshape(tiles, -1)
    scale_bytes, codes_at, group = BLOCKS[codec]
    blocks = cols // 32
    rows = np.zeros((tiles * TILE, blocks, raw.shape[1] // blocks), np.uint8)
    rows[: len(raw)] = raw.reshape(len(raw), blocks, -1)
    scales, codes = rows[:, :, :scale_bytes], _unsigned_codes(codec, rows[:, :, codes_at:])
    codes[len(raw) :] = {"q4_0": 8, "q8_0": 128}.get(codec, 0)
    return np.stack(
        [_pack_tile(codec, scales[i : i + TILE], codes[i : i + TILE], group) for i in range(0, len(rows), TILE)]
    )


def _unsigned_codes(codec: str, data: Bytes) -> Bytes:
    """Codes [rows, blocks, 32], weight + Z."""
    if codec == "q8_0":
        return data ^ 128
    return np.concatenate([data & 15, data >> 4], axis=2)


def _pack_tile(codec: str, scales: Bytes, codes: Bytes, group: int) -> Bytes:
    lines = []
    for start in range(0, codes.shape[1], group):
        line = scales[:, start : start + group].transpose(1, 0, 2).reshape(-1)
        lines.append(np.concatenate([line, np.zeros(64 - len(line), np.uint8)]))
        for block in range(start, min(start + group, codes.shape[1])):
            lines.append(_pack_block(codec, codes[:, block]))
    return np.concatenate(lines)


def _pack_block(codec: str, codes: Bytes) -> Bytes:
    """Codes [16, 32] as lines of 64 bytes in which row r owns dword r."""
    if codec == "q8_0":
        return codes.reshape(TILE, 8, 4).transpose(1, 0, 2).reshape(-1)
    eights = codes.reshape(TILE, 4, 2, 4).transpose(1, 2, 0, 3)  # line, low or high, row, byte
    return (eights[:, 0] | eights[:, 1] << 4).reshape(-1)


def pack(codec: str, raw: Bytes, cols: int, out: Bytes, stride: int) -> None:
    """The packer that conversion expects, made of `pack_matrix`."""
    for index, tile in enumerate(pack_matrix(codec, raw, cols)):
        out[index * stride : index * stride + len(tile)] = tile
