"""A file on the Hub as conversion sees it: its beginning at any time, all of it once it is acquired."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import xxhash

from engine.base.errors import CorruptFileError
from engine.files.hub.ahead import FetchAhead
from engine.files.hub.download import Download
from engine.files.hub.hashes import check
from engine.files.source_file import Bytes, LocalFile

_HEAD_BYTES = 64 << 10  # what is fetched at least; many headers are not much longer


class RemoteFile:
    """A SourceFile of which a copy is fetched when it is acquired, and deleted when it is released.

    Before that only its beginning can be read; what is read is fetched. `cached` is a copy of the right size in the
    cache of `huggingface_hub`: if it is sound it is used where it lies, and never deleted.
    """

    def __init__(self, download: Download, cached: Path | None, ahead: FetchAhead) -> None:
        self.path = download.path
        self.size = download.file.size
        self.identity: list[Any] = [download.file.path, download.file.size, download.file.digest]
        self.had = 0 if cached else min(download.have, download.file.size)  # bytes that an earlier run brought
        self._download = download
        self._cached = cached
        self._ahead = ahead
        self._planned = 0  # bytes at the beginning that somebody has read before all were here
        self._planned_with: str | None = None  # their hash
        self._whole: Path | None = None
        self._reader: LocalFile | None = None
        self._released = False

    @property
    def to_fetch(self) -> int:
        """Bytes of it that come over the network, in this run or an earlier one."""
        return 0 if self._cached else self.size

    @property
    def fetched(self) -> int:
        """How many of them came. A file that is released counts as whole: it is not wanted any more."""
        return self.to_fetch if self._released else min(self._download.have, self.to_fetch)

    @property
    def on_disk(self) -> int:
        """Bytes of it that lie in our folder."""
        return self._download.have

    @property
    def missing(self) -> int:
        """Bytes that fetching it would still take of the disk."""
        return self.to_fetch - self.fetched

    def fetch(self) -> None:
        """Sees to it that all of it is here, and checked. A cached copy that is damaged is replaced by one of ours.

        Errors: those of `Download.finish`; CorruptFileError when it begins otherwise than what was read of it before,
        and for a damaged copy when nothing can be fetched.
        """
        if self._planned_with is None:  # a second try must not take what the first one brought for what was read
            self._planned_with = self._hash_of_beginning()
        if self._cached:
            try:
                check(self._cached, self._download.file)
            except CorruptFileError as error:
                if self._download.offline:
                    raise CorruptFileError(error.message, "Unset HF_HUB_OFFLINE to fetch it again.") from None
                self._cached = None
        whole = self._cached or self._download.finish()
        if self._hash_of_beginning(whole) != self._planned_with:
            raise CorruptFileError(
                f"{self.path} begins otherwise than it did when this conversion was planned.", "Pull again."
            )
        self._whole = whole

    def begins_as_read(self) -> bool:
        """Whether what was read of its beginning comes once more; see `Download.comes_again`."""
        self.close()
        return bool(self._cached) or self._download.comes_again(self._planned)

    def sample(self) -> None:
        """It comes piece by piece: what it is made of is told by its repository and commit."""

    def acquire(self) -> None:
        self._ahead.wait_for(self)
        self.close()

    def release(self) -> None:
        self.close()
        self._released = True
        self._ahead.release(self)
        if not self._cached:
            self._download.free(keep=self._planned)

    def read(self, start: int, out: Bytes) -> None:
        self._open(start + out.nbytes).read(start, out)

    def read_bytes(self, start: int, stop: int) -> bytes:
        return self._open(stop).read_bytes(start, stop)

    def drop_behind(self) -> None:
        if self._reader is not None:
            self._reader.drop_behind()

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    def _open(self, stop: int) -> LocalFile:
        """What the bytes before `stop` can be read from."""
        if self._whole is None:
            self._planned = max(self._planned, stop)
            if self._reader is None or self._reader.size < stop:
                self.close()
                self._reader = LocalFile(self._cached or self._fetch_beginning(stop))
        elif self._reader is None:
            self._reader = LocalFile(self._whole)
        return self._reader

    def _fetch_beginning(self, stop: int) -> Path:
        """Fetches more than is asked for: whoever reads a header will soon ask for what comes next."""
        if self._download.have < stop:
            stop = max(stop, 2 * self._download.have, _HEAD_BYTES)
        return self._download.fetch_head(stop)

    def _hash_of_beginning(self, path: Path | None = None) -> str:
        """The hash of what was planned with, as it is at `path` or in what there is so far."""
        if not self._planned:
            return ""
        file = LocalFile(path or self._cached or self._download.fetch_head(self._planned))
        try:
            return xxhash.xxh3_128_hexdigest(file.read_bytes(0, self._planned))
        finally:
            file.close()
