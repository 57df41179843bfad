"""ggml's q5_0, which has no codec here, as q8_0, which holds it exactly.

Both are blocks of 32 values under one fp16 scale: a value is scale * (code - 16) of five bits in q5_0, and scale * code
of eight signed bits in q8_0. Files in K-quants have it where rows are not whole blocks of 256.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from engine.files.source_file import Bytes, SourceFile

BLOCK, BLOCK_BYTES = 32, 22
_HALF = BLOCK // 2
_ZERO = 16

# The fifth bit of value i is bit i of four bytes; values i and i + 16 are the nibbles of byte i, the first the low one.
_STORED = np.dtype([("scale", "V2"), ("fifth_bits", "<u2", (2,)), ("pairs", "V16")])
_Q8_0 = np.dtype([("scale", "V2"), ("first", "V16"), ("second", "V16")])
_LOW_NIBBLES = np.uint64(0x0F0F0F0F0F0F0F0F)
# Two bytes of fifth bits to the sixteens of as many values, a byte each.
_SIXTEENS = (
    np.unpackbits(np.arange(1 << _HALF, dtype="<u2").view(np.uint8).reshape(-1, 2), axis=1, bitorder="little") << 4
).view("V16")[:, 0]


@dataclass(frozen=True)
class Q5Tensor:
    """A tensor in q5_0 that lies in a file, row after row from byte `start`, as raw rows of q8_0."""

    file: SourceFile
    start: int
    shape: tuple[int, ...]
    form: str = "q8_0"

    @property
    def files(self) -> tuple[SourceFile, ...]:
        return (self.file,)

    def read(self, start: int, stop: int) -> Bytes:
        row_bytes = self.shape[-1] // BLOCK * BLOCK_BYTES
        raw = np.empty((stop - start, row_bytes), np.uint8)
        self.file.read(self.start + start * row_bytes, raw)
        return _as_q8_0(raw)


def _as_q8_0(raw: Bytes) -> Bytes:
    """Rows of q5_0 as rows of q8_0. Fields are copied as opaque values, many times faster than byte by byte."""
    stored = raw.reshape(-1).view(_STORED)
    pairs = np.ascontiguousarray(stored["pairs"]).view("<u8")
    out = np.empty(stored.shape, _Q8_0)
    out["scale"] = stored["scale"]
    for half, nibbles in enumerate((pairs & _LOW_NIBBLES, pairs >> np.uint64(4) & _LOW_NIBBLES)):
        nibbles |= _SIXTEENS[stored["fifth_bits"][:, half]].view("<u8")
        codes = nibbles.view(np.uint8)
        codes -= np.uint8(_ZERO)  # wraps, as a signed code does
        out["second" if half else "first"] = codes.view("V16")
    return out.view(np.uint8).reshape(len(raw), -1)
