"""What may be the destination of a conversion, judged before anything is read or written."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from engine.base.errors import UsageError
from engine.files.conversion.partial import PARTIAL_SUFFIX
from engine.files.conversion.placing import LONGEST_DECORATION
from engine.files.ftw.manifest import MANIFEST_NAME

_REMEDY = "Name another destination."


def check_place(source: Path, dest: Path) -> None:
    """Raises UsageError for a `dest` that would touch the source, or whose name cannot be that of a model."""
    if dest.name.endswith(PARTIAL_SUFFIX):
        blocked = dest.name.removesuffix(PARTIAL_SUFFIX)
        raise UsageError(
            f"{dest} has the name of an unfinished conversion: it would block {blocked!a}.",
            f"Name a destination that does not end in {PARTIAL_SUFFIX}.",
        )
    _check_length(dest)
    origin, place = source.resolve(), dest.resolve()
    if place == origin:
        raise UsageError(f"{dest} is the source itself, which is never written to.", _REMEDY)
    if origin in place.parents:
        raise UsageError(f"{dest} is in the source {source}, which is never written to.", _REMEDY)
    if place in origin.parents and os.path.lexists(dest / MANIFEST_NAME):
        raise UsageError(f"{dest} holds the source {source}, and would be replaced with it.", _REMEDY)


def _check_length(dest: Path) -> None:
    """Raises UsageError when the file system bears no name as long as those that a conversion needs."""
    try:
        os.lstat(dest.parent / f"{dest.name}{LONGEST_DECORATION}")
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            raise UsageError(
                f"The name {dest.name[:40]!a}... is too long for the disk.", "Choose a shorter one."
            ) from None
