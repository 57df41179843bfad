"""What the tests of conversion share."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engine.files.conversion.convert import convert
from engine.files.conversion.stream import Pace
from engine.files.ftw.opening import Ftw, open_model

EAGER = Pace(save_bytes=0, save_seconds=0.0)  # every item is safe as soon as it is written


class Interrupted(Exception):
    """Stands for whatever ends a conversion from outside."""


def write_tokenizer(metadata: Mapping[str, Any], folder: Path) -> None:
    (folder / "tokenizer.json").write_text(json.dumps(metadata["tokenizer.ggml.tokens"]))


def run(source: Path, dest: Path, **options: Any) -> Ftw:
    convert(source, dest, **{"write_tokenizer": write_tokenizer, "pace": EAGER} | options)
    return open_model(dest)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


class InterruptAt:
    """A progress that ends the conversion at byte `limit`; `first` is the first number it was told."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.first = -1

    def __call__(self, done: int, total: int) -> None:
        if self.first < 0:
            self.first = done
        if done >= self.limit:
            raise Interrupted


def resumed_at(source: Path, dest: Path, **options: Any) -> int:
    """Converts to the end; returns where it began."""
    progress = InterruptAt(sys.maxsize)
    run(source, dest, progress=progress, **options)
    return progress.first
