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

# fp16 scale; the fifth bit of value i in bit i; values i and i + 16 in the nibbles of byte i, the first in the low one
_STORED = np.dtype([("scale", "<u2"), ("fifth_bits", "V4"), ("pairs", "u1", (_HALF,))])
_Q8_0 = np.dtype([("scale", "<u2"), ("codes", "i1", (BLOCK,))])


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
    """Rows of q5_0 as rows of q8_0."""
    stored = raw.view(_STORED)
    out = np.empty(stored.shape, _Q8_0)
    out["scale"] = stored["scale"]
    fifth_bits = np.ascontiguousarray(stored["fifth_bits"]).view(np.uint8).reshape(*stored.shape, 4)
    codes = np.unpackbits(fifth_bits, axis=-1, bitorder="little")
    codes <<= 4
    codes[..., :_HALF] |= stored["pairs"] & 15
    codes[..., _HALF:] |= stored["pairs"] >> 4
    codes -= np.uint8(_ZERO)  # wraps, as a signed code does
    out["codes"] = codes.view(np.int8)
    return out.view(np.uint8).reshape(len(raw), -1)
