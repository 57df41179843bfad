"""Rows of a matrix that a checkpoint keeps the other way round.

Plain values move as they are. 8-bit floats stay what they are where the scales of 128 rows are one, so that they can be
those of 128 columns; elsewhere they become the f32 values that they stand for.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from engine.base.errors import UnsupportedError
from engine.files.codecs import FORMS
from engine.files.source_file import Bytes
from engine.files.sources.quantised.fp8 import FP8_BLOCK, Fp8Tensor
from engine.files.sources.tensors import IndexedTensor, SourceTensor

PLAIN = frozenset({"f32", "f16", "bf16"})
_SCALE = 4  # bytes
# e4m3fn: a half whose bits are the code's sign, and its other bits moved up by 7, is the value times 2^-8
_CODES = np.arange(256, dtype=np.uint16)
_E4M3 = ((_CODES & 0x80) << 8 | (_CODES & 0x7F) << 7).view(np.float16).astype(np.float32) * 256
_E4M3[[0x7F, 0xFF]] = np.nan


def transposed_form(name: str, tensor: SourceTensor, start: int, stop: int) -> str:
    """The form in which rows `start .. stop` of the tensor called `name` can be columns.

    Raises UnsupportedError for a form that cannot be transposed.
    """
    if tensor.form in PLAIN:
        return tensor.form
    if tensor.form != "fp8":
        raise UnsupportedError(
            f"The tensor {name} is in {tensor.form}, and would have to be transposed.",
            "Use a checkpoint that keeps it in plain values or in fp8.",
        )
    inner = tensor.tensor if isinstance(tensor, IndexedTensor) else tensor
    return "fp8" if isinstance(inner, Fp8Tensor) and inner.one_scale_a_run(start, stop, FP8_BLOCK) else "f32"


def transposed_rows(raw: Bytes, form: str, cols: int, into: str, picked: range) -> Bytes:
    """The columns `picked` of raw rows [n, ..] of `cols` values, as raw rows [len(picked), ..] of n values.

    `form` is that of the rows given, `into` the one that `transposed_form` told.
    """
    if form in PLAIN:
        words = raw.view(np.dtype(f"<u{FORMS[form].row_bytes(1)}"))
        return np.ascontiguousarray(words.T[_slice(picked)]).view(np.uint8)
    codes, scales = _split(raw, cols)
    block = np.asarray(picked) // FP8_BLOCK
    turned = np.ascontiguousarray(codes.T[_slice(picked)])
    if into == "f32":
        exact: npt.NDArray[np.float32] = _E4M3[turned] * scales.T[block]
        return exact.view(np.uint8)
    return np.concatenate(
        [
            part
            for start in range(0, len(raw), FP8_BLOCK)
            for part in (scales[start, block].view(np.uint8).reshape(-1, _SCALE), turned[:, start : start + FP8_BLOCK])
        ],
        axis=1,
    )


def _slice(picked: range) -> slice:
    return slice(picked.start, picked.stop, picked.step)


def _split(raw: Bytes, cols: int) -> tuple[Bytes, npt.NDArray[np.float32]]:
    """Rows of the form fp8 as codes [rows, cols] and scales [rows, blocks]."""
    places = np.arange(cols)
    starts = np.arange(0, cols, FP8_BLOCK)
    scales = raw[:, (starts // FP8_BLOCK * (FP8_BLOCK + _SCALE))[:, None] + np.arange(_SCALE)]
    codes = raw[:, places + (places // FP8_BLOCK + 1) * _SCALE]
    return codes, np.ascontiguousarray(scales).view(np.float32)[..., 0]
