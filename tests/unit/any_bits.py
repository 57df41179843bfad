"""Packed plain weights of any bits: what is no number too, which the packer refuses and executors must survive."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from engine import _native

_WORDS = {"f32": np.dtype("<u4"), "f16": np.dtype("<u2"), "bf16": np.dtype("<u2")}


def pack_rows(codec: str, raw: npt.NDArray[np.uint8], cols: int, out: npt.NDArray[np.uint8], stride: int) -> None:
    """As `_native.pack_rows`.

    The packer moves plain values without computing with them, so the halves of each value, which are small numbers, are
    packed by themselves and put together again.
    """
    word = _WORDS.get(codec)
    if word is None:
        _native.pack_rows(codec, raw, cols, out, stride)
        return
    half = np.array(4 * word.itemsize, word)  # bits
    values = raw.view(word)
    low, high = np.empty_like(out), np.empty_like(out)
    _native.pack_rows(codec, (values & ((1 << half) - 1)).astype(word).view(np.uint8), cols, low, stride)
    _native.pack_rows(codec, (values >> half).view(np.uint8), cols, high, stride)
    out.view(word)[:] = low.view(word) | (high.view(word) << half)
