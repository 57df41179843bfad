"""A conversion in progress: a folder `<dest>.partial` with the files so far and a journal of what is safely in them.

The journal's first line says what is being converted into what; every further line is the hash of the next item in the
order of writing, and what else is to be known of it when all is done. A line is written only after its item has reached
the disk, so whatever the journal says survives a kill and a power cut.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from engine.base.errors import CorruptFileError, DoesNotFitError, FreetokenError, UsageError
from engine.files.journal import HASH_CHARS
from engine.files.locks import lock_folder

if TYPE_CHECKING:  # a listing of the store comes by here and should not wait for numpy
    from engine.files.source_file import Bytes

JOURNAL_NAME = "journal"
JOURNAL_VERSION = 2  # hashes are in the order of the source's files
PARTIAL_SUFFIX = ".partial"
_PIECE_BYTES = 1 << 20
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)


def partial_folder(dest: Path) -> Path:
    """Where a conversion into `dest` works until it is finished."""
    return dest.with_name(dest.name + PARTIAL_SUFFIX)


class Partial:
    """The unfinished folder of one destination, locked against a second conversion.

    As a context it turns a disk that is full into DoesNotFitError, and one that cannot be written into FreetokenError.
    `lines` are the journal's for the items already done; each begins with the item's hash.
    """

    def __init__(self, dest: Path, fingerprint: Mapping[str, Any], discard_other: bool) -> None:
        """Takes the lock, and up an earlier conversion of the same source with the same settings.

        `discard_other` throws another conversion away. Errors: BusyError when another process is at it, UsageError
        when the folder holds another conversion that is to be kept.
        """
        self.dest = dest
        self.folder = partial_folder(dest)
        self._lock = lock_folder(self.folder, f"Another process is converting into {self.folder}.")
        self._files: dict[str, int] = {}
        self._dirty: set[str] = set()
        self._new_names = True
        try:
            self.lines = self._open_journal(fingerprint, discard_other)
        except BaseException:
            os.close(self._lock)
            raise

    def _open_journal(self, fingerprint: Mapping[str, Any], discard_other: bool) -> list[str]:
        path = self.folder / JOURNAL_NAME
        head = json.dumps(fingerprint, sort_keys=True)
        # What a power cut left in it may be anything, text or not.
        lines = path.read_bytes().split(b"\n") if path.exists() else []
        complete = [line.decode("utf-8", "replace") for line in lines[:-1]]  # the last has no end, or is empty
        if complete and complete[0] != head:
            if not discard_other:
                other = _what_differs(complete[0], fingerprint)
                raise UsageError(
                    f"{self.folder} holds an unfinished conversion {other}.",
                    f"Finish that one, remove it with: rm -r {self.folder}, or start again with --force.",
                )
            complete = []
        if not complete:
            _empty(self.folder)
        self._journal = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
        os.ftruncate(self._journal, sum(len(line) + 1 for line in lines[: len(complete)]))
        os.lseek(self._journal, 0, os.SEEK_END)
        if not complete:
            _write_all(self._journal, f"{head}\n".encode())
        return complete[1:]

    def write(self, file: str, offset: int, data: Bytes) -> None:
        """Writes `data` at byte `offset` of a file of the folder."""
        if file not in self._files:
            self._new_names = True
            self._files[file] = os.open(self.folder / file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self._dirty.add(file)
        _write_all(self._files[file], data.data, offset)

    @property
    def hashes(self) -> list[str]:
        """The hashes of the items already done, in the order of writing."""
        return [line[:HASH_CHARS] for line in self.lines]

    def record(self, lines: list[str], drop_cache: bool) -> None:
        """Makes everything written so far safe on disk, then notes the items of `lines` as done."""
        for file in sorted(self._dirty):
            os.fdatasync(self._files[file])
            if drop_cache:
                os.posix_fadvise(self._files[file], 0, 0, os.POSIX_FADV_DONTNEED)
        self._dirty.clear()
        if self._new_names:  # what follows may give up the source, so the files' names have to last as well
            _sync(self.folder)
            _sync(self.folder.parent)
            self._new_names = False
        _write_all(self._journal, "".join(f"{line}\n" for line in lines).encode())
        os.fsync(self._journal)
        self.lines += lines

    def sync(self, file: str) -> None:
        """Waits until what was written to `file` is on the disk."""
        os.fdatasync(self._files[file])

    def read(self, file: str, start: int, stop: int) -> Iterator[bytes]:
        """What an earlier run wrote, piece by piece; less where the file ends before `stop`."""
        path = self.folder / file
        if not path.exists():
            return
        with path.open("rb") as opened:
            opened.seek(start)
            while start < stop and (piece := opened.read(min(_PIECE_BYTES, stop - start))):
                yield piece
                start += len(piece)

    def finish(self, sizes: Mapping[str, int], replace: bool) -> None:
        """Checks the size of every file, then gives the folder its final name in one step.

        `replace` allows a model of that name to be there already; it is removed after the new one is in place. The
        journal goes last: until then a kill costs nothing, and after it nobody looks for one.
        """
        for file, size in sizes.items():
            actual = (self.folder / file).stat().st_size
            if actual != size:
                raise CorruptFileError(f"{self.folder / file} has {actual} bytes instead of {size}.", "Convert again.")
        for path in self.folder.iterdir():
            _sync(path)
        _sync(self.folder)
        old = self.dest.with_name(f".{self.dest.name}.replaced")
        _discard(old)
        if replace and os.path.lexists(self.dest):
            self.dest.rename(old)
        self.folder.rename(self.dest)
        _sync(self.dest.parent)
        (self.dest / JOURNAL_NAME).unlink()
        _discard(old)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None and not self._files and not self.lines:
            _discard(self.folder)  # nothing was begun, so nothing is left behind
        for descriptor in (*self._files.values(), self._journal, self._lock):
            os.close(descriptor)
        if not isinstance(error, OSError):
            return
        if error.errno in _NO_SPACE:
            raise DoesNotFitError(
                f"The disk that holds {self.folder} is full.",
                "What was written is kept: free some space and convert again to go on from there.",
            ) from error
        raise FreetokenError(
            f"{self.folder} cannot be written: {error.strerror}.",
            "What was written is kept: convert again to go on from there.",
        ) from error


def _what_differs(head: str, fingerprint: Mapping[str, Any]) -> str:
    """What tells another conversion, with the first line `head` in its journal, from this one; for a sentence."""
    try:
        other = json.loads(head)
    except ValueError:
        other = None
    if isinstance(other, dict) and any(other.get(name) != fingerprint.get(name) for name in ("tool", "journal")):
        return f"by another version of freetoken, {str(other.get('tool'))[:20]!a}"
    return "of another source or with other settings"


def _empty(folder: Path) -> None:
    for path in folder.iterdir():
        _discard(path)


def _discard(path: Path) -> None:
    """Removes a file, a link or a folder, if there is one."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _write_all(descriptor: int, data: bytes | memoryview, offset: int | None = None) -> None:
    view = memoryview(data)
    done = 0
    while done < len(view):
        rest = view[done:]
        done += os.write(descriptor, rest) if offset is None else os.pwrite(descriptor, rest, offset + done)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
