"""A file of a checkpoint that is only read, by ranges. It may lie on a disk, or come while it is being converted."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import xxhash

from engine.base.errors import CorruptFileError
from engine.files.untrusted import open_regular

Bytes = npt.NDArray[np.uint8]

# Of a sample: the beginning holds most headers, the stripes are a few of the weights, the last of them the end.
_BEGINNING_BYTES = 64 << 10
_STRIPES = 16
_STRIPE_BYTES = 4 << 10


class SourceFile(Protocol):
    """An open file of a checkpoint, of `size` bytes.

    Its bytes may be read after `acquire` and until `release`; a conversion calls each at most once, and `release` also
    for a file of which it will read nothing at all. `path` names it in errors.
    """

    @property
    def path(self) -> Path: ...

    @property
    def size(self) -> int: ...

    @property
    def identity(self) -> list[Any]:
        """JSON values that are the same as long as the content is: what a journal knows the file again by."""
        ...

    def sample(self) -> str | None:
        """A hash of a few stripes, to tell files of one name and size apart; None for one that is not here yet."""
        ...

    def acquire(self) -> None:
        """Returns when every byte is here and checked. Errors: NetworkError, CorruptFileError, DoesNotFitError."""
        ...

    def release(self) -> None:
        """Nothing of it will be read again: a copy that was made for this conversion may go."""
        ...

    def read(self, start: int, out: Bytes) -> None:
        """Fills `out` with the bytes from `start` on. Raises CorruptFileError when they are not there."""
        ...

    def read_bytes(self, start: int, stop: int) -> bytes:
        """The bytes `start .. stop`."""
        ...

    def drop_behind(self) -> None:
        """Gives the page cache back what was read and is not read again."""
        ...

    def close(self) -> None: ...


class LocalFile:
    """A SourceFile that lies on this machine and is left as it is.

    Reads go through pread: a source that shrinks or fails while it is converted is an error to report, where a mapping
    would kill the process.
    """

    def __init__(self, path: Path) -> None:
        """Errors: NotFoundError when nothing is there, CorruptFileError for what is no regular file."""
        self.path = path
        self._descriptor = open_regular(path)
        status = os.fstat(self._descriptor)
        self.size = status.st_size
        self.identity: list[Any] = [path.name, status.st_size, status.st_mtime_ns]

    def sample(self) -> str:
        hasher = xxhash.xxh3_128(self.read_bytes(0, min(self.size, _BEGINNING_BYTES)))
        for number in range(1, _STRIPES + 1):
            start = max(0, self.size - _STRIPE_BYTES) * number // _STRIPES
            hasher.update(self.read_bytes(start, min(self.size, start + _STRIPE_BYTES)))
        return hasher.hexdigest()

    def acquire(self) -> None:
        """It is here already."""

    def release(self) -> None:
        self.drop_behind()

    def read(self, start: int, out: Bytes) -> None:
        view = out.reshape(-1).data
        done = 0
        while done < len(view):
            try:
                count = os.preadv(self._descriptor, [view[done:]], start + done)
            except OSError as error:
                raise CorruptFileError(
                    f"{self.path} cannot be read at byte {start + done}: {error.strerror}.",
                    "Check the disk that it lies on, or fetch it again.",
                ) from None
            if count == 0:
                raise CorruptFileError(
                    f"{self.path} became short while it was read: it had {self.size} bytes and ends at byte "
                    f"{start + done} now.",
                    "Fetch it again, and leave it alone while it is converted.",
                )
            done += count

    def read_bytes(self, start: int, stop: int) -> bytes:
        out = np.empty(stop - start, np.uint8)
        self.read(start, out)
        return out.tobytes()

    def drop_behind(self) -> None:
        os.posix_fadvise(self._descriptor, 0, 0, os.POSIX_FADV_DONTNEED)

    def close(self) -> None:
        os.close(self._descriptor)
