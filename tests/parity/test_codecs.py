"""The numpy twin of the packed layout, against decoders that others wrote: the gguf package, and torch's float8."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from engine.files.codecs import CODECS
from engine.files.codecs import FORMS as LAYOUTS

from .blocks_numpy import CODINGS, FLOATS, FORMS, Bytes, e4m3, plain_values, read_form, values
from .codecs_numpy import pack, read_tiles, unpack
from .raw_numpy import SCALES, Scales, random_raw

SHAPES = [(1, 32), (16, 64), (17, 96), (31, 160), (48, 32), (5, 288)]
GGML = (
    "q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "mxfp4", "iq4_nl", "iq4_xs", "q2_k", "q3_k", "q4_k", "q5_k", "q6_k",
    *FLOATS,
)  # fmt: skip
NEITHER = ("mxfp4_pairs", "nvfp4", "int4_32", "int4_32z", "int4_128z", "fp8", "mxfp8")


def shapes_of(form: str) -> list[tuple[int, int]]:
    """Rows and columns to try: odd ones, as far as the form allows."""
    unit = CODECS[LAYOUTS[form].codec].cols_unit
    if unit == 1:
        return [*SHAPES, (3, 1), (18, 5), (33, 100), (7, 127), (2, 129), (16, 132), (4, 255)]
    return SHAPES if unit == 32 else [(rows, 8 * cols) for rows, cols in SHAPES[:3]]


EACH = [(form, *shape) for form in FORMS for shape in shapes_of(form)]


def decoded(form: str, raw: Bytes, cols: int) -> NDArray[np.float32]:
    """The weights of raw rows."""
    if form in FLOATS:
        return plain_values(form, raw.reshape(len(raw), cols, FLOATS[form]))
    return values(read_form(form, raw, cols))


@pytest.mark.parametrize(("form", "rows", "cols"), EACH)
@pytest.mark.parametrize("scales", SCALES)
def test_values_survive_packing(form: str, rows: int, cols: int, scales: Scales) -> None:
    raw = random_raw(form, rows, cols, np.random.default_rng(rows * cols), scales)
    packed = pack(form, raw, cols)
    assert packed.shape == (-(-rows // 16), CODECS[FORMS[form]].tile_bytes(cols))
    np.testing.assert_array_equal(unpack(FORMS[form], rows, cols, packed), decoded(form, raw, cols))


@pytest.mark.parametrize("form", GGML)
@pytest.mark.parametrize("scales", SCALES)
def test_raw_rows_are_what_the_gguf_package_reads_in_them(form: str, scales: Scales) -> None:
    raw = random_raw(form, 19, 512, np.random.default_rng(4), scales)
    with np.errstate(over="ignore", invalid="ignore"):
        expected = gguf.dequantize(raw, gguf.GGMLQuantizationType[form.upper()]).reshape(19, 512)
    ours = decoded(form, raw, 512)
    # The package rounds a product and a sum apart where ours are rounded once: half a unit of the larger part.
    usable = np.isfinite(expected)
    assert usable.any()
    np.testing.assert_allclose(
        ours[usable], expected[usable], rtol=1e-6, atol=float(np.abs(expected[usable]).max()) * 1e-6
    )
    if scales == "ordinary":
        np.testing.assert_array_equal(ours, expected)


def test_codes_of_8_bit_floats_are_those_of_torch() -> None:
    codes = np.arange(256, dtype=np.uint8)
    expected = torch.from_numpy(codes).view(torch.float8_e4m3fn).float().numpy()
    np.testing.assert_array_equal(e4m3(codes), expected)
    assert np.isnan(expected[[0x7F, 0xFF]]).all()


def test_powers_of_two_are_those_of_torch() -> None:
    scales = np.arange(255, dtype=np.uint8)
    raw = np.zeros((255, 17), np.uint8)
    raw[:, 0], raw[:, 1] = scales, 2  # the first weight is 1.0
    expected = torch.from_numpy(scales).view(torch.float8_e8m0fnu).float().numpy()
    np.testing.assert_array_equal(values(read_form("mxfp4_pairs", raw, 32))[:, 0], expected)


@pytest.mark.parametrize("form", NEITHER)
def test_raw_rows_are_what_their_description_says(form: str) -> None:
    """Block after block, weight after weight, for the forms that are this project's own."""
    rows, cols = 3, 160
    raw = random_raw(form, rows, cols, np.random.default_rng(9))
    expected = [[_weight(form, row, cols, k) for k in range(cols)] for row in raw]
    np.testing.assert_array_equal(decoded(form, raw, cols), np.asarray(expected, np.float32))


def _weight(form: str, row: Bytes, cols: int, k: int) -> float:
    layout = LAYOUTS[form]
    factor = float(row[:4].view(np.float32)[0]) if layout.row_header else 1.0
    block, i = divmod(k, layout.block)
    at = layout.row_header + block * (layout.scale_bytes + layout.block * layout.code_bits // 8)
    codes = row[at + layout.scale_bytes :]
    if layout.code_bits == 8:
        number = float(torch.tensor([int(codes[i])], dtype=torch.uint8).view(torch.float8_e4m3fn).float())
        if form == "fp8":
            return float(row[at : at + 4].view(np.float32)[0]) * number
        return 2.0 ** (int(row[at]) - 127) * number
    code = int(codes[i // 2]) >> 4 * (i % 2) & 15
    if form in ("mxfp4_pairs", "nvfp4"):
        number = (-1 if code & 8 else 1) * (0, 0.5, 1, 1.5, 2, 3, 4, 6)[code & 7]
        if form == "mxfp4_pairs":
            return 2.0 ** (int(row[at]) - 127) * number
        scale = torch.tensor([int(row[at + i // 16])], dtype=torch.uint8).view(torch.float8_e4m3fn).float()
        return float(np.float32(float(scale) * number * factor))
    zero = 8 if form == "int4_32" else int(row[at + 2 : at + 4].view(np.uint16)[0])
    return float(np.float32(float(row[at : at + 2].view(np.float16)[0]) * (code - zero) * factor))


@pytest.mark.parametrize("codec", FLOATS)
def test_columns_of_floats_are_padded_to_fours(codec: str) -> None:
    raw = random_raw(codec, 5, 7, np.random.default_rng(1))
    packed = pack(codec, raw, 7)
    assert packed.size == 16 * 8 * FLOATS[codec]
    np.testing.assert_array_equal(unpack(codec, 5, 7, packed), decoded(codec, raw, 7))


def test_the_first_line_of_codes_is_laid_out_as_the_page_says() -> None:
    raw = random_raw("q4_0", 16, 32, np.random.default_rng(2))
    line = pack("q4_0", raw, 32)[0, 64:128].reshape(16, 4)
    quants = raw[:, 2:]
    codes = np.concatenate([quants & 15, quants >> 4], 1)
    np.testing.assert_array_equal(line, codes[:, :4] | codes[:, 4:8] << 4)


@pytest.mark.parametrize("codec", CODINGS)
def test_rows_beyond_the_last_are_zero_weights(codec: str) -> None:
    cols = CODECS[codec].cols_unit * (256 // CODECS[codec].cols_unit)
    packed = pack(codec, random_raw(codec, 3, cols, np.random.default_rng(6)), cols)
    everything = read_tiles(codec, 16, cols, packed)
    assert not values(everything)[3:].any()
    assert not everything.own[3:].any()
    assert (everything.codes[3:] == CODINGS[codec].zero).all()
