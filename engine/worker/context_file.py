"""The file of a saved context: a header that says what it belongs to, then blocks of context memory.

    magic "FTCONTXT" | version u32 | header bytes u32 | header, JSON | XXH3 of it u64 | blocks

Numbers are little-endian. Each block is followed by its XXH3 (u64). Pages come in order of position, and of each its
page block, its window page if it is saved, and the state of its checkpoint if that is.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import stat
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import xxhash

from engine.base.errors import BusyError, CorruptFileError, FreetokenError, UnsupportedError, UsageError
from engine.files.space import require_space
from engine.files.untrusted import open_regular
from engine.files.writing import write_all
from engine.memory.blocks import BlockKind
from engine.memory.pages import PAGE_TOKENS
from engine.memory.saved import SavedPage
from engine.program.executor import Bytes

MAGIC, VERSION = b"FTCONTXT", 2
_FIXED = struct.Struct("<8sII")
_HASH = struct.Struct("<Q")
_LARGEST_HEADER = 256 << 20
_SYNC_BYTES = 16 << 20  # written between two waits for the disk, so that no wait is long
_AGAIN = "Save it again; until then the conversation is computed anew."


@dataclass(frozen=True)
class ContextIdentity:
    """What a saved context belongs to. Of all but the names only digests.

    `model` is the model's name and `weights` the digest of its manifest; `program` covers the operations and the
    types and sizes of context memory, whose layout differs between devices.
    """

    model: str = ""
    weights: str = ""
    program: str = ""
    device: str = ""
    release: str = ""

    def check(self, mine: ContextIdentity, path: Path) -> None:
        """Raise UnsupportedError that says why a file of this identity is not for a worker of identity `mine`."""
        if self.weights != mine.weights and self.model == mine.model:
            what = f"belongs to another conversion of {self.model}"
        elif self.weights != mine.weights:
            what = f"belongs to the model {self.model}, not to {mine.model}"
        elif self.release != mine.release:
            what = f"was saved by freetoken {self.release}, and this is {mine.release}"
        elif self.device != mine.device:
            what = f"was saved on the device {self.device}, and the model runs on {mine.device}"
        elif self.program != mine.program:
            what = "was saved with other settings, which lay context memory out in another way"
        else:
            return
        raise UnsupportedError(f"The context in {path} {what}.", _AGAIN)


@dataclass(frozen=True)
class ContextHeader:
    """What a file holds: `tokens`, whole pages of them, and of each page what `pages` says."""

    identity: ContextIdentity
    tokens: tuple[int, ...]
    pages: tuple[SavedPage, ...]
    block_bytes: Mapping[BlockKind, int]

    @property
    def blocks(self) -> list[tuple[int, BlockKind]]:
        """Page and kind of every block, as they follow each other."""
        return [(index, kind) for index in range(len(self.pages)) for kind in self.kinds(index)]

    def kinds(self, page: int) -> list[BlockKind]:
        """The blocks of one page, in order. Kinds without bytes are not in the file."""
        kinds = self.pages[page].kinds(self.block_bytes["state"] > 0)
        return [kind for kind in kinds if self.block_bytes[kind]]

    @property
    def payload(self) -> int:
        """Bytes after the header."""
        return sum(self.block_bytes[kind] + _HASH.size for _, kind in self.blocks)

    def to_bytes(self) -> bytes:
        """The beginning of a file, up to its first block."""
        content = {
            "identity": asdict(self.identity),
            "block_bytes": dict(self.block_bytes),
            "tokens": self.tokens,
            "windows": [index for index, page in enumerate(self.pages) if page.window],
            "checkpoints": [index for index, page in enumerate(self.pages) if page.checkpoint],
        }
        text = json.dumps(content, separators=(",", ":")).encode()
        return _FIXED.pack(MAGIC, VERSION, len(text)) + text + _HASH.pack(xxhash.xxh3_64_intdigest(text))

    @staticmethod
    def from_json(content: Any) -> ContextHeader:
        """ValueError for what `to_bytes` could not have written."""
        try:
            tokens = tuple(content["tokens"])
            windows, checkpoints = set(content["windows"]), set(content["checkpoints"])
            sizes: dict[BlockKind, int] = {kind: int(content["block_bytes"][kind]) for kind in _KINDS}
            count, rest = divmod(len(tokens), PAGE_TOKENS)
            if rest or not all(type(token) is int for token in tokens) or min(sizes.values()) < 0:
                raise ValueError("its tokens are no whole pages")
            pages = tuple(SavedPage(index in windows, index in checkpoints) for index in range(count))
            identity = ContextIdentity(**content["identity"])
            if content["identity"].keys() != vars(identity).keys():
                raise ValueError("its identity is not whole")
            return ContextHeader(identity, tokens, pages, sizes)
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"no header: {error!r}") from None


_KINDS: Sequence[BlockKind] = ("page", "window", "state")


class ContextWriter:
    """Writes a file under a temporary name; `finish` gives it its own. Left before that, nothing remains of it.

    Raises UsageError for a folder, BusyError where another process writes the same file, DoesNotFitError before the
    first byte where the disk lacks room, FreetokenError for what the system says.
    """

    def __init__(self, path: Path, header: ContextHeader) -> None:
        with _told(path):
            if path.is_dir():
                raise UsageError(f"{path} is a folder.", "Name a file.")
        self._path = path
        self._partial = path.with_name(f".{path.name}.partial")
        self._unsynced = 0
        start = header.to_bytes()
        self.size = len(start) + header.payload
        """Bytes of the whole file."""
        with _told(path):
            require_space(path, self.size)
            self._file = self._open()
            try:
                os.ftruncate(self._file, 0)
                self._write(start)
            except BaseException:
                self.abandon()
                raise

    def add(self, data: Bytes) -> None:
        """The next block."""
        content = data.tobytes()
        with _told(self._path):
            self._write(content)
            self._write(_HASH.pack(xxhash.xxh3_64_intdigest(content)))
            if self._unsynced >= _SYNC_BYTES:
                os.fdatasync(self._file)
                self._unsynced = 0

    def finish(self) -> None:
        """Put the whole file in its place."""
        with _told(self._path):
            os.fsync(self._file)
            self._partial.replace(self._path)
            self._close()
            folder = os.open(self._path.parent, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)

    def abandon(self) -> None:
        """Remove what is there so far; nothing after `finish`."""
        if self._file >= 0:
            with contextlib.suppress(OSError):
                self._partial.unlink()
            self._close()

    def _close(self) -> None:
        file, self._file = self._file, -1
        os.close(file)

    def _open(self) -> int:
        """The temporary file, locked; one that a killed process left is written over."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK  # a pipe must not be waited for
        while True:
            file = os.open(self._partial, flags, 0o600)
            if not stat.S_ISREG(os.fstat(file).st_mode):
                os.close(file)
                raise FreetokenError(f"{self._partial} is in the way and is no regular file.", "Remove it.")
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(file)
                raise BusyError(f"{self._path} is being written by somebody else.", "Wait for it.") from None
            # its last owner may have renamed or removed it between our opening and our locking
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.stat(self._partial), os.fstat(file)):
                    return file
            os.close(file)

    def _write(self, data: bytes) -> None:
        write_all(self._file, data)
        self._unsynced += len(data)


class ContextReader:
    """Reads a file whose header belongs to `mine` and whose length is right; hashes are checked block by block.

    Raises NotFoundError, CorruptFileError, UnsupportedError.
    """

    def __init__(self, path: Path, mine: ContextIdentity, block_bytes: Mapping[BlockKind, int]) -> None:
        self._path = path
        self._file = os.fdopen(open_regular(path), "rb")
        try:
            self.header = self._read_header(mine)
            if dict(self.header.block_bytes) != dict(block_bytes):
                raise CorruptFileError(f"{path} does not hold blocks of this model's size.", _AGAIN)
            there, whole = os.fstat(self._file.fileno()).st_size, self._file.tell() + self.header.payload
            if there != whole:
                raise CorruptFileError(f"{path} is damaged: it has {there} bytes instead of {whole}.", _AGAIN)
        except BaseException:
            self.close()
            raise

    def next(self, kind: BlockKind) -> bytes:
        """The next block, which is of this kind."""
        content = self._read(self.header.block_bytes[kind])
        if _HASH.unpack(self._read(_HASH.size))[0] != xxhash.xxh3_64_intdigest(content):
            raise CorruptFileError(f"{self._path} is damaged: a block of it was altered.", _AGAIN)
        return content

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _read_header(self, mine: ContextIdentity) -> ContextHeader:
        fixed = self._read(_FIXED.size)
        magic, version, size = _FIXED.unpack(fixed)
        if magic != MAGIC:
            raise CorruptFileError(f"{self._path} is not a saved context.", _AGAIN)
        if version != VERSION:
            raise UnsupportedError(
                f"{self._path} has version {version} of the format; this release reads {VERSION}.", _AGAIN
            )
        if size > _LARGEST_HEADER:
            raise CorruptFileError(f"{self._path} is damaged: its header would have {size} bytes.", _AGAIN)
        text = self._read(size)
        if _HASH.unpack(self._read(_HASH.size))[0] != xxhash.xxh3_64_intdigest(text):
            raise CorruptFileError(f"{self._path} is damaged: its header was altered.", _AGAIN)
        try:
            header = ContextHeader.from_json(json.loads(text))
        except (ValueError, RecursionError):
            raise CorruptFileError(f"{self._path} is damaged: its header makes no sense.", _AGAIN) from None
        header.identity.check(mine, self._path)
        return header

    def _read(self, count: int) -> bytes:
        with _told(self._path):
            content = self._file.read(count)
        if len(content) != count:
            raise CorruptFileError(f"{self._path} is damaged: it ends too early.", _AGAIN)
        return content


@contextlib.contextmanager
def _told(path: Path) -> Iterator[None]:
    """What the system says of a file, as an error for the user."""
    try:
        yield
    except OSError as error:
        raise FreetokenError(
            f"{path} cannot be written or read: {os.strerror(error.errno or 0)}.", "Look at the disk, or name another."
        ) from error
