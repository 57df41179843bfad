"""Matrices of every codec, ordinary and extreme, and the kernels that multiply them, run on a simulated device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from engine import _native
from engine.device import products
from engine.device.sim import SimDriver
from engine.files.codecs import CODECS, FORMS
from engine.files.ftw.manifest import Shape
from engine.measure.example_rows import random_rows
from tests.unit.any_bits import pack_rows

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]

UNTOUCHED = 0xDEADBEEF

# Scales at the ends of what a packed matrix may hold.
_HALVES = np.array([0, 0x8000, 1, 0x83FF, 0x0400, 0x3C00, 0xBC00, 0x7BFF, 0xFBFF], np.uint16)
_E4M3 = np.array([0x00, 0x80, 0x01, 0x87, 0x08, 0x38, 0x7E, 0xFE], np.uint8)
_E8M0 = np.array([0, 1, 2, 126, 127, 128, 253, 254], np.uint8)
_SINGLES = np.array([0, 0x80000000, 1, 0x007FFFFF, 0x00800000, 0x3F800000, 0x7F7FFFFF, 0xFF7FFFFF], np.uint32)
_SCALES: dict[str, tuple[tuple[int, ...], npt.NDArray[Any]]] = {
    "q8_0": ((0,), _HALVES),
    "q4_0": ((0,), _HALVES),
    "q4_1": ((0, 2), _HALVES),
    "q5_0": ((0,), _HALVES),
    "q5_1": ((0, 2), _HALVES),
    "mxfp4": ((0,), _E8M0),
    "iq4_nl": ((0,), _HALVES),
    "iq4_xs": ((0,), _HALVES),
    "q2_k": ((80, 82), _HALVES),
    "q3_k": ((108,), _HALVES),
    "q4_k": ((0, 2), _HALVES),
    "q5_k": ((0, 2), _HALVES),
    "q6_k": ((208,), _HALVES),
    "nvfp4": ((0, 1), _E4M3),
    "int4_32": ((0,), _HALVES),
    "int4_32z": ((0,), _HALVES),
    "int4_128z": ((0,), _HALVES),
    "fp8": ((0,), _SINGLES),
    "mxfp8": ((0,), _E8M0),
}


@dataclass(frozen=True)
class Matrix:
    codec: str
    rows: int
    cols: int
    packed: Bytes

    @property
    def tiles(self) -> int:
        return -(-self.rows // 16)

    def times(self, x: Floats) -> Floats:
        """What the scalar twin makes of it: [tokens, rows]."""
        return _native.Probe(1, "scalar").matmul(self.codec, self.packed, self.rows, self.cols, x)

    def with_a_flipped_weight(self) -> Matrix:
        """One bit of one weight of row 0 differs, in its last whole block or first column."""
        packed = self.packed.copy()
        codec = CODECS[self.codec]
        begin = codec.tile_bytes(self.cols) - codec.code_bytes * 16 if codec.block > 1 else 0
        packed[begin + (codec.code_bytes - 1 if codec.block == 1 else 0)] ^= 0x10 if codec.kind == "integer" else 0x80
        return Matrix(self.codec, self.rows, self.cols, packed)


def random_matrix(codec: str, rows: int, cols: int, random: np.random.Generator, extreme: bool = False) -> Matrix:
    """A matrix of random codes whose scales are ordinary, or at the ends of their range."""
    raw = random_rows(Shape(codec, rows, cols), random)
    if extreme:
        _make_extreme(codec, raw, random)
    packed = np.zeros(_native.packed_bytes(codec, rows, cols), np.uint8)
    pack_rows(codec, raw, cols, packed, packed.size // -(-rows // 16))
    return Matrix(codec, rows, cols, packed)


def _make_extreme(codec: str, raw: Bytes, random: np.random.Generator) -> None:
    form = FORMS[codec]
    if form.block == 1:
        spoilt = random.random(raw.shape) < 0.05  # Inf and NaN too: the values of plain codecs are the user's
        raw[spoilt] = random.integers(0, 256, int(spoilt.sum()), dtype=np.uint8)
        return
    offsets, choices = _SCALES[codec]
    step = form.scale_bytes + form.block * form.code_bits // 8
    for start in range(form.row_header, raw.shape[1], step):
        for offset in offsets:
            scales = random.choice(choices, len(raw)).view(np.uint8).reshape(len(raw), -1)
            extreme = random.random(len(raw)) < 0.3
            raw[extreme, start + offset : start + offset + scales.shape[1]] = scales[extreme]
    if form.row_header:
        factors = random.choice(np.array([0, 1e-38, -1, 1e30, 2**-20], np.float32), len(raw))
        raw[:, : form.row_header] = factors.view(np.uint8).reshape(len(raw), -1)


def random_input(tokens: int, cols: int, random: np.random.Generator) -> Floats:
    """Rows of activations: ordinary ones, blocks of zeros, tiny and huge values, single Inf and NaN."""
    x = random.standard_normal((tokens, cols), dtype=np.float32)
    for row in x:
        for begin in range(0, cols, 32):
            block = row[begin : begin + 32]
            kind = random.integers(0, 12)
            if kind == 0:
                block[:] = 0
            elif kind == 1:
                block *= np.float32(2.0**-118)
            elif kind == 2:
                block *= np.float32(2.0**120)
            elif kind == 3:
                block[random.integers(0, len(block))] *= np.float32(1e4)
    for row in x[2::5]:
        row[random.integers(0, cols)] = random.choice(np.array([np.inf, -np.inf, np.nan], np.float32))
    return x


def bits(values: Floats) -> npt.NDArray[np.uint32]:
    return np.ascontiguousarray(values).view(np.uint32)


class Device:
    """A simulated device and what lies on it for as long as it lives."""

    def __init__(self, seed: int = 0) -> None:
        self.driver = SimDriver(1 << 30, seed=seed)
        self._stream = self.driver.stream()
        self._kept: list[Any] = []

    def room(self, size: int) -> int:
        """The address of so many zeros."""
        memory = self.driver.allocate(max(size, 1))
        self._kept.append(memory)
        return memory.address

    def put(self, values: npt.NDArray[Any]) -> int:
        address = self.room(values.nbytes)
        if values.nbytes:
            self.driver.upload(address, np.ascontiguousarray(values))
        return address

    def number(self, value: int) -> int:
        return self.put(np.array([value], np.int32))

    def get(self, address: int, shape: tuple[int, ...], dtype: Any) -> npt.NDArray[Any]:
        out = np.zeros(shape, dtype)
        self.driver.download(address, out)
        return out

    def untouched(self, rows: int, stride: int) -> int:
        """Rows that show where they were not written."""
        return self.put(np.full((rows, stride), UNTOUCHED, np.uint32))

    def run(self, name: str, grid: tuple[int, int, int], block: int, *args: int | float) -> None:
        self.driver.launch(self._stream, self.driver.kernel(name), grid, block, args)
        self.driver.synchronise(self._stream)

    def input(self, codec: str, x: Floats) -> tuple[int, int]:
        """Rows of activations as the codec's kernels read them: their address, and the bytes from one to the next."""
        tokens, cols = x.shape
        stride = products.input_bytes(codec, cols)
        if CODECS[codec].is_float:
            wide = np.full((tokens, stride // 4), np.nan, np.float32)  # what pads a row must not be read
            wide[:, :cols] = x
            return self.put(wide), stride
        out = self.room(tokens * stride)
        self.run(
            "pack_q16",
            products.pack_grid(cols, tokens),
            products.PACK_THREADS,
            *(self.put(x), cols, 0, self.number(tokens), 1, cols, out, stride),
        )
        return out, stride
