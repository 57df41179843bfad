"""A checkpoint as conversion sees it: a config, tensors under Hugging Face names, and the files that go along."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engine.base.errors import UnsupportedError
from engine.files.names import COMPANION_FILES, is_plain_name
from engine.files.source_file import SourceFile
from engine.files.sources.tensors import SourceTensor

TokenizerWriter = Callable[[Mapping[str, Any], Path], None]
"""Writes the tokenizer that GGUF metadata describe as Hugging Face files into a folder; `engine.text` provides it."""

_TEMPLATES = "additional_chat_templates/"


def companion_files(names: Iterable[str], where: str) -> dict[str, str]:
    """What to copy of a folder's files, by the new name; `where` names the folder in errors.

    Templates that have a folder of their own get its name before theirs, as a converted model is flat. Raises
    UnsupportedError for one whose name is no plain one.
    """
    there = sorted(names)
    copied = {name: name for name in COMPANION_FILES if name in there}
    for name in there:
        if name.startswith(_TEMPLATES) and name.endswith(".jinja"):
            plain = name.removeprefix(_TEMPLATES)
            if not is_plain_name(plain):
                raise UnsupportedError(f"{where}/{name} is a chat template whose name is no plain one.", "Rename it.")
            copied[f"chat_template.{plain}"] = name
    return copied


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
