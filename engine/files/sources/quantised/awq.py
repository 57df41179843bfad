"""Matrices of 4-bit integers as AWQ writes them in its version gemm: [in, out], eight outputs a word.

`qweight` I32 [in, out / 8], `qzeros` I32 [groups, out / 8] and `scales` [groups, out]. Nibble i of a word, the lowest
first, is of output 0, 2, 4, 6, 1, 3, 5, 7 of its eight; zero points are stored as they are.
"""

from __future__ import annotations

import numpy as np

from engine.base.errors import UnsupportedError
from engine.files.source_file import Bytes
from engine.files.sources.quantised.bundle import Bundle
from engine.files.sources.quantised.int4 import (
    Int4Tensor,
    check_bits,
    check_shapes,
    check_types,
    group_columns,
    int4_form,
)
from engine.files.sources.quantised.nibbles import IN_WORD, Words, transpose_nibbles
from engine.files.sources.quantised.scheme import FLOAT_TYPES
from engine.files.sources.quantised.settings import Settings
from engine.files.sources.quantised.stripes import ColumnCodes, ColumnValues, ColumnZeros

OUTPUTS = (0, 2, 4, 6, 1, 3, 5, 7)


def is_awq(bundle: Bundle, settings: Settings) -> bool:
    """Whether the words of `qweight` hold outputs; where shapes leave it open, the method decides."""
    if not bundle.has("qweight", "scales"):
        return settings.layout == "awq"
    words, outputs = (bundle.parts[role].shape[-1:] for role in ("qweight", "scales"))
    return settings.layout == "awq" or (words != outputs and tuple(word * IN_WORD for word in words) == outputs)


def awq(bundle: Bundle, settings: Settings) -> Int4Tensor | None:
    """Presents `qweight`, `qzeros` and `scales` in one of the forms int4."""
    if not bundle.has("qweight") or not is_awq(bundle, settings):
        return None
    bundle.refuse("scale", "scale_2", "global_scale", "zero_point", "pre_quant_scale", "shape", "g_idx")
    version = settings.text("version", "checkpoint_format", "format", default="gemm")
    if version != "gemm":
        raise UnsupportedError(
            f"The weights are in the version {version!a:.60} of AWQ, which this release does not read.",
            "It reads gemm.",
        )
    check_bits(bundle, settings.integer("bits", "w_bit", default=4))
    check_types(bundle, {"qweight": ("i32",), "qzeros": ("i32",), "scales": FLOAT_TYPES})
    check_shapes(bundle, {"qweight": 2, "qzeros": 2, "scales": 2})
    qweight, scales = bundle.parts["qweight"], bundle.parts["scales"]
    cols, words = qweight.shape
    groups = scales.shape[0]
    check_shapes(bundle, {"scales": (groups, words * IN_WORD), "qzeros": (groups, words)})
    group = group_columns(bundle, "scales", cols, groups, settings.integer("group_size", "q_group_size", default=0))
    return Int4Tensor(
        name=bundle.name,
        shape=(words * IN_WORD, cols),
        form=int4_form(bundle.name, cols, group, symmetric=False),
        group=group,
        codes=ColumnCodes(qweight, IN_WORD, _codes),
        scales=ColumnValues(scales),
        scale_type=scales.form,
        zeros=ColumnZeros(bundle.parts["qzeros"], OUTPUTS),
        order=None,
        parts=tuple(bundle.parts.values()),
    )


def _codes(words: Words) -> Bytes:
    """Words [in, out / 8] as pairs of codes [out, in / 2]: turned in squares of eight, they hold inputs."""
    squares = words.reshape(-1, IN_WORD, words.shape[1]).copy()
    transpose_nibbles(squares)
    out = np.empty((words.shape[1], IN_WORD, len(squares)), np.uint32)
    for nibble, output in enumerate(OUTPUTS):
        out[:, output] = squares[:, nibble].T
    return out.reshape(-1, len(squares)).view(np.uint8)
