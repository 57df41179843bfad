"""The small files of a converted model: made before its weights are, so that what cannot be had is told at once."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engine.base.errors import CorruptFileError, NotFoundError
from engine.files.conversion.job import Job
from engine.files.names import CONFIG_NAME, GENERATION_NAME
from engine.files.sources.checkpoint import TokenizerWriter
from engine.files.sources.tiktoken import ranks_metadata
from engine.files.untrusted import read_small_file


def small_files(job: Job, write_tokenizer: TokenizerWriter) -> dict[str, bytes]:
    """The config, the tokenizer, and what else of the source is worth keeping, by name.

    Errors: those of `write_tokenizer` for GGUF metadata that it cannot turn into files, CorruptFileError for a
    companion that cannot be read.
    """
    files = {CONFIG_NAME: _json(job.checkpoint.config)}
    if job.recipe.sampling:
        files[GENERATION_NAME] = _json(job.recipe.sampling)
    files |= {name: _companion(path) for name, path in job.checkpoint.companions.items()}
    metadata = job.checkpoint.metadata or ranks_metadata(job.checkpoint.companions, job.checkpoint.config)
    if metadata is not None:
        files |= _written(write_tokenizer, metadata, files.get(GENERATION_NAME))
    return files


def _companion(path: Path) -> bytes:
    try:
        return read_small_file(path)
    except (CorruptFileError, NotFoundError) as error:
        raise type(error)(error.message, error.remedy or "Fetch the file again.") from None


def _written(
    write_tokenizer: TokenizerWriter, metadata: Mapping[str, Any], generation: bytes | None
) -> dict[str, bytes]:
    """What a writer of tokenizer files writes into a folder of its own; it adds to a generation config there."""
    with tempfile.TemporaryDirectory(prefix="freetoken-") as name:
        folder = Path(name)
        if generation is not None:
            (folder / GENERATION_NAME).write_bytes(generation)
        write_tokenizer(metadata, folder)
        return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def _json(content: Mapping[str, Any]) -> bytes:
    return (json.dumps(content, indent=2, sort_keys=True) + "\n").encode()
