"""Finding out what kind of checkpoint a path is, and opening it."""

from __future__ import annotations

from pathlib import Path

from engine.base.collector import no_cycles
from engine.base.errors import CorruptFileError, NotFoundError, UnsupportedError
from engine.files.ftw.manifest import MANIFEST_NAME
from engine.files.safetensors_header import REMEDY
from engine.files.sources.checkpoint import Checkpoint
from engine.files.sources.gguf.checkpoint import is_gguf, open_gguf
from engine.files.sources.safetensors.folder import open_folder


@no_cycles()
def open_checkpoint(source: Path) -> Checkpoint:
    """Opens a folder of safetensors or a GGUF file.

    Errors: NotFoundError, UnsupportedError for another format, CorruptFileError for files that are not what they claim.
    """
    if (source / MANIFEST_NAME).is_file():
        raise UnsupportedError(
            f"{source} is a converted model already.",
            "Move or link it into the store to run it; freetoken doctor shows where that is.",
        )
    try:
        return _open(source)
    except CorruptFileError as error:
        raise CorruptFileError(error.message, error.remedy or REMEDY) from error


def _open(source: Path) -> Checkpoint:
    if source.is_dir():
        return open_folder(source)
    if not source.exists():
        raise NotFoundError(
            f"{source} is not there.",
            "Name a folder of safetensors or a .gguf file here; freetoken pull fetches one from the Hugging Face Hub.",
        )
    if is_gguf(source):
        return open_gguf(source)
    raise UnsupportedError(
        f"{source} is neither a model folder nor a GGUF file.",
        "Name the folder that holds config.json, or a .gguf file.",
    )
