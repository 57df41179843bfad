"""A file that is only read, by ranges. Reads go through pread: a source that shrinks or fails while it is converted is
an error to report, where a mapping would kill the process.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import numpy.typing as npt

from engine.base.errors import CorruptFileError
from engine.files.untrusted import open_regular

Bytes = npt.NDArray[np.uint8]


class SourceFile:
    """An open file of a checkpoint. `drop_behind` gives the page cache back what was read and is not read again."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor = open_regular(path)
        status = os.fstat(self._descriptor)
        self.size = status.st_size
        self.modified_ns = status.st_mtime_ns

    def read(self, start: int, out: Bytes) -> None:
        """Fills `out` with the bytes from `start` on."""
        view = out.reshape(-1).data
        done = 0
        while done < len(view):
            try:
                count = os.preadv(self._descriptor, [view[done:]], start + done)
            except OSError as error:
                raise CorruptFileError(
                    f"{self.path} cannot be read at byte {start + done}: {error.strerror}."
                ) from None
            if count == 0:
                raise CorruptFileError(f"{self.path} became short while it was read: it ends at byte {start + done}.")
            done += count

    def read_bytes(self, start: int, stop: int) -> bytes:
        """The bytes `start .. stop`."""
        out = np.empty(stop - start, np.uint8)
        self.read(start, out)
        return out.tobytes()

    def drop_behind(self) -> None:
        """Tells the kernel that the cached pages of this file are not needed any more."""
        os.posix_fadvise(self._descriptor, 0, 0, os.POSIX_FADV_DONTNEED)

    def close(self) -> None:
        os.close(self._descriptor)
