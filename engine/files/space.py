"""Whether a disk has room, before the first byte is written."""

from __future__ import annotations

import shutil
from pathlib import Path

from engine.base.errors import DoesNotFitError
from engine.base.units import format_size


def free_space(path: Path) -> tuple[Path, int]:
    """The nearest folder on the way to `path` that exists, and the bytes that are free there."""
    folder = next(folder for folder in (path.absolute(), *path.absolute().parents) if folder.is_dir())
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
