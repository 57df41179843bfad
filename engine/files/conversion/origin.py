"""What a model was made of, as its provenance tells: enough to know the same checkpoint again without reading it all.

A checkpoint that was trained further has the same names and sizes; samples of its files and its config tell it apart.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import xxhash

from engine.files.sources.checkpoint import Checkpoint

_FILES, _CONTENT = "source_files", "source_content"
_SAMPLE = "sample"


def origin_of(checkpoint: Checkpoint) -> dict[str, Any]:
    """The entries of a provenance that tell what it was made of; files that are not here yet are not sampled."""
    files: list[dict[str, Any]] = []
    for file in checkpoint.files:
        sample = file.sample()
        files.append({"file": file.path.name, "bytes": file.size} | ({_SAMPLE: sample} if sample else {}))
    return {_FILES: files, _CONTENT: _content(checkpoint)}


def is_origin(checkpoint: Checkpoint, provenance: Mapping[str, Any]) -> bool:
    """Whether a model of that provenance was made of `checkpoint`, as far as the provenance tells.

    One that a release without samples has made, or whose files came over the network, is known by names and sizes.
    """
    now = origin_of(checkpoint)
    if provenance.get(_CONTENT, now[_CONTENT]) != now[_CONTENT]:
        return False
    there = provenance.get(_FILES)
    if not isinstance(there, list) or len(there) != len(now[_FILES]):
        return False
    return all(
        isinstance(before, dict) and {_SAMPLE: file.get(_SAMPLE)} | before == {_SAMPLE: None} | file
        for before, file in zip(there, now[_FILES], strict=True)
    )


def _content(checkpoint: Checkpoint) -> str:
    """The hash of the config as it was published, or of a GGUF file's tokenizer.

    Nothing that is derived: another release may derive it otherwise.
    """
    said = checkpoint.config if checkpoint.metadata is None else checkpoint.metadata
    return xxhash.xxh3_128_hexdigest(json.dumps(said, sort_keys=True).encode())
