"""Which files of a model hold its weights, and which tensors in them count: decided by names, headers and the index.

Nothing here reads a file, so a folder on this machine and a repository elsewhere are judged alike.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from engine.base.errors import CorruptFileError, NotFoundError, UnsupportedError
from engine.files.names import is_plain_name
from engine.files.safetensors_header import Entry
from engine.files.source_file import SourceFile
from engine.files.sources.quantised import present
from engine.files.sources.tensors import FileTensor, SourceTensor
from engine.files.untrusted import Table, parse_object

INDEX_NAME = "model.safetensors.index.json"
SINGLE_NAME = "model.safetensors"

Index = Mapping[str, str]
"""The file of each tensor that counts."""

_ENDING = ".safetensors"
_INDEX_ENDING = ".safetensors.index.json"
_OTHER_FORMATS = (".gguf", ".bin", ".pt", ".pth")
# the same weights once more, under the names of another program
_DUPLICATES = "consolidated"
_FORM_OF_DTYPE = {"F32": "f32", "F16": "f16", "BF16": "bf16"}


def index_name(names: Collection[str], where: str) -> str | None:
    """The index among the `names` of a folder's files, None without one. `where` names the folder in errors.

    What lies in folders of the folder is of no interest here.
    """
    if INDEX_NAME in names:
        return INDEX_NAME
    found = sorted(
        name
        for name in names
        if name.endswith(_INDEX_ENDING) and not name.startswith(_DUPLICATES) and is_plain_name(name)
    )
    if len(found) > 1:
        raise UnsupportedError(
            f"{where} holds {len(found)} indices, {found[0]} and {found[1]} among them.",
            f"Keep the one that counts under the name {INDEX_NAME}.",
        )
    return found[0] if found else None


def parse_index(text: bytes, where: str) -> Index:
    """Reads an index; `where` names it in errors. Raises CorruptFileError for one that is none or leaves the folder."""
    index = Table(parse_object(text, where), where).table("weight_map").raw()
    for name, shard in index.items():
        if not isinstance(shard, str) or not is_plain_name(shard):
            raise CorruptFileError(
                f"{where} puts the tensor {name!a:.120} into {shard!a:.120}, which is no file name.", "Fetch it again."
            )
    if not index:
        raise CorruptFileError(f"{where} names no tensors.", "Fetch it again.")
    return index


def weights_files(names: Collection[str], index: Index | None, where: str) -> tuple[str, ...]:
    """The files to read, in order: those that the index names, or the only one there is.

    Errors, with the folder's name `where`: NotFoundError for files that are not among `names` or for an absent index,
    UnsupportedError for weights in another format.
    """
    if index is not None:
        shards = sorted(set(index.values()))
        there = set(names)
        absent = [shard for shard in shards if shard not in there]
        if absent:
            more = f", and so are {len(absent) - 1} more" if len(absent) > 1 else ""
            raise NotFoundError(
                f"{where}/{absent[0]} is missing{more}; the index names {len(shards)} files.", "Fetch what is missing."
            )
        return tuple(shards)
    names = [name for name in names if "/" not in name]
    everything = sorted(name for name in names if name.endswith(_ENDING))
    found = [name for name in everything if not name.startswith(_DUPLICATES)] or everything
    if SINGLE_NAME in found:
        return (SINGLE_NAME,)
    if len(found) == 1:
        return (found[0],)
    if found:
        raise NotFoundError(
            f"{where} holds {len(found)} safetensors files and no {INDEX_NAME}, which says what is in which.",
            "Fetch the index too.",
        )
    raise _no_safetensors(names, where)


def _no_safetensors(names: Iterable[str], where: str) -> NotFoundError | UnsupportedError:
    for ending in _OTHER_FORMATS:
        others = sorted(name for name in names if name.endswith(ending))
        if others:
            remedy = "Save the model as safetensors first."
            if ending == ".gguf":
                remedy = f"Name {where}/{others[0]} itself."
            return UnsupportedError(f"{where} holds {others[0]} and no safetensors.", remedy)
    return NotFoundError(f"{where} holds no safetensors files.", "Fetch the weights, or name another folder.")


def tensors_of(
    shards: Iterable[tuple[SourceFile, Mapping[str, Entry]]], index: Index | None, config: Mapping[str, Any], where: str
) -> Mapping[str, SourceTensor]:
    """The tensors of a model from the headers of its files; quantised ones as one tensor a matrix.

    A tensor lies where the index says, whatever else holds one of its name; without an index all count. Nothing but
    headers is read. Errors: CorruptFileError for a tensor that is not where the index says, and those of `present`.
    """
    return present(_raw_tensors(shards, index, where), config)


def _raw_tensors(
    shards: Iterable[tuple[SourceFile, Mapping[str, Entry]]], index: Index | None, where: str
) -> dict[str, FileTensor]:
    """The tensors that count; their forms are those of plain values, or the lower-case names of their types."""
    tensors: dict[str, FileTensor] = {}
    for file, entries in shards:
        for name, entry in entries.items():
            if index is None or index.get(name) == file.path.name:
                form = _FORM_OF_DTYPE.get(entry.dtype, entry.dtype.lower())
                tensors[name] = FileTensor(file, entry.start, form, entry.shape)
    for name, shard in (index or {}).items():
        if name not in tensors:
            raise CorruptFileError(
                f"{where}/{shard} lacks the tensor {name!a:.120}, which the index puts there.",
                "The index and the weights are not of one model: fetch both again.",
            )
    return tensors
