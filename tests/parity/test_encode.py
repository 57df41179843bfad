"""Rounding values to raw rows: against the numpy twin, and by what becomes of the values."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine import _native

from .blocks_numpy import Bytes, Floats, read_form, values
from .encode_numpy import encode
from .raw_numpy import random_raw

FORMS = ("q8_0", "mxfp4", "nvfp4")
KINDS = ("normal", "outliers", "sizes", "tiny", "huge", "ties", "zeros", "one", "negative")


def matrix(kind: str, rows: int, cols: int, random: np.random.Generator) -> Floats:
    """Values of one kind; none is too large for q8_0."""
    normal = random.standard_normal((rows, cols)).astype(np.float32)
    if kind == "outliers":
        return np.where(random.random((rows, cols)) < 0.02, 50 * normal, normal)
    if kind == "sizes":
        return np.ldexp(normal, random.integers(-60, 18, (rows, cols)))
    if kind == "tiny":
        return np.ldexp(normal, random.integers(-149, -120, (rows, cols)))
    if kind == "huge":
        return normal * np.float32(1e6)
    if kind == "ties":
        return random.integers(-24, 25, (rows, cols)).astype(np.float32) / 4
    if kind == "zeros":
        return np.where(random.random((rows, cols)) < 0.5, np.float32(0), np.float32(-0.0))
    if kind == "one":
        return np.where(random.permutation(cols) == 0, normal, np.float32(0))
    return -np.abs(normal) if kind == "negative" else normal


def decoded(form: str, raw: Bytes, cols: int) -> Floats:
    return values(read_form(form, raw, cols))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", KINDS)
def test_rows_are_those_of_the_twin(form: str, kind: str) -> None:
    for rows, cols in ((1, 32), (7, 64), (20, 416)):
        x = matrix(kind, rows, cols, np.random.default_rng(rows))
        np.testing.assert_array_equal(_native.encode_rows(form, x), encode(form, x), err_msg=f"{rows} x {cols}")


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    form=st.sampled_from(FORMS),
    bits=st.lists(st.integers(0, 2**32 - 1), min_size=32, max_size=32),
    size=st.integers(-140, 15),
)
def test_any_finite_values_give_the_row_of_the_twin(form: str, bits: list[int], size: int) -> None:
    mantissas = np.asarray(bits, np.uint32).view(np.int32).astype(np.float64) / 2**31
    x = np.ldexp(mantissas, size).astype(np.float32)[None]
    np.testing.assert_array_equal(_native.encode_rows(form, x), encode(form, x))


@pytest.mark.parametrize(("form", "share"), [("q8_0", 0.006), ("mxfp4", 0.12), ("nvfp4", 0.095)])
def test_ordinary_values_lose_little(form: str, share: float) -> None:
    x = matrix("normal", 64, 1024, np.random.default_rng(0))
    error = decoded(form, _native.encode_rows(form, x), 1024) - x
    assert np.sqrt(np.mean(error**2)) <= share * np.sqrt(np.mean(x**2))


def test_no_value_moves_by_more_than_half_a_step_of_q8_0() -> None:
    x = matrix("outliers", 16, 512, np.random.default_rng(1))
    raw = _native.encode_rows("q8_0", x)
    d = raw.reshape(16, -1, 34)[..., :2].copy().view(np.float16).astype(np.float32)
    error = np.abs(decoded("q8_0", raw, 512) - x).reshape(16, -1, 32)
    # The largest value may be cut to 127 steps where fp16 rounded the step down, by half a unit in 2048.
    assert (error <= d * 0.5001 + np.abs(x).reshape(16, -1, 32).max(2, keepdims=True) / 2048).all()


@pytest.mark.parametrize("form", ["mxfp4", "nvfp4"])
def test_values_of_the_form_itself_are_kept(form: str) -> None:
    """Whatever a checkpoint in that form holds comes back as it was."""
    raw = random_raw(form, 32, 256, np.random.default_rng(2))
    if form == "nvfp4":  # as its own encoder has them: the largest scale is 448, and its block reaches 6
        blocks = raw[:, 4:].reshape(32, -1, 18)
        blocks[:, 0, 0], blocks[:, 0, 2] = 0x7E, 0x77
        raw = np.concatenate([np.full((32, 1), 2.0**-9, np.float32).view(np.uint8), blocks.reshape(32, -1)], 1)
    x = decoded(form, raw, 256)
    again = decoded(form, _native.encode_rows(form, x), 256)
    if form == "mxfp4":
        np.testing.assert_array_equal(again, x)
    else:  # a half without 6 or 4 may take another scale, under which its values are not all exact
        codes = read_form(form, raw, 256).codes.reshape(32, -1, 16) & 7
        whole = np.repeat((codes == 7).any(2) | (codes == 6).any(2), 16, 1)
        np.testing.assert_array_equal(again[whole], x[whole])
        assert whole.mean() > 0.5


def test_mxfp4_takes_the_better_of_two_scales() -> None:
    x = np.zeros((2, 32), np.float32)
    x[0, :3] = 7, 0.5, 0.5  # 6 and two halves under the scale 1: error 1; 8, 0, 0 under 2: 1 + 0.5
    x[1, :3] = 7.9, 2, 4
    raw = _native.encode_rows("mxfp4", x)
    assert raw[:, 0].tolist() == [127, 128]
    np.testing.assert_array_equal(decoded("mxfp4", raw, 32)[:, :3], [[6, 0.5, 0.5], [8, 2, 4]])


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_values_that_are_no_numbers_are_refused_with_their_place(form: str, bad: float) -> None:
    x = np.ones((5, 96), np.float32)
    x[3, 70] = bad
    with pytest.raises(ValueError, match="row 3, block 2 has a value that is no finite number"):
        _native.encode_rows(form, x)


@pytest.mark.parametrize(("form", "largest"), [("q8_0", 8.3e6), ("mxfp4", 2.97e38), ("nvfp4", 2.97e38)])
def test_what_is_too_large_is_refused_and_what_is_not_stays_finite(form: str, largest: float) -> None:
    x = np.full((1, 64), largest, np.float32)
    x[0, 1] = -largest
    np.testing.assert_allclose(decoded(form, _native.encode_rows(form, x), 64), x, rtol=0.2)
    x[0, 40] *= np.float32(1.01)
    with pytest.raises(ValueError, match="row 0, block 1 has a value too large"):
        _native.encode_rows(form, x)


@pytest.mark.parametrize(
    ("form", "cols", "sentence"),
    [("q4_k", 256, "cannot be rounded"), ("mxfp4_pairs", 32, "cannot be rounded"), ("nothing", 32, "unknown")]
    + [(form, cols, "no row") for form in FORMS for cols in (0, 31, 48)],
)
def test_what_cannot_be_encoded_is_refused(form: str, cols: int, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        _native.encode_rows(form, np.zeros((1, cols), np.float32))
