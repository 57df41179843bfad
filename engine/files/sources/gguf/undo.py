"""What llama.cpp's converter does to tensors on their way into a file, undone. Source of each: convert_hf_to_gguf.py.

Every change but one keeps all bits: of -exp(a) the logarithm is taken in f64 and rounded to f32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from engine.base.errors import CorruptFileError
from engine.files.codecs import FORMS
from engine.files.source_file import Bytes, SourceFile
from engine.files.sources.gguf.architectures.record import (
    BY_HEAD,
    FLAT,
    K_PAIRS,
    LOGARITHM,
    ONE_ROW,
    PLUS_ONE,
    Q_PAIRS,
    TILED_COLS,
    TILED_ROWS,
    TILED_VALUES,
)
from engine.files.sources.tensors import MemoryTensor, Order, ReorderedRows, SourceTensor, reordered_blocks
from engine.spec.layout import ORDER
from engine.spec.names import PLUS_ONE_ENDING


@dataclass(frozen=True)
class Place:
    """The tensor called `name` of the file `path`, of a model that `config` describes."""

    name: str
    config: Mapping[str, Any]
    path: Path


Presented = Iterator[tuple[str, SourceTensor]]
Undo = Callable[[SourceTensor, Place], SourceTensor]


def undone(steps: Sequence[str], tensor: SourceTensor, place: Place) -> Presented:
    """The tensor as it was before `steps`, under its name, and what goes along."""
    for step in steps:
        if step in _UNDO:
            tensor = _UNDO[step](tensor, place)
    if PLUS_ONE[0] in steps:
        yield place.name + PLUS_ONE_ENDING, tensor
    elif TILED_COLS[0] in steps:
        yield from _columns_of_heads(tensor, place)
    else:
        yield place.name, tensor


@dataclass(frozen=True)
class Reshaped:
    """The values of `tensor`, whose rows lie one after the other, as another shape of them."""

    tensor: SourceTensor
    shape: tuple[int, ...]

    @property
    def form(self) -> str:
        return self.tensor.form

    @property
    def files(self) -> tuple[SourceFile, ...]:
        return self.tensor.files

    def read(self, start: int, stop: int) -> Bytes:
        if self.shape[-1] == self.tensor.shape[-1]:
            return self.tensor.read(start, stop)
        whole = self.tensor.read(0, int(np.prod(self.tensor.shape[:-1])))
        return whole.reshape(int(np.prod(self.shape[:-1])), -1)[start:stop]


def _one_row(tensor: SourceTensor, _place: Place) -> SourceTensor:
    return Reshaped(tensor, (1, *tensor.shape)) if len(tensor.shape) == 1 else tensor


def _by_head(tensor: SourceTensor, _place: Place) -> SourceTensor:
    if len(tensor.shape) != 3:
        return tensor
    return Reshaped(tensor, (tensor.shape[0] * tensor.shape[1], tensor.shape[2]))


def _flat(tensor: SourceTensor, _place: Place) -> SourceTensor:
    return tensor if len(tensor.shape) == 1 else Reshaped(tensor, (int(np.prod(tensor.shape)),))


def _q_pairs(tensor: SourceTensor, place: Place) -> SourceTensor:
    return _pairs_apart(tensor, place.config["num_attention_heads"], place)


def _k_pairs(tensor: SourceTensor, place: Place) -> SourceTensor:
    return _pairs_apart(tensor, place.config["num_key_value_heads"], place)


def _pairs_apart(tensor: SourceTensor, heads: int, place: Place) -> SourceTensor:
    """Rows in Hugging Face order, (i, i + dim/2) rotating together; the file has them side by side, (2i, 2i + 1)."""
    return _rows_in_order(tensor, head_order(tensor.shape[0], heads, place.path), place)


def head_order(rows: int, heads: int, path: Path) -> Order:
    """Row of the file for each row that Hugging Face has, `rows` rows in `heads` heads."""
    if heads < 1 or rows % (2 * heads):
        raise CorruptFileError(f"{path}: {rows} rows of q or k cannot belong to {heads} heads.")
    order = np.arange(rows, dtype=np.int64).reshape(heads, rows // heads // 2, 2)
    return order.swapaxes(1, 2).reshape(-1)


def _rows_in_order(tensor: SourceTensor, order: Order, place: Place) -> SourceTensor:
    if len(tensor.shape) == 1:
        return reordered_blocks(place.name, tensor, order, 1)
    return ReorderedRows(tensor, order)


def _logarithm(tensor: SourceTensor, place: Place) -> SourceTensor:
    if tensor.form != "f32":
        raise CorruptFileError(f"{place.path}: what becomes {place.name} is {tensor.form}, not f32.")
    values = tensor.read(0, int(np.prod(tensor.shape[:-1]))).view(np.float32)
    if not (np.isfinite(values).all() and ((values < 0).all() or (values > 0).all())):
        raise CorruptFileError(f"{place.path}: what becomes {place.name} has values that are no rates of one sign.")
    logarithm = np.log(abs(values.astype(np.float64))).astype(np.float32).reshape(1, -1)
    return MemoryTensor("f32", (logarithm.size,), logarithm.view(np.uint8))


def _tiled_rows(tensor: SourceTensor, place: Place) -> SourceTensor:
    return _untiled(tensor, place.config["linear_value_head_dim"], place)


def _tiled_values(tensor: SourceTensor, place: Place) -> SourceTensor:
    return _untiled(tensor, 1, place)


def _untiled(tensor: SourceTensor, width: int, place: Place) -> SourceTensor:
    """Rows in Hugging Face order: value heads of `width` rows at the end, others before them as they are."""
    heads = tiled_heads(place.config, place.path)
    before = tensor.shape[0] - len(heads) * width
    if before < 0:
        raise CorruptFileError(f"{place.path}: {place.name} has {tensor.shape[0]} rows for {len(heads)} heads.")
    rows = before + (heads[:, None] * width + np.arange(width)).reshape(-1)
    return _rows_in_order(tensor, np.concatenate([np.arange(before, dtype=np.int64), rows]), place)


def tiled_heads(config: Mapping[str, Any], path: Path) -> Order:
    """The value head of the file for each that Hugging Face has."""
    keys, values = config["linear_num_key_heads"], config["linear_num_value_heads"]
    if keys < 1 or values % keys:
        raise CorruptFileError(f"{path}: {values} value heads cannot belong to {keys} key heads.")
    return np.arange(values, dtype=np.int64).reshape(values // keys, keys).T.reshape(-1)


def _columns_of_heads(tensor: SourceTensor, place: Place) -> Presented:
    """The columns of value heads in order, or as they are and with that order, where blocks are wider than heads."""
    heads, width = tiled_heads(place.config, place.path), place.config["linear_value_head_dim"]
    if (heads == np.arange(len(heads))).all():
        yield place.name, tensor
    elif width % FORMS[tensor.form].block == 0:
        yield place.name, reordered_blocks(place.name, tensor, heads, width)
    else:
        yield place.name, tensor
        columns = (np.argsort(heads)[:, None] * width + np.arange(width)).reshape(1, -1).astype(np.float32)
        yield place.name + ORDER, MemoryTensor("f32", (columns.size,), columns.view(np.uint8))


_UNDO: Mapping[str, Undo] = {
    ONE_ROW[0]: _one_row,
    BY_HEAD[0]: _by_head,
    FLAT[0]: _flat,
    Q_PAIRS[0]: _q_pairs,
    K_PAIRS[0]: _k_pairs,
    LOGARITHM[0]: _logarithm,
    TILED_ROWS[0]: _tiled_rows,
    TILED_VALUES[0]: _tiled_values,
}
