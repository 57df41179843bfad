"""The products of docs/numerics.md in numpy, bit for bit: exact integer sums, and fma by round to odd."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .blocks_numpy import (
    BLOCK,
    CODINGS,
    EIGHT_BIT_FLOATS,
    FLOATS,
    Blocks,
    Bytes,
    Floats,
    Integers,
    Terms,
    plain_values,
    terms,
)

Doubles = NDArray[np.float64]

TINY_BLOCK = 2.0**-110
QUANT_MAX = np.float32(32639)


def product(weights: Blocks, x: Floats) -> Floats:
    """Rows of codes times tokens [tokens, cols], as [tokens, rows]."""
    with np.errstate(over="ignore", invalid="ignore"):
        found = terms(weights)
        if weights.codec in EIGHT_BIT_FLOATS:
            total = _scaled_sum(found, CODINGS[weights.codec].block, x)
        else:
            total = _integer_sum(found, x)
        return _canonical(total * found.post)


def plain_product(codec: str, raw: Bytes, cols: int, x: Floats) -> Floats:
    """Rows of plain values times tokens [tokens, cols]."""
    weights = plain_values(codec, raw.reshape(len(raw), cols, FLOATS[codec]))
    with np.errstate(over="ignore", invalid="ignore"):
        return _canonical(_sum_by_four(weights.astype(np.float64), x))


def quantise(x: Floats) -> tuple[Floats, NDArray[np.int64]]:
    """Activations [tokens, cols] as scales [tokens, blocks] and integers [tokens, blocks, 32]."""
    blocks = x.reshape(len(x), -1, BLOCK)
    largest = np.abs(blocks).max(2)
    used = np.isfinite(largest) & (largest >= TINY_BLOCK)
    safe = np.where(used, largest, np.float32(1))
    rounded = np.rint(np.where(used[..., None], blocks, 0) * (QUANT_MAX / safe)[..., None])
    scales = np.where(used, safe / QUANT_MAX, np.where(np.isfinite(largest), np.float32(0), np.float32(np.nan)))
    return scales.astype(np.float32), rounded.astype(np.int64)


def fma(a: NDArray[np.floating], b: NDArray[np.floating], c: NDArray[np.floating]) -> Floats:
    """a * b + c of f32 values, rounded once: the sum in double is rounded to odd, so rounding it again is harmless."""
    product = np.asarray(a, np.float64) * np.asarray(b, np.float64)  # exact
    addend = np.asarray(c, np.float64)
    total = product + addend
    other = total - product
    error = (product - (total - other)) + (addend - other)
    even = total.view(np.int64) & 1 == 0
    toward = np.where(error > 0, np.inf, -np.inf)
    inexact = np.isfinite(total) & (error != 0) & even
    return np.where(inexact, np.nextafter(total, toward), total).astype(np.float32)


def _integer_sum(found: Terms, x: Floats) -> Floats:
    """[tokens, rows], before the row's factor."""
    scales, q = quantise(x)
    numbers = found.numbers.astype(np.int64).reshape(len(found.numbers), -1, BLOCK)
    blocks, parts = numbers.shape[1], found.scales.shape[2]
    segments = np.zeros((4, len(x), len(numbers)), np.float32)
    for segment in range(4):
        acc = segments[segment]
        for block in range(segment * blocks // 4, (segment + 1) * blocks // 4):
            sx = scales[:, block, None]
            of_q = np.split(q[:, block], parts, 1)
            products = [y @ w.T for y, w in zip(of_q, np.split(numbers[:, block], parts, 1), strict=True)]
            sums = [y.sum(1, keepdims=True) for y in of_q]
            if found.integers is not None:
                acc = fma(_put_together(found.integers, block, products, sums), sx, acc)
                continue
            for part, exact in enumerate(products):
                acc = fma(found.scales[:, block, part] * sx, _in_int32(exact), acc)
            if found.minimum is not None:
                for part, total in enumerate(sums):
                    acc = fma(found.minimum[:, block, part] * sx, _in_int32(total), acc)
        segments[segment] = acc
    return (segments[0] + segments[1]) + (segments[2] + segments[3])


def _put_together(
    integers: Integers, block: int, products: list[NDArray[np.int64]], sums: list[NDArray[np.int64]]
) -> Floats:
    """A block of rows under integer scales, before the activations' scale: [tokens, rows]."""
    product = sum(integers.scales[:, block, half] * exact for half, exact in enumerate(products))
    minimum = sum(integers.minima[:, block, half] * total for half, total in enumerate(sums))
    scaled = integers.d[:, block] * _in_int32(np.asarray(product))
    return fma(-integers.d_min[:, block], _in_int32(np.asarray(minimum)), scaled)


def _in_int32(exact: NDArray[np.int64]) -> Floats:
    """An integer sum as f32."""
    assert np.abs(exact).max(initial=0) < 2**31, "a block's sum leaves int32"
    return exact.astype(np.float32)


def _scaled_sum(found: Terms, block: int, x: Floats) -> Floats:
    acc = np.zeros((len(x), len(found.numbers)), np.float32)
    for index, start in enumerate(range(0, found.numbers.shape[1], block)):
        columns = slice(start, start + block)
        acc = fma(found.scales[:, index, 0], _sum_by_four(found.numbers[:, columns], x[:, columns]), acc)
    return acc


def _sum_by_four(weights: Doubles, x: Floats) -> Floats:
    """Four accumulators over the columns of [rows, cols] and [tokens, cols], added up in pairs."""
    acc = np.zeros((4, len(x), len(weights)), np.float32)
    for k in range(weights.shape[1]):
        acc[k % 4] = fma(weights[:, k], x[:, k, None], acc[k % 4])
    return (acc[0] + acc[1]) + (acc[2] + acc[3])


def _canonical(y: Floats) -> Floats:
    """One form of NaN."""
    return np.where(np.isnan(y), np.uint32(0x7FC00000), y.astype(np.float32).view(np.uint32)).view(np.float32)
