"""A checkpoint as conversion sees it: a config, tensors under Hugging Face names, and the files that go along."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engine.files.source_file import SourceFile
from engine.files.tensors import SourceTensor

TokenizerWriter = Callable[[Mapping[str, Any], Path], None]
"""Writes the tokenizer that GGUF metadata describe as Hugging Face files into a folder; `engine.text` provides it."""

# what a model folder may hold beside its config and weights and is worth keeping
COMPANION_FILES = (
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
    "chat_template.jinja",
    "chat_template.json",
    "LICENSE",
)


@dataclass(frozen=True)
class Checkpoint:
    """An open checkpoint. `files` are the open files behind `tensors`.

    `companions` are files to copy, by the names that they get; `metadata` is the tokenizer's description in a GGUF
    file, None otherwise.
    """

    name: str
    config: Mapping[str, Any]
    tensors: Mapping[str, SourceTensor]
    files: tuple[SourceFile, ...]
    companions: Mapping[str, Path] = field(default_factory=dict)
    metadata: Mapping[str, Any] | None = None

    def close(self) -> None:
        for file in self.files:
            file.close()
