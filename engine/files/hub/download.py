"""One file of a repository on its way onto this disk.

It grows under a name that holds its hash, so that whoever finds it there may go on with it: the name says what it is to
become. Only when all bytes are on the disk and hash to what the Hub publishes does it get its own name.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path

from engine.base.errors import CorruptFileError, DoesNotFitError, FreetokenError, NetworkError, is_disk_full
from engine.files.hub.hashes import Hasher
from engine.files.hub.listing import HubFile, Listing
from engine.files.hub.patience import Passing, Patience, Rules, Stopped
from engine.files.hub.session import Answer, Hub, request
from engine.files.writing import write_all

UNFINISHED = ".unfinished"
_PIECE_BYTES = 32 << 30  # what is asked for at a time: networks that deliver files refuse answers above 50 GB
_ARRIVALS = 3  # how often a whole file may arrive with a wrong hash


class Download:
    """A file that is fetched front to back; `have` bytes of it are here. Those are not checked before `finish`.

    One thread at a time may use it. `stop` ends a fetch in another thread, which then raises Stopped.
    """

    def __init__(
        self, hub: Hub, listing: Listing, file: HubFile, folder: Path, stop: threading.Event, rules: Rules
    ) -> None:
        self.file = file
        self.path = folder / file.path
        self.unfinished = unfinished_path(folder, file)
        self.have = next((path.stat().st_size for path in (self.path, self.unfinished) if path.is_file()), 0)
        self.offline = hub.offline
        self._hub = hub
        self._repo = listing.repo
        self._what = f"{file.path} of {listing.repo}"
        self._url = hub.file_url(listing.repo, listing.commit, file.path)
        self._stop = stop
        self._rules = rules
        self._odd_total: int | None = None  # a size that the server told, and that is not the list's

    def fetch_head(self, size: int) -> Path:
        """Where the first `size` bytes are, fetched if they were not. Errors: those of `finish`, but for the hash."""
        if self.path.is_file():
            return self.path
        with self._opened() as out:
            self._fetch(out, min(size, self.file.size), None)
        return self.unfinished

    def finish(self) -> Path:
        """Fetches what is missing, checks all of it, and gives the file its name, which is returned.

        Errors: NetworkError, NotFoundError, CorruptFileError when it comes with a wrong hash again and again,
        DoesNotFitError when the disk is full.
        """
        if self.path.is_file():
            self.path.replace(self.unfinished)  # an earlier run checked it, and the disk had time to spoil it
        found = ""
        for _ in range(_ARRIVALS):
            with self._opened() as out:
                hasher = Hasher(self.file)
                hasher.update_from(out)
                self._fetch(out, self.file.size, hasher)
                found = hasher.hexdigest()
                if found == self.file.digest:
                    os.fsync(out)
                    self.unfinished.replace(self.path)
                    return self.path
                os.ftruncate(out, 0)
                self.have = 0
        raise CorruptFileError(
            f"{self._what} arrived damaged {_ARRIVALS} times: "
            f"its {hasher.name} should be {self.file.digest} and is {found}.",
            "Pull again later, or over another connection.",
        )

    def comes_again(self, size: int) -> bool:
        """Whether the first `size` bytes come once more as they are here; if not, what is here is thrown away.

        There is no hash for a part of a file. Bytes that make no sense are asked for twice before they are believed.
        """
        if self.path.is_file() or not size:
            return True
        again = bytearray()
        try:
            with self.fetch_head(size).open("rb") as head:
                here = head.read(size)
            with request(self._hub, self._url, self._repo, self._what, 0, size) as answer:
                for chunk in answer.chunks:
                    again += chunk
                    if len(again) >= size:
                        break
        except (Passing, FreetokenError):  # it cannot be asked for: what is wrong with what is here is the news
            return True
        if again[:size] == here:
            return True
        self.unfinished.unlink()
        self.have = 0
        return False

    def free(self, keep: int) -> None:
        """Gives back the disk of all but the first `keep` bytes, from which a later run can plan again."""
        if self.path.is_file():
            self.path.replace(self.unfinished)
        if self.unfinished.is_file() and self.have > keep:
            os.truncate(self.unfinished, keep)
            self.have = keep

    @contextlib.contextmanager
    def _opened(self) -> Iterator[int]:
        """The unfinished file, for reading and writing. Failures of the disk become sentences."""
        try:
            self.unfinished.parent.mkdir(parents=True, exist_ok=True)
            out = os.open(self.unfinished, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                if os.fstat(out).st_size > self.file.size:
                    os.ftruncate(out, 0)
                self.have = os.fstat(out).st_size
                yield out
            finally:
                os.close(out)
        except OSError as error:
            if is_disk_full(error):
                raise DoesNotFitError(
                    f"The disk that holds {self.unfinished.parent} is full.",
                    "What was fetched is kept: free some space and pull again to go on from there.",
                ) from None
            raise FreetokenError(
                f"{self.unfinished} cannot be written: {error.strerror or error}.",
                "What was fetched is kept: pull again to go on from there.",
            ) from None

    def _fetch(self, out: int, stop: int, hasher: Hasher | None) -> None:
        """Appends until `stop` bytes are here. As long as each try brings something there may be any number of them."""
        patience = Patience(self._what, self._stop, self._rules, "pull again: it goes on where it stopped.")
        self._odd_total = None
        while self.have < stop:
            start, end = self.have, min(stop, self.have + _PIECE_BYTES)
            asked = (None, None) if (start, end) == (0, self.file.size) else (start, end)
            try:
                with request(self._hub, self._url, self._repo, self._what, *asked) as answer:
                    self._append(out, end, answer, hasher)
                if self.have < end:
                    raise Passing(f"the answer ends at byte {self.have} of {end}")
            except Passing as failure:
                if self.have > start:
                    patience.progressed()
                patience.failed(failure)

    def _append(self, out: int, stop: int, answer: Answer, hasher: Hasher | None) -> None:
        """Writes what is new of an answer; what was here already comes again when a server ignores ranges."""
        if answer.total is not None and answer.total != self.file.size:
            if answer.total and answer.total == self._odd_total:  # twice the same: no answer that was cut
                raise NetworkError(
                    f"{self._what} has {answer.total} bytes where it is kept, and {self.file.size} in the Hub's list.",
                    "Another try would get the same: pull again once the repository is mended.",
                )
            self._odd_total = answer.total
            raise Passing(f"the server's file has {answer.total} bytes instead of {self.file.size}")
        position = answer.start
        for chunk in answer.chunks:
            if self._stop.is_set():
                raise Stopped(f"{self._what} was given up.")
            new = memoryview(chunk)[max(0, self.have - position) : max(0, stop - position)]
            position += len(chunk)
            if len(new):
                write_all(out, new, self.have)
                if hasher is not None:
                    hasher.update(new)
                self.have += len(new)
            if position > stop or (position == stop and answer.stop != stop):
                return  # what else it would send is not wanted


def unfinished_path(folder: Path, file: HubFile) -> Path:
    """Where `file` grows: its name, some of its hash, and a suffix."""
    return folder / f"{file.path}.{file.digest[:16]}{UNFINISHED}"
