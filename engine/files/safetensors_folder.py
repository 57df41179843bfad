"""A model folder of safetensors: config.json, one file or several shards and their index, tokenizer files."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from engine.base.errors import CorruptFileError, NotFoundError, UnsupportedError
from engine.files.checkpoint import COMPANION_FILES, Checkpoint
from engine.files.safetensors_header import Entry, read_header
from engine.files.source_file import LocalFile, SourceFile
from engine.files.tensors import FileTensor, SourceTensor
from engine.files.untrusted import Table, read_object

INDEX_NAME = "model.safetensors.index.json"
SINGLE_NAME = "model.safetensors"

_CODEC_OF_DTYPE = {"F32": "f32", "F16": "f16", "BF16": "bf16"}
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


def open_folder(folder: Path) -> Checkpoint:
    """Opens a model folder; its index, where there is one, decides which tensors count and where they lie.

    Errors: NotFoundError for an absent config or shard, CorruptFileError for a short or contradictory file,
    UnsupportedError for weights in another format.
    """
    config_path = folder / "config.json"
    try:
        config = read_object(config_path)
    except NotFoundError:
        raise NotFoundError(f"{folder} is not a model folder: it has no config.json.") from None
    index = _read_index(folder)
    names = sorted(set(index.values())) if index is not None else [_only_shard(folder)]
    files: list[SourceFile] = []
    try:
        tensors = _open_shards(folder, names, index, files)
    except BaseException:
        for file in files:
            file.close()
        raise
    return Checkpoint(
        name=folder.resolve().name,
        config=config,
        tensors=tensors,
        files=tuple(files),
        companions=dict(_companions(folder)),
    )


def _companions(folder: Path) -> Iterator[tuple[str, Path]]:
    """What to copy, by its new name: templates that have a folder of their own get its name before theirs."""
    yield from ((name, folder / name) for name in COMPANION_FILES if (folder / name).is_file())
    for path in sorted((folder / "additional_chat_templates").glob("*.jinja")):
        if not _PLAIN_NAME.fullmatch(path.name):
            raise UnsupportedError(f"{path} is a chat template whose name is no plain one.", "Rename the file.")
        yield f"chat_template.{path.name}", path


def _read_index(folder: Path) -> dict[str, str] | None:
    """Tensor name to file name; None when the folder has no index."""
    path = folder / INDEX_NAME
    try:
        table = Table(read_object(path), str(path))
    except NotFoundError:
        return None
    index = table.table("weight_map").raw()
    for name, shard in index.items():
        if not isinstance(shard, str) or not _PLAIN_NAME.fullmatch(shard):
            raise CorruptFileError(f"{path} puts the tensor {name!a:.120} into {shard!a:.120}, which is no file name.")
    if not index:
        raise CorruptFileError(f"{path} names no tensors.")
    return index


def _only_shard(folder: Path) -> str:
    """The one weights file of a folder without an index."""
    found = sorted(path.name for path in folder.glob("*.safetensors"))
    if SINGLE_NAME in found:
        return SINGLE_NAME
    if len(found) == 1:
        return found[0]
    if found:
        raise NotFoundError(
            f"{folder} holds {len(found)} safetensors files and no {INDEX_NAME}.", "Fetch the index too."
        )
    others = sorted(path.name for path in folder.iterdir() if path.suffix in (".bin", ".pt", ".pth", ".gguf"))
    if others:
        raise UnsupportedError(
            f"{folder} holds {others[0]} and no safetensors.",
            f"Name {folder / others[0]} itself."
            if others[0].endswith(".gguf")
            else "Save the model as safetensors first.",
        )
    raise NotFoundError(f"{folder} holds no safetensors files.")


def _open_shards(
    folder: Path, names: list[str], index: dict[str, str] | None, files: list[SourceFile]
) -> dict[str, SourceTensor]:
    """The tensors of the shards `names`; opened files are appended to `files`."""
    tensors: dict[str, SourceTensor] = {}
    home: dict[str, str] = {}
    for shard in names:
        try:
            file = LocalFile(folder / shard)
        except NotFoundError:
            raise NotFoundError(f"{folder / shard} is missing; {INDEX_NAME} names it.", "Fetch that file.") from None
        files.append(file)
        for name, entry in read_header(file.read_bytes, file.size, str(file.path)).items():
            if name in home:
                raise CorruptFileError(f"{folder}: {home[name]} and {shard} both hold the tensor {name!a:.120}.")
            home[name] = shard
            if index is None or index.get(name) == shard:
                tensors[name] = _tensor(file, entry)
    for name, shard in (index or {}).items():
        if home.get(name) != shard:
            raise CorruptFileError(f"{folder / shard} lacks the tensor {name!a:.120}, which {INDEX_NAME} puts there.")
    return tensors


def _tensor(file: SourceFile, entry: Entry) -> FileTensor:
    return FileTensor(file, entry.start, _CODEC_OF_DTYPE.get(entry.dtype, entry.dtype.lower()), entry.shape)
