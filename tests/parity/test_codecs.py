"""The numpy twin of the packed layout, against the gguf package's dequantisation."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
from numpy.typing import NDArray

from .codecs_numpy import CODINGS, FLOATS, pack, unpack

SHAPES = [(1, 32), (16, 64), (17, 96), (31, 160), (48, 32)]
TYPES = {name: gguf.GGMLQuantizationType[name.upper()] for name in (*CODINGS, *FLOATS)}


def raw_rows(codec: str, rows: int, cols: int, seed: int = 0) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
    """Random rows as a checkpoint keeps them, and the values that the gguf package reads in them."""
    values = np.random.default_rng(seed).standard_normal((rows, cols), dtype=np.float32)
    raw = gguf.quantize(values, TYPES[codec]).reshape(rows, -1).view(np.uint8)
    return raw, gguf.dequantize(raw, TYPES[codec]).reshape(rows, cols)


@pytest.mark.parametrize("codec", [*CODINGS, *FLOATS])
@pytest.mark.parametrize(("rows", "cols"), SHAPES)
def test_values_survive_packing(codec: str, rows: int, cols: int) -> None:
    raw, values = raw_rows(codec, rows, cols)
    np.testing.assert_array_equal(unpack(codec, rows, cols, pack(codec, raw, cols)), values)


@pytest.mark.parametrize("codec", FLOATS)
def test_columns_of_floats_are_padded_to_fours(codec: str) -> None:
    raw, values = raw_rows(codec, 5, 7)
    packed = pack(codec, raw, 7)
    assert packed.size == 16 * 8 * FLOATS[codec]
    np.testing.assert_array_equal(unpack(codec, 5, 7, packed), values)


def test_the_first_line_of_codes_is_laid_out_as_the_page_says() -> None:
    raw, _ = raw_rows("q4_0", 16, 32)
    line = pack("q4_0", raw, 32)[0, 64:128].reshape(16, 4)
    quants = raw[:, 2:]
    codes = np.concatenate([quants & 15, quants >> 4], 1)
    np.testing.assert_array_equal(line, codes[:, :4] | codes[:, 4:8] << 4)
