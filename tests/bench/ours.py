"""Our program as the comparisons run it: in process, on the native executor, from a converted model."""

from __future__ import annotations

from pathlib import Path


def converted(file: Path, folder: Path | None = None, demo: bool = False) -> Path:
    return file


class Ours:
    pass
