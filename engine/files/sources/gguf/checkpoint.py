"""A GGUF file, or a set of split ones, presented as a Hugging Face checkpoint."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from engine.base.errors import CorruptFileError, NotFoundError, UnsupportedError
from engine.files.source_file import LocalFile, SourceFile
from engine.files.sources.checkpoint import Checkpoint
from engine.files.sources.gguf.architectures import ARCHITECTURES
from engine.files.sources.gguf.architectures.record import (
    CHOICE_BIAS_ENDING,
    GROWTH,
    SIGMOID_SCORES,
    WITH_EXPERTS,
    WITH_GROWTH,
    WITH_SHARED_EXPERTS,
    WITH_SIGMOID,
    Architecture,
)
from engine.files.sources.gguf.config import build_config
from engine.files.sources.gguf.header import MAGIC, READ_TYPES, GgufHeader, read_gguf_header
from engine.files.sources.gguf.presenting import present_tensors
from engine.files.sources.tensors import FileTensor

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
    architecture = _architecture(headers, path)
    raw = _file_tensors(headers, files)
    config = build_config(architecture, metadata, raw, path)
    blocks = metadata[f"{metadata['general.architecture']}.block_count"]
    return Checkpoint(
        name=name,
        config=config,
        tensors=dict(present_tensors(architecture, raw, config, blocks, path)),
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


def _architecture(headers: Sequence[GgufHeader], path: Path) -> Architecture:
    metadata = headers[0].metadata
    name = metadata.get("general.architecture")
    if not isinstance(name, str):
        raise CorruptFileError(f"{path} does not say what architecture it is of.")
    scores = metadata.get(f"{name}.expert_gating_func")
    if scores is None and any(tensor.name.endswith(CHOICE_BIAS_ENDING) for head in headers for tensor in head.tensors):
        scores = SIGMOID_SCORES  # as files of GLM-4.7-Flash leave it to be guessed
    held = {
        WITH_EXPERTS: metadata.get(f"{name}.expert_count"),
        WITH_SHARED_EXPERTS: metadata.get(f"{name}.expert_shared_feed_forward_length"),
        WITH_SIGMOID: scores == SIGMOID_SCORES,
        WITH_GROWTH: metadata.get(f"{name}.{GROWTH}"),
    }
    names = [name, *(f"{name} {variant}" for variant, holds in held.items() if holds)]
    key = next((each for each in reversed(names) if each in ARCHITECTURES), name)
    if key not in ARCHITECTURES:
        known = ", ".join(sorted(name for name in ARCHITECTURES if " " not in name))
        raise UnsupportedError(
            f"{path} is of the architecture {name!a:.60}, which is not known.", f"Known are {known}."
        )
    return ARCHITECTURES[key]


def _file_tensors(headers: Sequence[GgufHeader], files: Sequence[SourceFile]) -> dict[str, FileTensor]:
    tensors: dict[str, FileTensor] = {}
    for header, file in zip(headers, files, strict=True):
        for tensor in header.tensors:
            if tensor.name in tensors:
                first = tensors[tensor.name].file.path
                raise CorruptFileError(f"{first} and {file.path.name} both hold the tensor {tensor.name!a:.120}.")
            if tensor.form not in READ_TYPES:
                raise UnsupportedError(
                    f"{file.path}: tensor {tensor.name!a:.120} is in {tensor.form}, which this release does not read.",
                    "Pull another file of the model with --file, such as Q4_K_M, Q3_K_M or Q2_K. Types that are read: "
                    f"{', '.join(READ_TYPES)}.",
                )
            tensors[tensor.name] = FileTensor(file, tensor.start, tensor.form, tensor.shape)
    return tensors
