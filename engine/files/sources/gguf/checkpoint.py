"""A GGUF file, or a set of split ones, presented as a Hugging Face checkpoint."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from engine.base.errors import CorruptFileError, NotFoundError, UnsupportedError
from engine.files.source_file import LocalFile, SourceFile
from engine.files.sources.checkpoint import Checkpoint
from engine.files.sources.gguf.architectures import (
    ARCHITECTURES,
    OUTER_TENSORS,
    ROPE_FACTORS,
    SIGMOID_SCORES,
    WITH_EXPERTS,
    WITH_SIGMOID,
    Architecture,
)
from engine.files.sources.gguf.config import build_config
from engine.files.sources.gguf.header import MAGIC, READ_TYPES, GgufHeader, read_gguf_header
from engine.files.sources.gguf.q5 import Q5Tensor
from engine.files.sources.tensors import (
    FileTensor,
    IndexedTensor,
    Order,
    ReorderedRows,
    SourceTensor,
    StackedTensor,
    reordered_blocks,
)

Stored = FileTensor | Q5Tensor

_LAYER_TENSOR = re.compile(r"blk\.(\d{1,6})\.([a-z0-9_]+?)(?:\.(\d{1,6}))?\.(weight|bias)")
_SPLIT_NAME = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf")


def is_gguf(path: Path) -> bool:
    """Whether the regular file at `path` starts like a GGUF file."""
    file = LocalFile(path)
    try:
        return file.size >= len(MAGIC) and file.read_bytes(0, len(MAGIC)) == MAGIC
    finally:
        file.close()


def open_gguf(path: Path) -> Checkpoint:
    """Opens a GGUF file on this machine; of a split one, any part will do.

    Errors: NotFoundError for a missing part, and those of `present_gguf`.
    """
    split = split_name(path.name)
    files: list[SourceFile] = []
    try:
        for part in split_parts(path.name):
            if split and not path.with_name(part).exists():
                raise NotFoundError(
                    f"{path.with_name(part)} is missing; {path.name} is one of {split[1]} parts.", "Fetch that file."
                )
            files.append(LocalFile(path.with_name(part)))
        return present_gguf(split[0] if split else path.stem, files)
    except BaseException:
        for file in files:
            file.close()
        raise


def present_gguf(name: str, files: Sequence[SourceFile]) -> Checkpoint:
    """The checkpoint called `name` that the open `files` are: all parts of a split one, in order.

    Errors: UnsupportedError for an architecture that is not in the table, a tensor it does not have or a type that is
    not read, CorruptFileError for a damaged file.
    """
    headers = [read_gguf_header(file) for file in files]
    metadata = headers[0].metadata
    path = files[0].path
    architecture = _architecture(metadata, path)
    raw = _file_tensors(headers, files)
    config = build_config(architecture, metadata, raw, path)
    return Checkpoint(
        name=name,
        config=config,
        tensors=dict(_present(architecture, raw, config, path)),
        files=tuple(files),
        metadata={key: value for key, value in metadata.items() if key.startswith("tokenizer.")},
    )


def split_name(name: str) -> tuple[str, int] | None:
    """What the parts of a split file have in common, and how many there are; None for the name of a whole file."""
    split = _SPLIT_NAME.fullmatch(name)
    return (split[1], int(split[3])) if split and int(split[3]) else None


def split_parts(name: str) -> list[str]:
    """The names of all parts of the split file that `name` is one of; `name` alone for a whole file."""
    split = split_name(name)
    if split is None:
        return [name]
    stem, count = split
    return [f"{stem}-{number:05d}-of-{count:05d}.gguf" for number in range(1, count + 1)]


def _architecture(metadata: Mapping[str, Any], path: Path) -> Architecture:
    name = metadata.get("general.architecture")
    if not isinstance(name, str):
        raise CorruptFileError(f"{path} does not say what architecture it is of.")
    key = name
    if metadata.get(f"{name}.expert_count") and WITH_EXPERTS.format(name=name) in ARCHITECTURES:
        key = WITH_EXPERTS.format(name=name)
    if metadata.get(f"{name}.expert_gating_func") == SIGMOID_SCORES and WITH_SIGMOID.format(name=name) in ARCHITECTURES:
        key = WITH_SIGMOID.format(name=name)
    if key not in ARCHITECTURES:
        known = ", ".join(sorted(name for name in ARCHITECTURES if " " not in name))
        raise UnsupportedError(
            f"{path} is of the architecture {name!a:.60}, which is not known.", f"Known are {known}."
        )
    return ARCHITECTURES[key]


def _file_tensors(headers: Sequence[GgufHeader], files: Sequence[SourceFile]) -> dict[str, Stored]:
    tensors: dict[str, Stored] = {}
    for header, file in zip(headers, files, strict=True):
        for tensor in header.tensors:
            if tensor.name in tensors:
                first = tensors[tensor.name].file.path
                raise CorruptFileError(f"{first} and {file.path.name} both hold the tensor {tensor.name!a:.120}.")
            if tensor.form not in READ_TYPES:
                raise UnsupportedError(
                    f"{file.path}: tensor {tensor.name!a:.120} is in {tensor.form}, which this release does not read.",
                    f"Use a file in {', '.join(READ_TYPES)}.",
                )
            tensors[tensor.name] = (
                Q5Tensor(file, tensor.start, tensor.shape)
                if tensor.form == "q5_0"
                else FileTensor(file, tensor.start, tensor.form, tensor.shape)
            )
    return tensors


def _present(
    architecture: Architecture, raw: Mapping[str, Stored], config: Mapping[str, Any], path: Path
) -> Iterator[tuple[str, SourceTensor]]:
    """The tensors under their Hugging Face names."""
    unstacked = {part for parts in architecture.stacked.values() for part in parts}
    for name, tensor in raw.items():
        if name in OUTER_TENSORS:
            yield OUTER_TENSORS[name], tensor
            continue
        if name == ROPE_FACTORS:
            continue
        match = _LAYER_TENSOR.fullmatch(name)
        if not match:
            raise UnsupportedError(
                f"{path} holds the tensor {name!a:.120}, which {architecture.model_type} does not have."
            )
        layer, stem, expert, suffix = match.groups()
        if f"{stem}.{suffix}" in unstacked and expert is None:
            continue
        yield from _present_layer(
            architecture, f"model.layers.{int(layer)}.", (stem, expert, suffix), tensor, config, path
        )
    # A layer count from the file bounds a loop, so it must not exceed what the file can hold.
    layers = config["num_hidden_layers"]
    if architecture.stacked and layers > len(raw):
        raise CorruptFileError(f"{path} speaks of {layers} layers and holds {len(raw)} tensors.")
    for layer in range(layers if architecture.stacked else 0):
        for name, parts in architecture.stacked.items():
            yield f"model.layers.{layer}.{name}", _stack(raw, [f"blk.{layer}.{part}" for part in parts], path)


def _present_layer(
    architecture: Architecture,
    prefix: str,
    parsed: tuple[str, str | None, str],
    tensor: Stored,
    config: Mapping[str, Any],
    path: Path,
) -> Iterator[tuple[str, SourceTensor]]:
    """One tensor of a layer; a fused one becomes one an expert."""
    stem, expert, suffix = parsed
    if expert is None and f"{stem}.{suffix}" in architecture.exact:
        yield prefix + architecture.exact[f"{stem}.{suffix}"], tensor
        return
    template = architecture.stems.get(f"{stem}_exps" if expert is not None else stem)
    if template is None:
        raise UnsupportedError(f"{path} holds a tensor {stem}.{suffix}, which {architecture.model_type} does not have.")
    name = f"{prefix}{template}.{suffix}"
    if expert is not None:
        yield name.format(expert=int(expert)), tensor
    elif "{expert}" in template:
        for index in range(tensor.shape[0]):
            yield name.format(expert=index), IndexedTensor(tensor, index)
    elif stem in architecture.one_row and len(tensor.shape) == 1:
        yield name, replace(tensor, shape=(1, *tensor.shape))
    elif stem in architecture.by_head and len(tensor.shape) == 3:
        yield name, replace(tensor, shape=(tensor.shape[0] * tensor.shape[1], tensor.shape[2]))
    elif architecture.permuted and stem in ("attn_q", "attn_k"):
        heads = config["num_attention_heads" if stem == "attn_q" else "num_key_value_heads"]
        yield name, _unpermute(name, tensor, heads, path)
    else:
        yield name, tensor


def _unpermute(name: str, tensor: Stored, heads: int, path: Path) -> SourceTensor:
    """Rows in Hugging Face order, (i, i + dim/2) rotating together; the file has them side by side, (2i, 2i + 1)."""
    order = head_order(tensor.shape[0], heads, path)
    return reordered_blocks(name, tensor, order, 1) if len(tensor.shape) == 1 else ReorderedRows(tensor, order)


def head_order(rows: int, heads: int, path: Path) -> Order:
    """Row of the file for each row that Hugging Face has, `rows` rows in `heads` heads."""
    if rows % (2 * heads):
        raise CorruptFileError(f"{path}: {rows} rows of q or k cannot belong to {heads} heads.")
    order = np.arange(rows, dtype=np.int64).reshape(heads, rows // heads // 2, 2)
    return order.swapaxes(1, 2).reshape(-1)


def _stack(raw: Mapping[str, Stored], names: list[str], path: Path) -> SourceTensor:
    for name in names:
        if name not in raw:
            raise CorruptFileError(f"{path} lacks the tensor {name}.")
    parts = tuple(raw[name] for name in names)
    first = parts[0]
    for name, part in zip(names, parts, strict=True):
        if len(part.shape) != 3 or (part.form, part.shape[0], part.shape[2]) != (
            first.form,
            first.shape[0],
            first.shape[2],
        ):
            raise UnsupportedError(
                f"{path}: the tensor {name} does not fit {names[0]}: {part.form} {list(part.shape)}."
            )
    return StackedTensor(parts)
