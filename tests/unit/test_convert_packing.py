"""The native packer as conversion calls it, against its numpy twin: columns of floats, turns, and refusals."""

from __future__ import annotations

import numpy as np
import pytest

from engine.files.codecs import CODECS
from engine.files.packing import native_pack
from tests.parity.codecs_numpy import pack
from tests.unit.tiny_ftw import raw_weights


@pytest.mark.parametrize("codec", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("cols", [1, 2, 3, 5, 31])
def test_float_columns_need_no_whole_blocks(codec: str, cols: int) -> None:
    raw = raw_weights(codec, 18, cols, seed=1)
    expected = pack(codec, raw, cols)
    packed = np.full(expected.size, 0xEE, np.uint8)
    native_pack(codec, raw, cols, packed, expected.shape[1])
    assert (packed.reshape(expected.shape) == expected).all()


@pytest.mark.parametrize("codec", sorted(CODECS))
def test_tiles_in_turn_leave_the_other_matrix_alone(codec: str) -> None:
    raw = raw_weights(codec, 40, 64, seed=2)
    expected = pack(codec, raw, 64)
    out = np.full((3, 2, expected.shape[1]), 0xEE, np.uint8)
    native_pack(codec, raw, 64, out.reshape(-1)[expected.shape[1] :], 2 * expected.shape[1])
    assert (out[:, 1] == expected).all()
    assert (out[:, 0] == 0xEE).all()


@pytest.mark.parametrize("codec", sorted(CODECS))
def test_an_output_that_is_too_small_is_refused(codec: str) -> None:
    raw = raw_weights(codec, 32, 64, seed=3)
    size = CODECS[codec].packed_bytes(32, 64)
    with pytest.raises(ValueError, match="do not fit"):
        native_pack(codec, raw, 64, np.empty(size - 1, np.uint8), CODECS[codec].tile_bytes(64))
