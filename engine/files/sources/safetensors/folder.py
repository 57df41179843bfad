"""A model folder of safetensors on this machine: config.json, one file or several and their index, tokenizer files.

A folder may consist of links, as snapshots in the cache of huggingface_hub do; it is read in place.
"""

from __future__ import annotations

import shlex
from pathlib import Path

from engine.base.errors import NotFoundError
from engine.files.names import CONFIG_NAME
from engine.files.safetensors_header import read_header
from engine.files.source_file import LocalFile
from engine.files.sources.checkpoint import Checkpoint, companion_files
from engine.files.sources.safetensors.shards import index_name, parse_index, tensors_of, weights_files
from engine.files.untrusted import check_readable, read_object, read_small_file

_TEMPLATES = "additional_chat_templates"
_SHOWN = 5


def open_folder(folder: Path) -> Checkpoint:
    """Opens a model folder; its index, where there is one, decides which tensors count and where they lie.

    Errors: NotFoundError for an absent config, companion or shard, CorruptFileError for a short or contradictory file,
    UnsupportedError for weights in another format.
    """
    try:
        config = read_object(folder / CONFIG_NAME)
    except NotFoundError:
        if (folder / CONFIG_NAME).is_symlink():
            raise
        ggufs = [name for name in _names(folder) if name.lower().endswith(".gguf")]
        remedy = "Name the folder that holds it, or a .gguf file."
        if ggufs:
            shown = ", ".join(shlex.quote(str(folder / name)) for name in ggufs[:_SHOWN])
            remedy = f"It holds GGUF files; name one of them: {shown}{', ...' if len(ggufs) > _SHOWN else ''}"
        raise NotFoundError(f"{folder} is not a model folder: it has no {CONFIG_NAME}.", remedy) from None
    names = _names(folder)
    companions = {name: folder / path for name, path in companion_files(names, str(folder)).items()}
    for path in companions.values():
        check_readable(path)
    index_file = index_name(names, str(folder))
    index = parse_index(read_small_file(folder / index_file), str(folder / index_file)) if index_file else None
    files: list[LocalFile] = []
    try:
        for name in weights_files(names, index, str(folder)):
            files.append(LocalFile(folder / name))
        headers = [read_header(file.read_bytes, file.size, str(file.path)) for file in files]
        tensors = tensors_of(zip(files, headers, strict=True), index, config, str(folder))
    except BaseException:
        for file in files:
            file.close()
        raise
    return Checkpoint(
        name=_model_name(folder), config=config, tensors=tensors, files=tuple(files), companions=companions
    )


def _names(folder: Path) -> list[str]:
    """The files of the folder, and those of its folder of templates with that before them."""
    templates = folder / _TEMPLATES
    inner = [f"{_TEMPLATES}/{path.name}" for path in templates.iterdir()] if templates.is_dir() else []
    return sorted([path.name for path in folder.iterdir()] + inner)


def _model_name(folder: Path) -> str:
    """The folder's own name; for a snapshot in the cache of huggingface_hub that of its repository."""
    folder = folder.resolve()
    repository = folder.parent.parent.name
    if folder.parent.name == "snapshots" and repository.startswith("models--"):
        return repository.removeprefix("models--").replace("--", "/")
    return folder.name
