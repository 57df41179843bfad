"""Locks between processes: a folder itself, or a file that is there only while it is locked."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
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
        except (FileExistsError, NotADirectoryError):
            raise FreetokenError(
                f"The folder {folder} cannot be made: a file has its name, or that of a folder it would lie in.",
                "Move that file away.",
            ) from None
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


@contextlib.contextmanager
def lock_file(path: Path, busy: BusyError) -> Iterator[None]:
    """Hold a file of this name locked; it goes away at the end. One that a killed process left is taken over.

    Raises `busy` when another process holds it, FreetokenError when it cannot be made.
    """
    while True:
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise FreetokenError(
                f"{path} cannot be made: {error.strerror}.", "Check who may write there, or choose another place."
            ) from None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            raise busy from None
        # its last owner may have removed it between our opening and our locking
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.stat(path), os.fstat(descriptor)):
                break
        os.close(descriptor)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            path.unlink()
        os.close(descriptor)
