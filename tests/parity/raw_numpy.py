"""Random raw rows of every form, with scales of every kind that a checkpoint may hold."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from engine.files.codecs import FORMS

from .blocks_numpy import EIGHT_BIT_FLOATS, Bytes

Scales = Literal["ordinary", "any", "tiny", "huge", "zero"]
SCALES: tuple[Scales, ...] = ("ordinary", "any", "tiny", "huge", "zero")

_HALVES = {
    "ordinary": (0x1000, 0x2800),
    "any": (0, 0x7BFF),
    "tiny": (0, 0x3FF),
    "huge": (0x7000, 0x7BFF),
    "zero": (0, 0),
}
_SCALES_BEHIND = {"q2_k": (80, 82), "q3_k": (108,), "q6_k": (208,)}  # blocks that end in their fp16 numbers
_E8M0 = {"ordinary": (112, 124), "any": (0, 254), "tiny": (0, 3), "huge": (245, 254), "zero": (0, 0)}
_E4M3 = {"ordinary": (0x28, 0x48), "any": (0, 0x7E), "tiny": (0, 8), "huge": (0x78, 0x7E), "zero": (0, 0)}
_POWERS = {"ordinary": (-9, -5), "any": (-149, 110), "tiny": (-149, -127), "huge": (116, 116)}  # of f32 scales, factors


def random_raw(form: str, rows: int, cols: int, random: np.random.Generator, scales: Scales = "ordinary") -> Bytes:
    """Raw rows [rows, bytes a row]: every code, and scales of the kind that is asked for, of both signs."""
    layout = FORMS[form]
    if layout.block == 1:
        return _plain(form, random.standard_normal((rows, cols), dtype=np.float32))
    raw = random.integers(0, 256, (rows, layout.row_bytes(cols)), dtype=np.uint8)
    if layout.codec in EIGHT_BIT_FLOATS:
        raw -= (raw & 127 == 127).astype(np.uint8)
    if layout.row_header:
        raw[:, :4] = _f32(random, rows, scales).view(np.uint8).reshape(rows, 4)
    step = layout.scale_bytes + layout.block * layout.code_bits // 8
    for at in range(layout.row_header, raw.shape[1], step):
        _set_scales(form, raw[:, at : at + step], random, scales)
    return raw


def _set_scales(form: str, block: Bytes, random: np.random.Generator, scales: Scales) -> None:
    """Scales of one block of every row, [rows, bytes of the block]."""
    rows = len(block)

    def halves(at: int) -> None:
        block[:, at : at + 2] = _signed(random, _HALVES[scales], rows, 16).astype("<u2").view(np.uint8).reshape(rows, 2)

    if form in ("mxfp4", "mxfp4_pairs", "mxfp8"):
        block[:, 0] = random.integers(*_E8M0[scales], rows, endpoint=True)
    elif form == "nvfp4":
        block[:, :2] = _signed(random, _E4M3[scales], 2 * rows, 8).reshape(rows, 2)
    elif form == "fp8":
        block[:, :4] = _f32(random, rows, scales).view(np.uint8).reshape(rows, 4)
    elif form in _SCALES_BEHIND:
        for at in _SCALES_BEHIND[form]:
            halves(at)
    else:
        halves(0)
    if form in ("q4_1", "q5_1", "q4_k", "q5_k"):
        halves(2)
    if form in ("int4_32z", "int4_128z"):
        block[:, 2], block[:, 3] = random.integers(0, 17, rows), 0


def _signed(random: np.random.Generator, span: tuple[int, int], count: int, bits: int) -> NDArray[np.int64]:
    sign = random.integers(0, 2, count) << (bits - 1)
    return random.integers(*span, count, endpoint=True) | sign


def _f32(random: np.random.Generator, count: int, scales: Scales) -> NDArray[np.float32]:
    if scales == "zero":
        return np.zeros(count, np.float32)
    size = random.uniform(0.5, 4, count) * random.choice([-1.0, 1.0], count)
    return np.ldexp(size, random.integers(*_POWERS[scales], count, endpoint=True)).astype(np.float32)


def _plain(form: str, values: NDArray[np.float32]) -> Bytes:
    if form == "bf16":
        return np.ascontiguousarray(values.view(np.uint16)[:, 1::2]).view(np.uint8)
    return values.astype(np.float16 if form == "f16" else np.float32).view(np.uint8)
