"""A conversion in progress: a folder `<dest>.partial` with the files so far and a journal of what is safely in them.

The journal's first line says what is being converted into what; every further line is the hash of the next item in the
order of writing, and what else is to be known of it when all is done. A line is written only after its item has reached
the disk, so whatever the journal says survives a kill and a power cut.
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from engine.base.errors import CorruptFileError, DoesNotFitError, FreetokenError, UsageError, is_disk_full
from engine.files.conversion.journal import HASH_CHARS
from engine.files.conversion.placing import put_in_place, remove_tree, settle, sync
from engine.files.conversion.written import is_of_conversion
from engine.files.ftw.manifest import MANIFEST_NAME
from engine.files.locks import lock_folder
from engine.files.names import JOURNAL_NAME
from engine.files.writing import write_all

if TYPE_CHECKING:  # a listing of the store comes by here and should not wait for numpy
    from engine.files.source_file import Bytes

JOURNAL_VERSION = 4  # the first line tells how the source is read
PARTIAL_SUFFIX = ".partial"
_BEGINNING = b'{"journal": '  # of every journal, whatever its version
_FORCED = "forced"  # said of a conversion in its first line, and no part of what it is
_PIECE_BYTES = 1 << 20


def partial_folder(dest: Path) -> Path:
    """Where a conversion into `dest` works until it is finished."""
    return dest.with_name(dest.name + PARTIAL_SUFFIX)


class Partial:
    """The unfinished folder of one destination, locked against a second conversion.

    As a context it turns a disk that is full into DoesNotFitError, and one that cannot be written into FreetokenError.
    `lines` are the journal's for the items already done; each begins with the item's hash.
    """

    def __init__(self, dest: Path, fingerprint: Mapping[str, Any], force: bool, removal: str = "") -> None:
        """Takes the lock, and up an earlier conversion of the same source with the same settings.

        `force` throws an earlier conversion away, unless that was begun with `force` as well and is the same: whoever
        says the same again goes on. `fingerprint` begins with the version of the journal.
        `removal` is the command that removes what is unfinished, where there is a better one than that of the shell.

        Errors: BusyError when another process is at it, UsageError when the folder holds another conversion that is to
        be kept, or what no conversion has written.
        """
        self.dest = dest
        self.folder = partial_folder(dest)
        # Where a model has the name already, a command that knows the name alone would remove that one too.
        by_shell = f"rm -r {shlex.quote(str(self.folder))}"
        self.removal = by_shell if not removal or os.path.lexists(dest) else removal
        self._lock = lock_folder(self.folder, f"Another process is converting into {self.folder}.")
        self._files: dict[str, int] = {}
        self._dirty: set[str] = set()
        self._new_names = True
        try:
            settle(dest)
            self._drop_replaced()
            self.lines = self._open_journal(fingerprint, force)
        except BaseException as error:
            os.close(self._lock)
            self._raise_told(error)
            raise

    def _drop_replaced(self) -> None:
        """Ends the replacement of a model that was killed just after the two had changed places.

        The new one still has its journal then, and what it replaced has the name of the unfinished one and none.
        """
        journal = self.dest / JOURNAL_NAME
        if self.dest.is_symlink() or not (self.dest / MANIFEST_NAME).is_file() or not _begins_as_journal(journal):
            return
        if (self.folder / MANIFEST_NAME).is_file() and not os.path.lexists(self.folder / JOURNAL_NAME):
            _empty(self.folder)
        journal.unlink(missing_ok=True)

    def _open_journal(self, fingerprint: Mapping[str, Any], force: bool) -> list[str]:
        path = self.folder / JOURNAL_NAME
        # What a power cut left in it may be anything, text or not.
        lines = path.read_bytes().split(b"\n") if _begins_as_journal(path) else []
        self._refuse_strangers(has_journal=bool(lines), begun=len(lines) > 1)
        complete = [line.decode("utf-8", "replace") for line in lines[:-1]]  # the last has no end, or is empty
        if complete:
            earlier = _parse_head(complete[0])
            is_same = {name: value for name, value in earlier.items() if name != _FORCED} == fingerprint
            if not is_same and not force:
                raise UsageError(
                    f"{self.folder} holds an unfinished conversion {_what_differs(earlier, fingerprint)}.",
                    f"Finish that one, remove it with: {self.removal}, or start again with --force.",
                )
            if not is_same or (force and not earlier.get(_FORCED)):
                complete = []
        self._journal = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
        os.ftruncate(self._journal, sum(len(line) + 1 for line in lines[: len(complete)]))
        os.lseek(self._journal, 0, os.SEEK_END)
        if not complete:  # from here on the journal says that the folder is ours, and nothing else
            _empty(self.folder, but=JOURNAL_NAME)
            head = json.dumps({**fingerprint, _FORCED: force})
            write_all(self._journal, f"{head}\n".encode())
            os.fsync(self._journal)
            sync(self.folder)
        return complete[1:]

    def _refuse_strangers(self, has_journal: bool, begun: bool) -> None:
        """Raises UsageError for a folder that only has our name: what is in it is not ours to remove.

        A journal is made before anything else. One that is not `begun` proves little, so the other names have to be
        ours as well.
        """
        if begun:
            return
        strange = [name for name in os.listdir(self.folder) if not (has_journal and is_of_conversion(name))]
        if strange:
            raise UsageError(
                f"{self.folder} is where a conversion into {self.dest} would work, and it holds {min(strange)!a:.120}, "
                "which no conversion has left.",
                "Move that folder away, or name another destination.",
            )

    def write_small(self, contents: Mapping[str, bytes]) -> None:
        """Writes whole files, which a conversion that goes on writes once more."""
        for name, content in contents.items():
            (self.folder / name).write_bytes(content)

    def write(self, file: str, offset: int, data: Bytes) -> None:
        """Writes `data` at byte `offset` of a file of the folder."""
        if file not in self._files:
            self._new_names = True
            self._files[file] = os.open(self.folder / file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self._dirty.add(file)
        write_all(self._files[file], data.data, offset)

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
            sync(self.folder)
            sync(self.folder.parent)
            self._new_names = False
        write_all(self._journal, "".join(f"{line}\n" for line in lines).encode())
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
        """Checks the size of every file of the model, then gives the folder its final name in one step.

        `replace` allows a model of that name to be there already; it is removed after the new one is in place. The
        journal goes last: until then a kill costs nothing, and after it nobody looks for one.
        """
        for file, size in sizes.items():
            actual = (self.folder / file).stat().st_size
            if actual != size:
                raise CorruptFileError(f"{self.folder / file} has {actual} bytes instead of {size}.", "Convert again.")
            sync(self.folder / file)
        sync(self.folder)
        put_in_place(self.folder, self.dest, replace)
        (self.dest / JOURNAL_NAME).unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None and not self._files and not self.lines:
            remove_tree(self.folder)  # nothing was begun, so nothing is left behind
        for descriptor in (*self._files.values(), self._journal, self._lock):
            os.close(descriptor)
        self._raise_told(error)

    def _raise_told(self, error: BaseException | None) -> None:
        """Raises what there is to say of a disk that is full, or cannot be written."""
        if not isinstance(error, OSError):
            return
        if is_disk_full(error):
            raise DoesNotFitError(
                f"The disk that holds {self.folder} is full.",
                "What was written is kept: free some space and convert again to go on from there.",
            ) from error
        raise FreetokenError(
            f"{self.folder} cannot be written: {error.strerror}.",
            "What was written is kept: convert again to go on from there.",
        ) from error


def _begins_as_journal(path: Path) -> bool:
    """Whether a file is a journal of ours as far as it goes; zeros are what a power cut may leave of one."""
    if path.is_symlink() or not path.is_file():
        return False
    with path.open("rb") as file:
        return _BEGINNING.startswith(file.read(len(_BEGINNING)).rstrip(b"\0"))


def _parse_head(head: str) -> dict[str, Any]:
    """What the first line of a journal says; nothing if it says nothing."""
    try:
        said = json.loads(head)
    except ValueError:
        return {}
    return said if isinstance(said, dict) else {}


def _what_differs(earlier: Mapping[str, Any], fingerprint: Mapping[str, Any]) -> str:
    """What tells another conversion, with that in its journal's first line, from this one; for a sentence."""
    if earlier and any(earlier.get(name) != fingerprint.get(name) for name in ("tool", "journal")):
        return f"by another version of freetoken, {str(earlier.get('tool'))[:20]!a}"
    return "of another source or with other settings"


def _empty(folder: Path, but: str = "") -> None:
    for name in os.listdir(folder):
        if name != but:
            remove_tree(folder / name)
