"""The native packer, unpacker and products against their numpy twins, bit for bit, on every instruction set."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine import _native
from engine.files.codecs import CODECS
from engine.files.codecs import FORMS as LAYOUTS
from tests.same_bits import assert_same_bits

from .blocks_numpy import CODINGS, EIGHT_BIT_FLOATS, FLOATS, FORMS, Bytes, Floats, plain_values, read_form, values
from .codecs_numpy import pack, unpack
from .products_numpy import fma, plain_product, product, quantise
from .raw_numpy import SCALES, Scales, random_raw
from .test_codecs import EACH

INTEGER = [codec for codec in CODINGS if codec not in EIGHT_BIT_FLOATS]
UNITS = {codec: CODECS[codec].cols_unit for codec in (*CODINGS, *FLOATS)}


def packed_by_native(form: str, raw: Bytes, cols: int) -> Bytes:
    codec = CODECS[LAYOUTS[form].codec]
    out = np.full(codec.packed_bytes(len(raw), cols), 0xEE, np.uint8)
    _native.pack_rows(form, raw, cols, out, codec.tile_bytes(cols))
    return out


def products(codec: str, packed: Bytes, rows: int, x: Floats) -> dict[str, Floats]:
    """[tokens, rows] by every instruction set of this machine."""
    return {isa: _native.Probe(1, isa).matmul(codec, packed, rows, x.shape[1], x) for isa in _native.isas()}


def expected_product(form: str, raw: Bytes, x: Floats) -> Floats:
    if form in FLOATS:
        return plain_product(form, raw, x.shape[1], x)
    return product(read_form(form, raw, x.shape[1]), x)


def test_the_tables_of_sizes_agree() -> None:
    assert _native.codecs() == list(CODECS)
    for name, codec in CODECS.items():
        for cols in {codec.cols_unit, 5 * codec.cols_unit, 9 * codec.cols_unit, 129 * codec.cols_unit}:
            assert _native.packed_bytes(name, 33, cols) == codec.packed_bytes(33, cols), (name, cols)


@pytest.mark.parametrize(("form", "rows", "cols"), EACH)
def test_packing_is_that_of_the_twin(form: str, rows: int, cols: int) -> None:
    raw = random_raw(form, rows, cols, np.random.default_rng(rows + cols), "any")
    expected, out = pack(form, raw, cols), packed_by_native(form, raw, cols)
    np.testing.assert_array_equal(out, expected.reshape(-1))
    codec = FORMS[form]
    np.testing.assert_array_equal(_native.unpack(codec, rows, cols, out), unpack(codec, rows, cols, expected))


@pytest.mark.parametrize("codec", [*CODINGS, *FLOATS])
@pytest.mark.parametrize("scales", SCALES)
def test_products_are_those_of_the_twin(codec: str, scales: Scales) -> None:
    random = np.random.default_rng(11)
    for rows in (1, 16, 33):
        for cols in columns(codec):
            raw = random_raw(codec, rows, cols, random, scales)
            x = activations(random, 7, cols)
            expected = expected_product(codec, raw, x)
            for isa, y in products(codec, packed_by_native(codec, raw, cols), rows, x).items():
                assert_same_bits(y, expected, f"{isa} {rows} x {cols}")


def columns(codec: str) -> list[int]:
    """Few and many blocks, odd ends."""
    if UNITS[codec] == 1:
        return [1, 4, 100, 129, 132, 260]
    return [UNITS[codec] * count for count in ((1, 2, 5) if UNITS[codec] == 256 else (1, 2, 3, 7, 9))]


def activations(random: np.random.Generator, tokens: int, cols: int) -> Floats:
    """A token of each kind: ordinary, with outliers, zeros, subnormal, huge, of many sizes, all of one size."""
    x = random.standard_normal((tokens, cols)).astype(np.float32)
    x[1] *= np.where(random.random(cols) < 0.02, 100, 1).astype(np.float32)
    x[2] = np.where(random.random(cols) < 0.5, 0.0, -0.0)
    x[3] *= np.float32(1e-40)
    x[4] *= np.float32(1e37)
    x[5] = np.ldexp(x[5], random.integers(-120, 100, cols))
    x[6] = random.choice(np.asarray([-1, 1], np.float32), cols)
    return x


@settings(max_examples=60, deadline=None, derandomize=True)
@given(data=st.data())
def test_any_bits_of_weights_and_activations_give_the_bits_of_the_twin(data: st.DataObject) -> None:
    codec = data.draw(st.sampled_from([*CODINGS, *FLOATS]))
    rows, tokens = data.draw(st.integers(1, 20)), data.draw(st.integers(1, 9))
    unit = UNITS[codec]
    cols = unit * data.draw(st.integers(1, 300 if unit == 1 else 512 // unit))
    random = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    raw = random_raw(codec, rows, cols, random, data.draw(st.sampled_from(SCALES)))
    x = random.integers(0, 2**32, (tokens, cols), dtype=np.uint32).view(np.float32)
    if not data.draw(st.booleans()):
        x = np.where(np.isfinite(x), x, np.float32(1))
    expected = expected_product(codec, raw, x)
    for isa, y in products(codec, packed_by_native(codec, raw, cols), rows, x).items():
        assert_same_bits(y, expected, f"{isa} {codec} {rows} x {cols}")


@pytest.mark.parametrize("codec", [*CODINGS, *FLOATS])
@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_spoils_its_token_alone(codec: str, poison: float) -> None:
    random, cols = np.random.default_rng(3), 256
    raw = random_raw(codec, 20, cols, random)
    packed, x = packed_by_native(codec, raw, cols), activations(random, 7, cols)
    clean = products(codec, packed, 20, x)
    x[3, 77] = poison
    for isa, y in products(codec, packed, 20, x).items():
        assert_same_bits(np.delete(y, 3, 0), np.delete(clean[isa], 3, 0), isa)
        if codec in INTEGER:
            assert (y[3].view(np.uint32) == 0x7FC00000).all(), isa
        else:
            assert not np.isfinite(y[3]).all(), isa


# Of others it has every bit.
LARGEST_CODES = {"q8_0": 0x80, "q5_0": 0x00, "q3_k": 0x00, "q6_k": 0x00, "iq4_nl": 0x00, "iq4_xs": 0x00}
CODES_FIRST = {"q3_k": 108, "q6_k": 192}  # bytes of codes of a block whose scales come after them; q3_k: scales too


@pytest.mark.parametrize("codec", INTEGER)
def test_the_largest_sums_are_exact(codec: str) -> None:
    """Every code at its largest magnitude, every activation at the limit of rounding: what int32 and f32 must hold."""
    cols = 512
    raw = random_raw(codec, 16, cols, np.random.default_rng(5))
    layout = LAYOUTS[codec]
    step = layout.scale_bytes + layout.block * layout.code_bits // 8
    for at in range(layout.row_header, raw.shape[1], step):
        codes = slice(at + layout.scale_bytes, at + step)
        if codec in CODES_FIRST:
            codes = slice(at, at + CODES_FIRST[codec])
        if codec == "q2_k":
            codes = slice(at, at + 80)  # and its scales and minima
        raw[:, codes] = LARGEST_CODES.get(codec, 0xFF)
        if codec in ("int4_32z", "int4_128z"):
            raw[:, codes], raw[:, at + 2], raw[:, at + 3] = 0, 16, 0
    blocks = read_form(codec, raw, cols)
    x = np.where(np.arange(2 * cols).reshape(2, cols) < cols, 1, -1).astype(np.float32)
    scales, q = quantise(x)
    assert (np.abs(q) == 32639).all()
    assert (scales == np.float32(1) / np.float32(32639)).all()
    for isa, y in products(codec, packed_by_native(codec, raw, cols), 16, x).items():
        assert_same_bits(y, product(blocks, x), isa)


@pytest.mark.parametrize("codec", CODINGS)
def test_a_product_is_near_that_of_its_values(codec: str) -> None:
    """The twin itself, against plain arithmetic in double precision: what it multiplies are the weights it unpacks."""
    random, cols = np.random.default_rng(8), 512
    raw = random_raw(codec, 24, cols, random)
    x = random.standard_normal((5, cols)).astype(np.float32)
    weights = values(read_form(codec, raw, cols)).astype(np.float64)
    size = np.abs(x).astype(np.float64) @ np.abs(weights).T
    assert (np.abs(product(read_form(codec, raw, cols), x) - x.astype(np.float64) @ weights.T) <= 1e-4 * size).all()


def test_fma_of_the_twin_rounds_once() -> None:
    """Where a rounding in double precision first would give another result."""
    a, b, c = np.float32(1 + 2**-12), np.float32(1 + 2**-12), np.float32(2.0**-60)
    # (1 + 2^-12)^2 = 1 + 2^-11 + 2^-24: half a unit above an even number; only what 2^-60 adds decides.
    assert fma(a, b, c) == np.float32(1 + 2**-11 + 2**-23)
    assert fma(a, b, -c) == np.float32(1 + 2**-11)


# --- refusals


@pytest.mark.parametrize(
    ("form", "at", "bad", "sentence"),
    [
        ("q5_1", 2, [0x00, 0x7C], "row 17, block 1 has a scale that is no finite number"),
        ("q2_k", 82, [0x00, 0x7C], "row 17, block 1 has a scale that is no finite number"),
        ("q3_k", 108, [0x00, 0xFE], "row 17, block 1 has a scale that is no finite number"),
        ("q4_k", 2, [0x00, 0x7C], "row 17, block 1 has a scale that is no finite number"),
        ("q6_k", 208, [0x00, 0xFE], "row 17, block 1 has a scale that is no finite number"),
        ("iq4_nl", 0, [0x00, 0xFC], "row 17, block 1 has a scale that is no finite number"),
        ("mxfp4_pairs", 0, [255], "row 17, block 1 has a scale that is no finite number"),
        ("nvfp4", 1, [0xFF], "row 17, block 1 has a scale that is no finite number"),
        ("int4_32z", 2, [17, 0], "row 17, block 1 has a zero point above 16"),
        ("int4_128z", 2, [0, 1], "row 17, block 1 has a zero point above 16"),
        ("fp8", 4 + 99, [0x7F], "row 17, block 1 has a weight that is no number"),
        ("fp8", 0, [0, 0, 0x80, 0x7F], "row 17, block 1 has a scale that is no finite number"),
        ("mxfp8", 0, [255], "row 17, block 1 has a scale that is no finite number"),
        ("mxfp8", 3, [0xFF], "row 17, block 1 has a weight that is no number"),
        ("f32", 2, [0x80, 0xFF], "row 17 has a weight that is no finite number"),
        ("f16", 0, [0, 0x7C], "row 17 has a weight that is no finite number"),
        ("bf16", 0, [0xC0, 0x7F], "row 17 has a weight that is no finite number"),
    ],
)
def test_a_bad_value_is_refused_with_its_place(form: str, at: int, bad: list[int], sentence: str) -> None:
    layout, cols = LAYOUTS[form], 512
    raw = random_raw(form, 20, cols, np.random.default_rng(0))
    packed_by_native(form, raw, cols)
    start = layout.row_bytes(layout.block) + at
    raw[17, start : start + len(bad)] = bad
    with pytest.raises(ValueError, match=sentence):
        packed_by_native(form, raw, cols)


@pytest.mark.parametrize("form", ["nvfp4", "int4_32", "int4_32z", "int4_128z"])
@pytest.mark.parametrize("factor", [np.nan, np.inf])
def test_a_bad_row_factor_is_refused_with_its_row(form: str, factor: float) -> None:
    raw = random_raw(form, 20, 64, np.random.default_rng(0))
    raw[18, :4] = np.asarray([factor], np.float32).view(np.uint8)
    with pytest.raises(ValueError, match="row 18 has a factor that is no finite number"):
        packed_by_native(form, raw, 64)


@pytest.mark.parametrize(("form", "cols"), [("q4_k", 128), ("int4_128z", 40), ("nvfp4", 16), ("mxfp8", 0)])
def test_columns_that_a_codec_cannot_have_are_refused(form: str, cols: int) -> None:
    with pytest.raises(ValueError, match="do not hold"):
        _native.pack_rows(form, np.zeros((1, 100), np.uint8), cols, np.zeros(1 << 12, np.uint8), 64)


def test_plain_values_are_read_as_they_are() -> None:
    raw = random_raw("bf16", 3, 9, np.random.default_rng(0))
    assert_same_bits(
        _native.unpack("bf16", 3, 9, packed_by_native("bf16", raw, 9)), plain_values("bf16", raw.reshape(3, 9, 2))
    )
