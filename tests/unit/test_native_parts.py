"""One operation of the native executor at a time, on rows that are put into its buffers: how a device borrows it."""

from __future__ import annotations

import numpy as np
import pytest

from engine import _native
from engine.program.ir import RopeTable
from tests.unit.native_model import HEAD_DIM, HEADS, KV_HEADS, VOCAB, RandomModel


def model_with_attention() -> tuple[RandomModel, int]:
    """A model, and which of its operations is the attention."""
    model = RandomModel()
    model.attention(window=9, sinks=True)
    return model, next(i for i, op in enumerate(model.ops) if op.kind == "attention")


def test_attention_on_rows_put_into_its_buffers_is_that_of_a_whole_step() -> None:
    model, attention = model_with_attention()
    program = model.program()
    settings = {"threads": 2, "pages": 4, "max_tokens": 32}
    whole, borrowed = (_native.Executor(program, model.dense, [], **settings) for _ in range(2))
    for start, count in ((0, 20), (20, 1), (21, 11)):
        tokens = np.random.default_rng(start).integers(0, VOCAB, count).astype(np.int32)
        positions = np.arange(start, start + count, dtype=np.int32)
        batch = (tokens, positions, np.array([0, count], np.int32), [np.array([3, 1], np.int32)], tokens[:0])
        whole.step(*batch, 0, attention + 1)
        for name, width in (("q0", HEADS * HEAD_DIM), ("k0", KV_HEADS * HEAD_DIM), ("v0", KV_HEADS * HEAD_DIM)):
            rows = whole.buffer(name)
            assert rows.shape == (count, width)
            borrowed.write_buffer(name, rows)
        borrowed.step(*batch, attention, attention + 1)
        np.testing.assert_array_equal(borrowed.buffer("o0"), whole.buffer("o0"))


def test_rows_that_a_buffer_does_not_hold_are_refused() -> None:
    model, _ = model_with_attention()
    executor = _native.Executor(model.program(), model.dense, [], pages=4, max_tokens=2)
    for name, shape in (("q0", (1, 3)), ("q0", (3, HEADS * HEAD_DIM)), ("nowhere", (1, 1)), ("logits", (1, VOCAB))):
        with pytest.raises(ValueError, match=name if name != "logits" else "output"):
            executor.write_buffer(name, np.zeros(shape, np.float32))


STILL = (0.0, 1, 0)


def test_angles_grow_by_the_logarithm_of_their_step() -> None:
    positions = np.array([0, 2, 3, 100], np.int32)
    cosine, sine = (np.full((4, 1), np.nan, np.float32) for _ in range(2))
    _native.rope_angles(np.zeros(1, np.float32), 2.0, (0.5, 4, 1), positions, cosine, sine)
    steps = np.log1p([0, 0, 1, 25]).astype(np.float32)
    np.testing.assert_array_equal(cosine[:, 0], np.float32(2) * (np.float32(1) + np.float32(0.5) * steps))
    assert not sine.any()
    with pytest.raises(ValueError, match="at least one position"):
        _native.rope_angles(np.zeros(1, np.float32), 1.0, (0.5, 0, 1), positions, cosine, sine)


def test_angles_are_products_in_f32_whose_cosines_are_taken_in_double() -> None:
    table = RopeTable((1.0, 0.3, 1e-4), scale=1.25)
    positions = np.array([0, 7, 131071], np.int32)
    cosine, sine = (np.full((3, 3), np.nan, np.float32) for _ in range(2))
    _native.rope_angles(np.asarray(table.inv_freq, np.float32), table.scale, STILL, positions, cosine, sine)
    angles = (positions.astype(np.float32)[:, None] * np.asarray(table.inv_freq, np.float32)).astype(np.float64)
    np.testing.assert_array_equal(cosine, np.cos(angles).astype(np.float32) * np.float32(table.scale))
    np.testing.assert_array_equal(sine, np.sin(angles).astype(np.float32) * np.float32(table.scale))
    with pytest.raises(ValueError, match="a row a position"):
        _native.rope_angles(np.ones(2, np.float32), 1.0, STILL, positions, cosine, sine)
