"""Random weights as a checkpoint holds them, in any codec: what a measurement multiplies with."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from engine.files.codecs import FORMS, Form
from engine.files.ftw.manifest import Shape

Bytes = NDArray[np.uint8]


def random_rows(shape: Shape, random: np.random.Generator) -> Bytes:
    """Raw rows of the form of the codec's own name: values of about 0.1, in blocks whose scales differ."""
    form = FORMS[shape.codec]
    if form.block == 1:
        values = random.standard_normal((shape.rows, shape.cols), dtype=np.float32)
        return _plain(form.name, values * np.float32(0.1))
    raw = random.integers(0, 256, (shape.rows, form.row_bytes(shape.cols)), dtype=np.uint8)
    if form.code_bits == 8 and form.name != "q8_0":
        raw -= (raw & 127 == 127).astype(np.uint8)  # not a number in e4m3
    if form.row_header:
        raw[:, : form.row_header] = np.frombuffer(np.float32(1).tobytes(), np.uint8)
    step = form.scale_bytes + form.block * form.code_bits // 8
    for start in range(form.row_header, raw.shape[1], step):
        _set_scales(form, raw[:, start : start + step], random)
    return raw


def _set_scales(form: Form, block: Bytes, random: np.random.Generator) -> None:
    """Gives a block of every row, [rows, bytes of the block], scales of an ordinary size."""
    offsets, draw = _SCALES[form.name]
    for offset in offsets:
        scales = draw(random, len(block))
        size = scales.dtype.itemsize
        block[:, offset : offset + size] = scales[:, None].view(np.uint8)
    if form.name in ("int4_32z", "int4_128z"):
        block[:, 2], block[:, 3] = random.integers(0, 17, len(block)), 0


def _halves(size: float) -> Callable[[np.random.Generator, int], NDArray[np.generic]]:
    return lambda random, count: (random.uniform(0.5, 1.5, count) * size).astype(np.float16)


def _codes(low: int, high: int) -> Callable[[np.random.Generator, int], NDArray[np.generic]]:
    return lambda random, count: random.integers(low, high, count, dtype=np.uint8)


# Of each form: where scales lie in a block, and how to draw one.
_SCALES: dict[str, tuple[tuple[int, ...], Callable[[np.random.Generator, int], NDArray[np.generic]]]] = {
    "q8_0": ((0,), _halves(2**-10)),
    "q4_0": ((0,), _halves(2**-6)),
    "q4_1": ((0, 2), _halves(2**-6)),
    "q5_0": ((0,), _halves(2**-7)),
    "q5_1": ((0, 2), _halves(2**-7)),
    "mxfp4": ((0,), _codes(120, 124)),
    "iq4_nl": ((0,), _halves(2**-10)),
    "iq4_xs": ((0,), _halves(2**-15)),
    "q2_k": ((80, 82), _halves(2**-7)),
    "q3_k": ((108,), _halves(2**-10)),
    "q4_k": ((0, 2), _halves(2**-11)),
    "q5_k": ((0, 2), _halves(2**-12)),
    "q6_k": ((208,), _halves(2**-14)),
    "nvfp4": ((0, 1), _codes(0x08, 0x18)),
    "int4_32": ((0,), _halves(2**-6)),
    "int4_32z": ((0,), _halves(2**-6)),
    "int4_128z": ((0,), _halves(2**-6)),
    "fp8": ((0,), lambda random, count: (random.uniform(0.5, 1.5, count) * 2**-10).astype(np.float32)),
    "mxfp8": ((0,), _codes(116, 119)),
}


def _plain(form: str, values: NDArray[np.float32]) -> Bytes:
    if form == "bf16":
        return np.ascontiguousarray(values.view(np.uint16)[:, 1::2]).view(np.uint8)
    return values.astype(np.float16 if form == "f16" else np.float32).view(np.uint8)
