"""A tensor that a spec needs. A `key` is a name of ours without its layer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Wanted:
    """A matrix [rows, cols], or a vector of `cols` values where `rows` is 0. `heads` equal blocks of rows, if any.

    With `apart` every block of rows is multiplied by an input of its own.
    """

    key: str
    rows: int
    cols: int
    heads: int = 1
    apart: bool = False

    @property
    def is_vector(self) -> bool:
        return self.rows == 0

    @property
    def extent(self) -> int:
        """What it takes up of a tensor that holds several: rows of a matrix, values of a vector."""
        return self.rows or self.cols


def tensor_name(key: str, layer: int = -1) -> str:
    """The name under which a converted model keeps a dense tensor; layer -1 for those outside the layers."""
    return key if layer < 0 else f"layers.{layer}.{key}"


def vector(key: str, length: int) -> Wanted:
    """A vector of `length` values."""
    return Wanted(key, 0, length)


def projections(hidden: int, outputs: dict[str, int], bias: bool) -> Iterator[Wanted]:
    """Matrices from the hidden state to so many values, and their biases."""
    for key, width in outputs.items():
        yield from projection(key, width, hidden, bias)


def projection(key: str, rows: int, cols: int, bias: bool) -> Iterator[Wanted]:
    """A matrix, and perhaps its bias."""
    yield Wanted(key, rows, cols)
    if bias:
        yield vector(f"{key}_bias", rows)
