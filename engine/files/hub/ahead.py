"""Fetching files in the background, in the order in which a conversion will want them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import Protocol

from engine.base.errors import DoesNotFitError, FreetokenError
from engine.base.units import format_size

AHEAD = 2  # files beyond the one that is wanted, each over a connection of its own
_REPORT_SECONDS = 0.1
_CLOSING_SECONDS = 1.0
_LOOK_AGAIN_SECONDS = 1.0  # room on the disk comes without a notice


class Fetchable(Protocol):
    """A file that can be fetched, by one thread at a time; `missing` are the bytes that this takes of the disk."""

    @property
    def path(self) -> Path: ...

    @property
    def missing(self) -> int: ...

    def fetch(self) -> None: ...


class _State(Enum):
    WAITING, RUNNING, DONE, FAILED, RELEASED = range(5)


class FetchAhead:
    """Fetches what is wanted, and up to two files ahead of it where the disk has room for them.

    Files that are released before they were wanted are never fetched. `report` is called now and then in the thread
    that waits; `reserved` are bytes of the disk that somebody else is going to fill. Both may be set at any time. Close
    it to end all fetches: `stop`, which they look at, is set then.
    """

    def __init__(self, free: Callable[[], tuple[Path, int]], stop: threading.Event) -> None:
        """`free` tells a folder on the disk, and the bytes that are free there."""
        self.report: Callable[[], None] = lambda: None
        self.reserved = 0
        self._free = free
        self._stop = stop
        self._files: list[Fetchable] = []
        self._numbers: dict[Fetchable, int] = {}
        self._states: list[_State] = []
        self._errors: dict[int, Exception] = {}
        self._broken: Exception | None = None  # what ended a thread outside a fetch
        self._wanted = -1  # the file that is waited for, or was last
        self._reached = -1  # the largest number that was waited for
        self._changed = threading.Condition()
        self._threads: list[threading.Thread] = []

    @property
    def began(self) -> bool:
        """Whether a file was wanted yet."""
        return self._reached >= 0

    def add(self, file: Fetchable) -> None:
        """Puts a file at the end of the line."""
        with self._changed:
            self._numbers[file] = len(self._files)
            self._files.append(file)
            self._states.append(_State.WAITING)

    def wait_for(self, file: Fetchable) -> None:
        """Returns when the file is here; raises what its fetch raised, or DoesNotFitError when it has no room."""
        number = self._numbers[file]
        with self._changed:
            self._wanted = number
            self._reached = max(self._reached, number)
            if self._states[number] is _State.FAILED:  # while nobody needed it, perhaps long ago
                self._states[number] = _State.WAITING
                self._errors.pop(number, None)
            if self._states[number] is _State.WAITING:
                self._require_room(file)
            self._start_threads()
            self._changed.notify_all()
        while not self._is_settled(number):
            if self._broken is not None:
                raise self._broken
            self.report()
        self.report()
        if number in self._errors:
            raise self._errors.pop(number)

    def release(self, file: Fetchable) -> None:
        """Notes that the file is not wanted any more."""
        with self._changed:
            self._states[self._numbers[file]] = _State.RELEASED
            self._changed.notify_all()

    def close(self) -> None:
        """Ends the fetches. A thread that waits for a silent server ends with its timeout, and touches nothing then."""
        self._stop.set()
        with self._changed:
            self._changed.notify_all()
        deadline = time.monotonic() + _CLOSING_SECONDS
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _is_settled(self, number: int) -> bool:
        """Whether a file is through, after a while at most."""

        def settled() -> bool:
            return self._broken is not None or self._states[number] in (_State.DONE, _State.FAILED)

        with self._changed:
            self._changed.wait_for(settled, _REPORT_SECONDS)
            return self._states[number] in (_State.DONE, _State.FAILED)

    def _require_room(self, file: Fetchable) -> None:
        missing, (folder, free) = file.missing, self._free()
        if missing > free:
            raise DoesNotFitError(
                f"{file.path.name} needs {format_size(missing)} of disk and {format_size(free)} are free at {folder}.",
                "What was fetched and converted is kept: free some space and pull again to go on from there.",
            )

    def _start_threads(self) -> None:
        if not self._threads:
            self._threads = [threading.Thread(target=self._run, daemon=True) for _ in range(1 + AHEAD)]
            for thread in self._threads:
                thread.start()

    def _run(self) -> None:
        try:
            self._fetch_all()
        except Exception as caught:  # of looking at the disk: whoever waits would wait for ever
            error = caught
            if isinstance(caught, OSError):
                error = FreetokenError(
                    f"It cannot be told how much of the disk is free: {caught.strerror or caught}.",
                    "What was fetched and converted is kept: pull again to go on from there.",
                )
            with self._changed:
                self._broken = error
                self._changed.notify_all()

    def _fetch_all(self) -> None:
        while True:
            with self._changed:
                number = self._next()
                while number is None and not self._stop.is_set():
                    self._changed.wait(_LOOK_AGAIN_SECONDS)
                    number = self._next()
                if number is None or self._stop.is_set():
                    return
                self._states[number] = _State.RUNNING
            self._fetch(number)

    def _fetch(self, number: int) -> None:
        error: Exception | None = None
        try:
            self._files[number].fetch()
        except Exception as caught:
            error = caught
        with self._changed:
            if self._states[number] is _State.RUNNING:
                self._states[number] = _State.DONE if error is None else _State.FAILED
            if error is not None:
                self._errors[number] = error
            self._changed.notify_all()

    def _next(self) -> int | None:
        """The file to fetch next: what is wanted first, then what comes after it."""
        if self._wanted >= 0 and self._states[self._wanted] is _State.WAITING:
            return self._wanted
        ahead = 0
        for number, state in enumerate(self._states):
            if state is _State.RELEASED:
                continue
            ahead += number > self._reached
            if ahead > AHEAD or self._reached < 0:
                return None
            if state is _State.WAITING and self._has_room(self._files[number]):
                return number
        return None

    def _has_room(self, file: Fetchable) -> bool:
        running = sum(
            other.missing for other, state in zip(self._files, self._states, strict=True) if state is _State.RUNNING
        )
        return self._free()[1] - self.reserved - running >= file.missing
