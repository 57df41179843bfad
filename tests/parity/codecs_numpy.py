"""The packed layout of docs/numerics.md in numpy: a second, independent implementation to check the native one against.

A matrix [rows, cols] becomes tiles of 16 rows; a tile is one stream of bytes.
"""

from __future__ import annotations

import numpy as np

from .blocks_numpy import (
    BLOCK,
    CODINGS,
    EIGHT_BIT_FLOATS,
    FLOATS,
    Blocks,
    Bytes,
    Floats,
    plain_values,
    read_form,
    values,
)

TILE, LINE = 16, 64


def pack(form: str, raw: Bytes, cols: int) -> Bytes:
    """Raw rows [rows, bytes a row] of a form to tiles [tiles, bytes a tile]."""
    tiles = -(-len(raw) // TILE)
    if form in FLOATS:
        words = np.zeros((tiles * TILE, -(-cols // 4) * 4, FLOATS[form]), np.uint8)
        words[: len(raw), :cols] = raw.reshape(len(raw), cols, -1)
        return words.reshape(tiles, TILE, -1, FLOATS[form]).swapaxes(1, 2).reshape(tiles, -1)
    blocks = read_form(form, raw, cols)
    return np.stack([_write_tile(blocks, start) for start in range(0, len(raw), TILE)])


def unpack(codec: str, rows: int, cols: int, packed: Bytes) -> Floats:
    """Tiles to values [rows, cols]."""
    if codec in FLOATS:
        words = np.frombuffer(packed, np.uint8).reshape(-(-rows // TILE), -1, TILE, FLOATS[codec])[:, :cols]
        return plain_values(codec, words.swapaxes(1, 2).reshape(-1, cols, FLOATS[codec])[:rows])
    return values(read_tiles(codec, rows, cols, packed))


def pack_for_conversion(form: str, raw: Bytes, cols: int, out: Bytes, stride: int) -> None:
    """`pack` as `engine.files.conversion.packing.Pack` wants it: tile i goes to byte i * stride of `out`."""
    for tile, stream in enumerate(pack(form, raw, cols)):
        out[tile * stride : tile * stride + len(stream)] = stream


# --- writing


def _sixteen(rows: Bytes, start: int, fill: int = 0) -> Bytes:
    """Rows start .. start + 16 of an array, the missing ones filled."""
    found = rows[start : start + TILE]
    out = np.full((TILE, *rows.shape[1:]), fill, rows.dtype)
    out[: len(found)] = found
    return out


def _write_tile(blocks: Blocks, start: int) -> Bytes:
    coding = CODINGS[blocks.codec]
    codes = _sixteen(blocks.codes, start, coding.zero)
    own, shared = _sixteen(blocks.own, start), _sixteen(blocks.shared, start)
    stream: list[Bytes] = []
    if coding.factors:
        factors = _sixteen(blocks.factors, start) * np.float32(128 if blocks.codec == "nvfp4" else 1)
        stream.append(factors.view(np.uint8))
    width = coding.block * coding.group
    for group, column in enumerate(range(0, codes.shape[1], width)):
        of_group = own[:, group * coding.group : (group + 1) * coding.group]
        stream.append(_write_header(blocks.codec, of_group, shared[:, group] if coding.shared else None))
        for first in range(column, min(column + width, codes.shape[1]), coding.block):
            stream.append(_write_codes(blocks.codec, codes[:, first : first + coding.block]))
    return np.concatenate(stream)


def _write_header(codec: str, own: Bytes, shared: Bytes | None) -> Bytes:
    coding = CODINGS[codec]
    header = np.zeros(coding.lines * LINE, np.uint8)
    if codec == "int4_128z" and shared is not None:
        header[:32], header[32:48] = shared[:, :2].reshape(-1), shared[:, 2]
        return header
    if shared is not None:
        words = np.zeros((TILE, 4), np.uint8)
        words[:, : coding.shared] = shared
        header[:LINE] = words.reshape(-1)
    scales = own.swapaxes(0, 1).reshape(-1)
    at = LINE if shared is not None else 0
    header[at : at + scales.size] = scales
    return header


def _write_codes(codec: str, codes: Bytes) -> Bytes:
    """Codes [16, columns of a block] to lines."""
    if codec in EIGHT_BIT_FLOATS:
        padded = np.zeros((TILE, -(-codes.shape[1] // 4) * 4), np.uint8)
        padded[:, : codes.shape[1]] = codes
        runs = padded.reshape(TILE, -1, 2, 2)  # row, run, first or second column of a word, word
        return runs.transpose(1, 3, 0, 2).reshape(-1)
    if codec == "q8_0":
        return codes.reshape(TILE, 8, 4).swapaxes(0, 1).reshape(-1)
    if codec == "q2_k":
        return _write_pairs(codes)
    if codec == "q3_k":
        return _write_thirds(codes)
    runs = codes.reshape(TILE, 4, 2, 4)  # row, line, low or high nibble, byte
    low = runs & 15
    lines = [(low[:, :, 0] | low[:, :, 1] << 4).swapaxes(0, 1).reshape(-1)]
    if codec in ("q5_0", "q5_1", "q5_k"):
        lines.append(_write_bits(codes >> 4))
    if codec == "q6_k":
        lines.append(_write_pairs(codes >> 4))
    return np.concatenate(lines)


def _write_bits(codes: Bytes) -> Bytes:
    """One bit a code to a line."""
    parts = codes.reshape(TILE, 8, 4) << np.arange(8, dtype=np.uint8)[:, None]
    return np.bitwise_or.reduce(parts, 1).reshape(-1)


def _write_pairs(codes: Bytes) -> Bytes:
    """Two bits a code to two lines."""
    parts = codes.reshape(TILE, 2, 4, 4) << np.arange(0, 8, 2, dtype=np.uint8)[:, None]
    return np.bitwise_or.reduce(parts, 2).swapaxes(0, 1).reshape(-1)


def _write_thirds(codes: Bytes) -> Bytes:
    """Three bits a code to three lines: two codes a byte, and two bits of the last two codes."""
    fours = codes.reshape(TILE, 8, 4)
    twos = fours[:, ::2] | fours[:, 1::2] << 3
    lines = [twos[:, line] | (twos[:, 3] >> 2 * line & 3) << 6 for line in range(3)]
    return np.concatenate([line.reshape(-1) for line in lines])


# --- reading


class _Stream:
    def __init__(self, data: Bytes) -> None:
        self._data, self._at = data, 0

    def take(self, size: int) -> Bytes:
        taken = self._data[self._at : self._at + size]
        self._at += size
        assert len(taken) == size, "the tile is short"
        return taken

    @property
    def empty(self) -> bool:
        return self._at == len(self._data)


def read_tiles(codec: str, rows: int, cols: int, packed: Bytes) -> Blocks:
    """The codes and scales of a packed matrix."""
    streams = np.frombuffer(packed, np.uint8).reshape(-(-rows // TILE), -1)
    tiles = [_read_tile(codec, cols, _Stream(stream)) for stream in streams]
    codes, own, shared, factors = (np.concatenate(parts)[:rows] for parts in zip(*tiles, strict=True))
    if codec == "nvfp4":
        factors = factors / np.float32(128)
    return Blocks(codec, codes, own, shared, factors)


def _read_tile(codec: str, cols: int, stream: _Stream) -> tuple[Bytes, Bytes, Bytes, Floats]:
    coding = CODINGS[codec]
    factors = stream.take(LINE).view(np.float32) if coding.factors else np.ones(TILE, np.float32)
    own, shared, codes = [], [], []
    for column in range(0, cols, coding.block):
        place = column // coding.block % coding.group
        if place == 0:
            header = stream.take(coding.lines * LINE)
            shared.append(_read_shared(codec, header))
        at = (LINE if coding.shared else 0) + place * coding.own * TILE
        own.append(header[at : at + coding.own * TILE].reshape(TILE, coding.own))
        width = min(coding.block, cols - column)
        codes.append(_read_codes(codec, stream, width))
    assert stream.empty, "the tile is long"
    return np.concatenate(codes, 1), np.stack(own, 1), np.stack(shared, 1), factors


def _read_shared(codec: str, header: Bytes) -> Bytes:
    """What a group's rows share, [16, bytes]."""
    if codec == "int4_128z":
        return np.concatenate([header[:32].reshape(TILE, 2), header[32:48, None]], 1)
    return header[:LINE].reshape(TILE, 4)[:, : CODINGS[codec].shared]


def _read_codes(codec: str, stream: _Stream, width: int) -> Bytes:
    """Codes [16, width] of a block."""
    if codec in EIGHT_BIT_FLOATS:
        runs = stream.take(-(-width // 4) * LINE).reshape(-1, 2, TILE, 2)  # run, word, row, column of the word
        return runs.transpose(2, 0, 3, 1).reshape(TILE, -1)[:, :width]
    if codec == "q8_0":
        return stream.take(8 * LINE).reshape(8, TILE, 4).swapaxes(0, 1).reshape(TILE, BLOCK)
    if codec == "q2_k":
        return _read_pairs(stream).reshape(TILE, BLOCK)
    if codec == "q3_k":
        return _read_thirds(stream).reshape(TILE, BLOCK)
    dwords = stream.take(4 * LINE).reshape(4, TILE, 4)
    codes = np.stack([dwords & 15, dwords >> 4], 2).transpose(1, 0, 2, 3).reshape(TILE, 8, 4)
    if codec in ("q5_0", "q5_1", "q5_k"):
        codes = codes | _read_bits(stream) << 4
    if codec == "q6_k":
        codes = codes | _read_pairs(stream) << 4
    return codes.reshape(TILE, BLOCK)


def _read_bits(stream: _Stream) -> Bytes:
    """One bit a code, [16, 8, 4], out of a line."""
    return stream.take(LINE).reshape(TILE, 1, 4) >> np.arange(8, dtype=np.uint8)[:, None] & 1


def _read_pairs(stream: _Stream) -> Bytes:
    """Two bits a code, [16, 8, 4], out of two lines."""
    lines = stream.take(2 * LINE).reshape(2, TILE, 1, 4).swapaxes(0, 1)
    return (lines >> np.arange(0, 8, 2, dtype=np.uint8)[:, None] & 3).reshape(TILE, 8, 4)


def _read_thirds(stream: _Stream) -> Bytes:
    """Three bits a code, [16, 8, 4], out of three lines."""
    lines = stream.take(3 * LINE).reshape(3, TILE, 4)
    last = lines[0] >> 6 | lines[1] >> 6 << 2 | lines[2] >> 6 << 4
    return np.stack([code & 7 for two in (*lines, last) for code in (two, two >> 3)], 1)
