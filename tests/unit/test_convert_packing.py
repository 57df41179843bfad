"""The native packer as conversion calls it, against its numpy twin: columns of floats, turns, and refusals."""

from __future__ import annotations

import numpy as np
import pytest

from engine.files.codecs import CODECS
from engine.files.conversion.packing import native_pack
from tests.parity.codecs_numpy import pack
from tests.parity.raw_numpy import random_raw

COLS = 256  # a whole block of every codec


@pytest.mark.parametrize("codec", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("cols", [1, 2, 3, 5, 31])
def test_float_columns_need_no_whole_blocks(codec: str, cols: int) -> None:
    raw = random_raw(codec, 18, cols, np.random.default_rng(1))
    expected = pack(codec, raw, cols)
    packed = np.full(expected.size, 0xEE, np.uint8)
    native_pack(codec, raw, cols, packed, expected.shape[1])
    assert (packed.reshape(expected.shape) == expected).all()


@pytest.mark.parametrize("codec", sorted(CODECS))
def test_tiles_in_turn_leave_the_other_matrix_alone(codec: str) -> None:
    raw = random_raw(codec, 40, COLS, np.random.default_rng(2))
    expected = pack(codec, raw, COLS)
    out = np.full((3, 2, expected.shape[1]), 0xEE, np.uint8)
    native_pack(codec, raw, COLS, out.reshape(-1)[expected.shape[1] :], 2 * expected.shape[1])
    assert (out[:, 1] == expected).all()
    assert (out[:, 0] == 0xEE).all()


@pytest.mark.parametrize("codec", sorted(CODECS))
def test_an_output_that_is_too_small_is_refused(codec: str) -> None:
    raw = random_raw(codec, 32, COLS, np.random.default_rng(3))
    size = CODECS[codec].packed_bytes(32, COLS)
    with pytest.raises(ValueError, match="do not fit"):
        native_pack(codec, raw, COLS, np.empty(size - 1, np.uint8), CODECS[codec].tile_bytes(COLS))
