"""The hashes that the Hub publishes of its files."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from engine.base.errors import CorruptFileError
from engine.files.hub.listing import HubFile
from engine.files.untrusted import open_regular

_BLOCK_BYTES = 1 << 20


class Hasher:
    """The hash that is known of `file`: sha256, or for small files git's sha1 of a blob. `name` says which."""

    def __init__(self, file: HubFile) -> None:
        if file.sha256:
            self.name = "sha256"
            self._hasher = hashlib.sha256()
        else:
            self.name = "git hash"
            self._hasher = hashlib.sha1(b"blob %d\0" % file.size, usedforsecurity=False)

    def update(self, data: bytes | memoryview) -> None:
        self._hasher.update(data)

    def update_from(self, descriptor: int) -> None:
        """Takes in all that an open file holds."""
        position = 0
        while block := os.pread(descriptor, _BLOCK_BYTES, position):
            self._hasher.update(block)
            position += len(block)

    def hexdigest(self) -> str:
        return self._hasher.hexdigest()


def check(path: Path, file: HubFile) -> None:
    """Raises CorruptFileError unless the file at `path` has the size and, where one is known, the hash of `file`."""
    descriptor = open_regular(path)
    try:
        size = os.fstat(descriptor).st_size
        if size != file.size:
            raise CorruptFileError(f"{path} has {size} bytes; it should have {file.size}.")
        hasher = Hasher(file)
        hasher.update_from(descriptor)
    finally:
        os.close(descriptor)
    if file.digest and hasher.hexdigest() != file.digest:
        raise CorruptFileError(
            f"{path} is damaged: its {hasher.name} should be {file.digest} and is {hasher.hexdigest()}."
        )
