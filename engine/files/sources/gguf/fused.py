"""Tensors of a file that hold several: queries, keys and values of a layer, or gates and ups of all experts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.base.errors import CorruptFileError
from engine.files.codecs import FORMS
from engine.files.source_file import Bytes, SourceFile
from engine.files.sources.tensors import SourceTensor

Rows = tuple[int, int]
QKV, GATE_UP = "attn_qkv", "ffn_gate_up_exps"


@dataclass(frozen=True)
class RowRange:
    """Rows `start .. stop` of a matrix, or such values of a vector."""

    tensor: SourceTensor
    start: int
    stop: int

    @property
    def form(self) -> str:
        return self.tensor.form

    @property
    def shape(self) -> tuple[int, ...]:
        rows = self.stop - self.start
        return (rows,) if len(self.tensor.shape) == 1 else (rows, self.tensor.shape[1])

    @property
    def files(self) -> tuple[SourceFile, ...]:
        return self.tensor.files

    def read(self, start: int, stop: int) -> Bytes:
        if len(self.tensor.shape) == 1:
            size = FORMS[self.form].row_bytes(1)
            return self.tensor.read(start, stop)[:, self.start * size : self.stop * size]
        return self.tensor.read(self.start + start, self.start + stop)


def cut(tensor: SourceTensor, rows: Rows | None) -> SourceTensor:
    """Such rows of a tensor, or all of it."""
    return tensor if rows is None else RowRange(tensor, *rows)


def queries_keys_values(tensor: SourceTensor, config: Mapping[str, Any], path: Path) -> Iterator[tuple[str, Rows]]:
    """The stems of three tensors, and which rows of the one each is."""
    heads, kv_heads, width = (config[name] for name in ("num_attention_heads", "num_key_value_heads", "head_dim"))
    ends = (heads * width, (heads + kv_heads) * width, (heads + 2 * kv_heads) * width)
    if tensor.shape[0] != ends[-1]:
        raise CorruptFileError(f"{path}: {QKV} has {tensor.shape[0]} rows, and its heads would have {ends[-1]}.")
    yield from zip(("attn_q", "attn_k", "attn_v"), zip((0, *ends), ends, strict=False), strict=True)


def gates_and_ups(tensor: SourceTensor, path: Path) -> Iterator[tuple[str, Rows]]:
    """The stems of two tensors of experts, and which rows of an expert's each is."""
    rows = tensor.shape[1] if len(tensor.shape) > 1 else 1
    if rows % 2:
        raise CorruptFileError(f"{path}: {GATE_UP} has {rows} rows an expert, which are not gates and as many ups.")
    yield "ffn_gate_exps", (0, rows // 2)
    yield "ffn_up_exps", (rows // 2, rows)
