"""Rows in another codec than the checkpoint's, and how much that changes them."""

from __future__ import annotations

import numpy as np

from engine.base.errors import UsageError
from engine.files.conversion.converted import Loss
from engine.files.conversion.plain_values import Values, plain_values
from engine.files.source_file import Bytes

ENCODED = ("mxfp4", "nvfp4", "q8_0")  # codecs that plain values can be put into; their forms have the same names


def check_expert_codec(codec: str | None) -> None:
    """Raises UsageError for a codec that experts cannot be put into; None keeps them as they are."""
    if codec is not None and codec not in ENCODED:
        raise UsageError(
            f"Experts cannot be put into {codec!a:.40}.", f"Use one of {', '.join(ENCODED)}, or leave them as they are."
        )


class Requantiser:
    """Puts rows into another codec, and adds up what that changes, tensor by tensor, until it is asked."""

    def __init__(self) -> None:
        self._squares: dict[str, tuple[float, float]] = {}

    def encode(self, tensor: str, form: str, raw: Bytes, cols: int, codec: str) -> Bytes:
        """Raw rows of `form`, which belong to `tensor`, as raw rows of the form of `codec`.

        Raises ValueError, with row and block, for a value or a scale that is not finite or too large for the codec.
        """
        from engine import _native

        values = plain_values(form, raw, cols)
        encoded = _native.encode_rows(codec, values)
        error, weight = self._squares.get(tensor, (0.0, 0.0))
        error += _sum_of_squares(plain_values(codec, encoded, cols) - values)
        self._squares[tensor] = (error, weight + _sum_of_squares(values))
        return encoded

    def take_loss(self) -> Loss | None:
        """What the rows since the last call lost; None if there were none."""
        squares, self._squares = self._squares, {}
        return Loss.total(Loss.of(tensor, *sums) for tensor, sums in squares.items()) if squares else None


def _sum_of_squares(values: Values) -> float:
    """In float64; numpy adds in the same order on every machine, where BLAS does not."""
    return float(np.sum(np.square(values, dtype=np.float64), dtype=np.float64))
