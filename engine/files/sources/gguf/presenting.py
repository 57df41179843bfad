"""The tensors of a GGUF file under Hugging Face names, as the architecture's row of the table has them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.base.errors import CorruptFileError, UnsupportedError
from engine.files.sources.gguf.architectures.record import (
    LONG_FACTORS,
    OUTER_TENSORS,
    ROPE_FACTORS,
    SHORT_FACTORS,
    Architecture,
)
from engine.files.sources.gguf.fused import GATE_UP, QKV, Rows, cut, gates_and_ups, queries_keys_values
from engine.files.sources.gguf.undo import Place, Presented, undone
from engine.files.sources.tensors import FileTensor, IndexedTensor, SourceTensor, StackedTensor

_LAYER = re.compile(r"blk\.(\d{1,6})\.(.+)")
_IN_LAYER = re.compile(r"([a-z0-9_.]+?)(?:\.(\d{1,6}))?\.(weight|bias)")


def present_tensors(
    architecture: Architecture, raw: Mapping[str, FileTensor], config: Mapping[str, Any], blocks: int, path: Path
) -> Presented:
    """The tensors of a file by their Hugging Face names; of its `blocks` those beyond the layers guess further tokens.

    Raises UnsupportedError for one that the architecture does not have, CorruptFileError for one that is missing or
    does not fit its model.
    """
    presenter = _Presenter(architecture, raw, config, path)
    outer = {**OUTER_TENSORS, **architecture.outer}
    unstacked = {part for parts in architecture.stacked.values() for part in parts}
    for name, tensor in raw.items():
        if name in (ROPE_FACTORS, LONG_FACTORS, SHORT_FACTORS):
            continue
        match = _LAYER.fullmatch(name)
        if name in outer:
            yield from presenter.under(outer[name], name, tensor)
        elif match is None:
            raise presenter.unknown(name)
        elif config["num_hidden_layers"] <= int(match[1]) < blocks:
            yield f"mtp.{name}", tensor
        elif match[2] not in unstacked:
            yield from presenter.in_layer(f"model.layers.{int(match[1])}.", match[2], tensor)
    yield from presenter.stacked()


@dataclass(frozen=True)
class _Presenter:
    architecture: Architecture
    raw: Mapping[str, FileTensor]
    config: Mapping[str, Any]
    path: Path

    def unknown(self, name: str) -> UnsupportedError:
        return UnsupportedError(
            f"{self.path} holds the tensor {name!a:.120}, which {self.architecture.model_type} does not have."
        )

    def under(self, name: str, stem: str, tensor: SourceTensor) -> Presented:
        """The tensor under `name`, without what was done to those of its stem."""
        return undone(self.architecture.undo.get(stem, ()), tensor, Place(name, self.config, self.path))

    def in_layer(self, prefix: str, name: str, tensor: SourceTensor) -> Presented:
        """One tensor of a layer; a fused one becomes several."""
        if name in self.architecture.exact:
            yield from self.under(prefix + self.architecture.exact[name], name, tensor)
            return
        match = _IN_LAYER.fullmatch(name)
        if match is None:
            raise self.unknown(name)
        stem, expert, suffix = match.groups()
        if expert is not None:
            yield self._template(f"{stem}_exps", prefix, suffix).format(expert=int(expert)), tensor
            return
        for part, rows in self._parts(stem, tensor):
            template = self._template(part, prefix, suffix)
            if "{expert}" in template:
                for index in range(tensor.shape[0]):
                    yield template.format(expert=index), cut(IndexedTensor(tensor, index), rows)
            else:
                yield from self.under(template, part, cut(tensor, rows))

    def _template(self, stem: str, prefix: str, suffix: str) -> str:
        if stem not in self.architecture.stems:
            raise self.unknown(f"{stem}.{suffix}")
        there, other = self.architecture.renamed.get(stem, ("", ""))
        name = other if prefix.replace("model.layers", "blk") + there in self.raw else self.architecture.stems[stem]
        return f"{prefix}{name}.{suffix}"

    def _parts(self, stem: str, tensor: SourceTensor) -> Iterator[tuple[str, Rows | None]]:
        """The stems that a tensor holds, and which of its rows each has; None: all."""
        if stem == QKV and QKV not in self.architecture.stems:
            yield from queries_keys_values(tensor, self.config, self.path)
        elif stem == GATE_UP and GATE_UP not in self.architecture.stems:
            yield from gates_and_ups(tensor, self.path)
        else:
            yield stem, None

    def stacked(self) -> Presented:
        """What is one tensor elsewhere and several in the file."""
        stacked = self.architecture.stacked
        layers = self.config["num_hidden_layers"] if stacked else 0
        # A layer count from the file bounds a loop, so it must not exceed what the file can hold.
        if layers > len(self.raw):
            raise CorruptFileError(f"{self.path} speaks of {layers} layers and holds {len(self.raw)} tensors.")
        for layer in range(layers):
            for name, parts in stacked.items():
                names = [f"blk.{layer}.{part}" for part in parts]
                if any(part in self.raw for part in names):
                    yield f"model.layers.{layer}.{name}", self._stack(names)

    def _stack(self, names: list[str]) -> SourceTensor:
        for name in names:
            if name not in self.raw:
                raise CorruptFileError(f"{self.path} lacks the tensor {name}.")
        parts = tuple(self.raw[name] for name in names)
        first = parts[0]
        for name, part in zip(names, parts, strict=True):
            alike = (part.form, *part.shape[:-2], part.shape[-1]) == (first.form, *first.shape[:-2], first.shape[-1])
            if len(part.shape) < 2 or not alike:
                raise UnsupportedError(
                    f"{self.path}: the tensor {name} does not fit {names[0]}: {part.form} {list(part.shape)}."
                )
        return StackedTensor(parts)
