"""Vectors out of checkpoint tensors: in several dimensions, in parts, and kept as what is added to one."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from engine.files.conversion.gather import Gather
from engine.files.sources.tensors import MemoryTensor
from engine.spec.layout import Piece, Vector

VALUES = np.asarray([0.25, -0.5, 1.0, 3.0, -2.0, 2.0**-9], np.float32)  # exact in bf16; one more than the last is not


def stored(form: str, shape: tuple[int, ...]) -> MemoryTensor:
    """VALUES in a form, row after row."""
    raw: npt.NDArray[np.generic] = {
        "f32": VALUES,
        "f16": VALUES.astype(np.float16),
        "bf16": (VALUES.view(np.uint32) >> 16).astype(np.uint16),
    }[form]
    return MemoryTensor(form, shape, raw.view(np.uint8).reshape(int(np.prod(shape[:-1])), -1))


@pytest.mark.parametrize("form", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("shape", [(6,), (3, 1, 2), (1, 1, 6, 1)])
def test_all_dimensions_are_one_row_of_values(form: str, shape: tuple[int, ...]) -> None:
    gather = Gather({"t": stored(form, shape)})
    np.testing.assert_array_equal(gather.values(Vector("v", 6, (Piece("t"),))), VALUES)
    np.testing.assert_array_equal(gather.values(Vector("v", 2, (Piece("t", start=1, stop=5, step=2),))), VALUES[1:5:2])


@pytest.mark.parametrize("form", ["f32", "f16", "bf16"])
def test_what_is_added_to_one_is_added_in_f32(form: str) -> None:
    values = Gather({"t": stored(form, (6,))}).values(Vector("v", 6, (Piece("t", plus=1.0),)))
    assert values.dtype == np.float32
    np.testing.assert_array_equal(values, VALUES + np.float32(1))


def test_parts_lie_end_to_end() -> None:
    gather = Gather({"a": stored("f32", (3, 1, 2)), "b": stored("bf16", (3, 1, 2))})
    np.testing.assert_array_equal(
        gather.values(Vector("v", 12, (Piece("a"), Piece("b")))), np.concatenate([VALUES, VALUES])
    )
