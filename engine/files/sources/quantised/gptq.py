"""Matrices of 4-bit integers as GPTQ writes them: [in, out], eight inputs a word.

`qweight` I32 [in / 8, out] holds input i in nibble i % 8 of row i // 8; `scales` [groups, out]; `qzeros` I32
[groups, out / 8] holds output o in nibble o % 8 of column o // 8; `g_idx` I32 [in] is the group of every input. In the
format gptq zero points are stored less one, in gptq_v2 as they are. With desc_act a group's inputs come from anywhere.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from engine.base.errors import CorruptFileError, UnsupportedError
from engine.files.source_file import Bytes
from engine.files.sources.quantised.awq import is_awq
from engine.files.sources.quantised.bundle import Bundle
from engine.files.sources.quantised.group_index import GroupIndex
from engine.files.sources.quantised.int4 import (
    Int4Tensor,
    check_bits,
    check_shapes,
    check_types,
    group_columns,
    int4_form,
)
from engine.files.sources.quantised.nibbles import IN_WORD, Words, gather_nibbles
from engine.files.sources.quantised.scheme import FLOAT_TYPES
from engine.files.sources.quantised.settings import AUTO_ROUND, Settings
from engine.files.sources.quantised.stripes import ColumnCodes, ColumnValues, ColumnZeros
from engine.files.sources.tensors import FileTensor

FORMATS = ("gptq", "gptq_v2")
_ONE_A_NIBBLE = 0x11111111


def gptq(bundle: Bundle, settings: Settings) -> Int4Tensor | None:
    """Presents `qweight`, `qzeros`, `scales` and `g_idx` in one of the forms int4."""
    if not bundle.has("qweight") or is_awq(bundle, settings):
        return None
    bundle.refuse("scale", "scale_2", "global_scale", "zero_point", "pre_quant_scale", "shape")
    check_types(bundle, {"qweight": ("i32",), "qzeros": ("i32",), "scales": FLOAT_TYPES})
    cols, groups = _check_shapes(bundle, settings)
    group = group_columns(bundle, "scales", cols, groups, settings.integer("group_size", default=0))
    index = _group_index(bundle, settings, group) if groups > 1 else None
    ordered = index is not None and (_varies(settings) or settings.flag("desc_act", True))
    symmetric = settings.flag("sym", False) and not _varies(settings)
    scales = bundle.parts["scales"]
    return Int4Tensor(
        name=bundle.name,
        shape=(scales.shape[1], cols),
        form=int4_form(bundle.name, cols, group, symmetric),
        group=group,
        codes=ColumnCodes(bundle.parts["qweight"], 1, partial(_codes, index, ordered)),
        scales=ColumnValues(scales),
        scale_type=scales.form,
        zeros=_zeros(bundle.parts["qzeros"], settings),
        order=index if ordered else None,
        parts=tuple(bundle.parts.values()),
    )


def _check_shapes(bundle: Bundle, settings: Settings) -> tuple[int, int]:
    """Inputs and groups. Raises as `check_bits` and `check_shapes` do."""
    if not _varies(settings):
        check_bits(bundle, settings.integer("bits", default=4))
    check_shapes(bundle, {"qweight": 2, "qzeros": 2, "scales": 2})
    words, rows = bundle.parts["qweight"].shape
    groups = bundle.parts["scales"].shape[0]
    cols = words * IN_WORD
    if bundle.has("g_idx"):
        check_types(bundle, {"g_idx": ("i32",)})
        check_shapes(bundle, {"g_idx": 1})
        cols = bundle.parts["g_idx"].shape[0]
        check_bits(bundle, 32 * words // cols if cols else 0)
    check_shapes(
        bundle, {"qweight": (cols // IN_WORD, rows), "scales": (groups, rows), "qzeros": (groups, rows // IN_WORD)}
    )
    if rows % IN_WORD:
        raise bundle.misfit("qzeros", f"a word for every {IN_WORD} of {rows} outputs")
    return cols, groups


def _varies(settings: Settings) -> bool:
    """Whether single modules have settings of their own, so that the common ones say little of any."""
    return bool(settings.table.get("dynamic"))


def _group_index(bundle: Bundle, settings: Settings, group: int) -> GroupIndex | None:
    if bundle.has("g_idx"):
        return GroupIndex(bundle.names["g_idx"], bundle.parts["g_idx"], group)
    if settings.flag("desc_act", False):
        raise CorruptFileError(
            f"The tensor {bundle.name} has no g_idx, though config.json says that columns have moved (desc_act).",
            "Fetch the checkpoint again, or check that no shard is absent.",
        )
    return None


def _zeros(qzeros: FileTensor, settings: Settings) -> ColumnZeros:
    version = settings.text(
        "checkpoint_format", default="marlin" if settings.flag("is_marlin_format", False) else "gptq"
    )
    if version not in FORMATS:
        raise UnsupportedError(
            f"The weights are in the format {version!a:.60} of GPTQ, which this release does not read.",
            f"It reads {' and '.join(FORMATS)}.",
        )
    if version == "gptq_v2":
        return ColumnZeros(qzeros)
    # GPTQModel and auto-round take one off every zero point of a word at once, so that a zero borrows from its
    # neighbour. Others take it off each, and run what they wrote: a zero point of 15, stored, is 16.
    if settings.method == AUTO_ROUND or "gptqmodel" in str(settings.table.get("meta", "")).lower():
        return ColumnZeros(qzeros, add_to_words=_ONE_A_NIBBLE)
    return ColumnZeros(qzeros, add_to_values=1)


def _codes(index: GroupIndex | None, ordered: bool, words: Words) -> Bytes:
    """Words [in / 8, out] as pairs of codes [out, in / 2]: the bytes of a word are four pairs already."""
    if index is not None and ordered:
        words = gather_nibbles(words, index.columns())
    elif index is not None:
        index.check_ascending()
    return np.ascontiguousarray(words.T).view(np.uint8)
