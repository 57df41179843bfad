"""A folder as a lock, without a lock file that could be left behind."""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path

from engine.base.errors import BusyError, FreetokenError


def lock_folder(folder: Path, busy: str) -> int:
    """A descriptor of `folder`, made if absent, that holds its lock until it is closed.

    Raises BusyError with the sentence `busy` when another process holds it, FreetokenError when it cannot be made.
    """
    while True:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise FreetokenError(
                f"The folder {folder} cannot be made: {error.strerror}.",
                "Choose a place that you can write to; FREETOKEN_STORE moves the models.",
            ) from None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            raise BusyError(busy, "Wait for it, or stop it.") from None
        # its last owner may have renamed or removed it between our opening and our locking
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.stat(folder), os.fstat(descriptor)):
                return descriptor
        os.close(descriptor)
