"""Whether a disk has room, before the first byte is written, and what is taken of it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from engine.base.errors import DoesNotFitError
from engine.base.units import format_size

SMALL_FILES_BYTES = 64 << 20  # room for a model's manifest, its tokenizer and what the file system adds
_BLOCK_BYTES = 512  # of which `st_blocks` counts


def free_space(path: Path) -> tuple[Path, int]:
    """The nearest folder on the way to `path` that exists, and the bytes that are free there."""
    folder = next(folder for folder in (path.absolute(), *path.absolute().parents) if os.path.isdir(folder))
    return folder, shutil.disk_usage(folder).free


def require_space(path: Path, needed: int) -> None:
    """Raises DoesNotFitError with the numbers when the disk that `path` will be on lacks `needed` free bytes."""
    _, free = free_space(path)
    if needed > free:
        raise DoesNotFitError(
            f"{path} needs {format_size(needed)} of disk and {format_size(free)} are free: "
            f"{format_size(needed - free)} too little.",
            "Free some space, or choose another disk.",
        )


def used_bytes(folder: Path) -> int:
    """What a folder and the folders in it take of the disk; an absent one takes nothing."""
    return measure(folder)[0]


def measure(folder: Path) -> tuple[int, float]:
    """Bytes on disk, and when anything in it changed last; what vanishes meanwhile counts nothing."""
    size = 0
    modified = 0.0
    for parent, folders, files in os.walk(folder):
        for name in (*folders, *files):
            try:
                status = os.lstat(os.path.join(parent, name))
            except FileNotFoundError:
                continue
            size += status.st_blocks * _BLOCK_BYTES
            modified = max(modified, status.st_mtime)
    return size, modified
