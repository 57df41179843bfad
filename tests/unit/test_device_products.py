"""Products of dense matrices on a device against the scalar twin, bit for bit, and the packing of activations."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from engine.device import products
from engine.files.codecs import CODECS
from tests.unit.device_products import UNTOUCHED, Device, Floats, Matrix, bits, random_input, random_matrix

INTEGER_CODECS = [name for name, codec in CODECS.items() if not codec.is_float]


def widths(codec: str) -> tuple[int, ...]:
    """Columns with short last groups and blocks, and with segments of none and of different lengths."""
    if CODECS[codec].kind == "plain":
        return 1, 6, 67, 130
    if codec == "fp8":
        return 3, 128, 259, 641
    unit = CODECS[codec].cols_unit
    return (unit, 3 * unit) if unit == 256 else (unit, 3 * unit, 5 * unit, 18 * unit)


def multiply(
    device: Device, kernel: str, matrix: Matrix, x: Floats, *, live: int | None = None, bias: Floats | None = None,
    scale: float = 1.0,
) -> npt.NDArray[np.uint32]:  # fmt: skip
    """Rows of results as bits, UNTOUCHED where the kernel did not write."""
    rows, stride = len(x), matrix.rows + 3
    y = device.untouched(rows, stride)
    address, x_bytes = device.input(matrix.codec, x)
    many = kernel == "linear_many"
    grid = (
        products.many_grid(matrix.rows, products.token_groups(rows)) if many else products.few_grid(matrix.rows, rows)
    )
    count = device.number(rows if live is None else live)
    shape = (device.put(matrix.packed), matrix.rows, matrix.cols, address, x_bytes, count)
    block = products.MANY_THREADS if many else products.FEW_THREADS
    device.run(
        f"{kernel}_{matrix.codec}", grid, block, *shape, 0 if bias is None else device.put(bias), scale, y, stride
    )
    return device.get(y, (rows, stride), np.uint32)


@pytest.mark.parametrize("kernel", ["linear", "linear_many"])
@pytest.mark.parametrize("codec", CODECS)
def test_a_product_has_the_bits_of_the_scalar_twin(codec: str, kernel: str) -> None:
    random = np.random.default_rng(5)
    device = Device(seed=1)
    for cols in widths(codec):
        for rows, tokens, extreme in ((1, 1, False), (16, 3, True), (37, 9, False), (50, 41, True)):
            matrix = random_matrix(codec, rows, cols, random, extreme)
            x = random_input(tokens, cols, random)
            y = multiply(device, kernel, matrix, x)
            np.testing.assert_array_equal(y[:, :rows], bits(matrix.times(x)), f"{rows} x {cols}, {tokens} tokens")
            assert (y[:, rows:] == UNTOUCHED).all(), "rows beyond the matrix are written"


@pytest.mark.parametrize("kernel", ["linear", "linear_many"])
@pytest.mark.parametrize("codec", CODECS)
def test_one_bit_of_a_weight_shows(codec: str, kernel: str) -> None:
    random = np.random.default_rng(6)
    device = Device()
    cols = 512 if CODECS[codec].kind != "plain" else 4
    matrix = random_matrix(codec, 32, cols, random)
    x = random.standard_normal((2, cols), dtype=np.float32)
    expected = bits(matrix.times(x))
    y = multiply(device, kernel, matrix.with_a_flipped_weight(), x)[:, :32]
    assert (y[:, 0] != expected[:, 0]).all()
    np.testing.assert_array_equal(y[:, 2:], expected[:, 2:])


@pytest.mark.parametrize("kernel", ["linear", "linear_many"])
@pytest.mark.parametrize("codec", ["f32", "q8_0", "nvfp4", "fp8"])
def test_bias_and_scale_follow_the_product(codec: str, kernel: str) -> None:
    random = np.random.default_rng(7)
    device = Device()
    matrix = random_matrix(codec, 21, 256, random)
    x = random_input(5, 256, random)
    bias = random.standard_normal(21, dtype=np.float32)
    product = matrix.times(x)
    for scale in (1.0, 0.7):
        with np.errstate(invalid="ignore", over="ignore"):
            expected = np.float32(scale) * (product + bias)
        expected[np.isnan(expected)] = np.nan
        y = multiply(device, kernel, matrix, x, bias=bias, scale=scale)
        np.testing.assert_array_equal(y[:, :21], bits(expected.astype(np.float32)))


@pytest.mark.parametrize("kernel", ["linear", "linear_many"])
@pytest.mark.parametrize("live", [0, 1, 8, 33])
def test_rows_beyond_the_live_ones_stay_as_they_are(live: int, kernel: str) -> None:
    random = np.random.default_rng(8)
    matrix = random_matrix("q4_0", 40, 96, random)
    x = random_input(64, 96, random)
    y = multiply(Device(), kernel, matrix, x, live=live)
    np.testing.assert_array_equal(y[:live, :40], bits(matrix.times(x))[:live])
    assert (y[live:] == UNTOUCHED).all()


def test_the_order_of_threads_changes_no_bit() -> None:
    random = np.random.default_rng(9)
    matrix = random_matrix("q6_k", 48, 768, random)
    x = random_input(12, 768, random)
    for kernel in ("linear", "linear_many"):
        first = multiply(Device(seed=0), kernel, matrix, x)
        for seed in range(1, 4):
            np.testing.assert_array_equal(multiply(Device(seed=seed), kernel, matrix, x), first)


# --- activations


def packed_by_the_contract(x: Floats) -> npt.NDArray[np.uint8]:
    """Blocks of 32 values as docs/numerics.md rounds them, 96 bytes each, from numpy's own arithmetic."""
    blocks = x.reshape(-1, 32)
    out = np.zeros((len(blocks), 96), np.uint8)
    for block, packed in zip(blocks, out, strict=True):
        header, scale = packed[:32].view(np.int32), packed[:4].view(np.float32)
        if not np.isfinite(block).all():
            scale[0] = np.nan
            continue
        largest = np.abs(block).max()
        if largest < np.float32(2.0**-110):
            continue
        scale[0] = largest / np.float32(32639)
        q = np.rint(block * (np.float32(32639) / largest)).astype(np.int64)
        low = (q & 255).astype(np.uint8).view(np.int8).astype(np.int64)
        first, second = int(q[:16].sum()), int(q[16:].sum())
        packed[4:8].view(np.float32)[0] = first + second
        header[2:] = (
            -8 * (first + second), -12 * (first + second), -12 * first, -12 * second, -32 * first, -32 * second
        )  # fmt: skip
        packed[32:64] = ((q - low) // 256).astype(np.int8).view(np.uint8)
        packed[64:] = low.astype(np.int8).view(np.uint8)
    return out.reshape(len(x), -1)


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize(("rows", "per_row", "cols"), [(1, 1, 32), (3, 1, 544), (2, 5, 96), (4, 2, 1056)])
def test_activations_are_rounded_as_the_contract_says(rows: int, per_row: int, cols: int, ordered: bool) -> None:
    random = np.random.default_rng(cols)
    device = Device()
    stride, out_bytes, room = cols + 5, cols * 3 + 32, rows * per_row + 2
    x = random_input(room, stride, random)
    order = random.permutation(cols).astype(np.int32)
    out = device.put(np.full((room, out_bytes), 0xEE, np.uint8))
    packing = (device.put(x), stride, device.put(order) if ordered else 0, device.number(rows), per_row, cols)
    device.run("pack_q16", products.pack_grid(cols, room), products.PACK_THREADS, *packing, out, out_bytes)
    packed = device.get(out, (room, out_bytes), np.uint8)
    live = rows * per_row
    values = x[:live, order] if ordered else x[:live, :cols]
    np.testing.assert_array_equal(packed[:live, : cols * 3], packed_by_the_contract(values))
    assert (packed[live:] == 0xEE).all()
    assert (packed[:, cols * 3 :] == 0xEE).all()


def test_rows_are_gathered_in_an_order() -> None:
    random = np.random.default_rng(3)
    device = Device()
    x = random.standard_normal((6, 150), dtype=np.float32)
    order = random.permutation(140).astype(np.int32)
    out = device.untouched(6, 144)
    args = (device.put(x), 150, device.put(order), device.number(2), 2, 140, out, 144 * 4)
    device.run("gather_f32", products.row_grid(140, 6), products.ROW_THREADS, *args)
    y = device.get(out, (6, 144), np.uint32)
    np.testing.assert_array_equal(y[:4, :140], bits(x[:4, order]))
    assert (y[4:] == UNTOUCHED).all()
    assert (y[:, 140:] == UNTOUCHED).all()


@pytest.mark.parametrize("codec", INTEGER_CODECS)
def test_a_nan_spoils_its_own_token_alone(codec: str) -> None:
    random = np.random.default_rng(4)
    matrix = random_matrix(codec, 32, 512, random)
    x = random.standard_normal((9, 512), dtype=np.float32)
    clean = multiply(Device(), "linear_many", matrix, x)
    x[4, 77] = np.nan
    y = multiply(Device(), "linear_many", matrix, x)
    np.testing.assert_array_equal(np.delete(y, 4, 0), np.delete(clean, 4, 0))
    assert np.isnan(y[4, :32].view(np.float32)).all()
