"""Fetching files in the background, in the order in which a conversion will want them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Protocol

from engine.base.errors import DoesNotFitError
from engine.base.units import format_size

AHEAD = 2  # files beyond the one that is wanted, each over a connection of its own
_REPORT_SECONDS = 0.1


class Fetchable(Protocol):
    """A file that can be fetched, by one thread at a time; `missing` are the bytes that this takes of the disk."""

    @property
    def missing(self) -> int: ...

    def fetch(self) -> None: ...


class _State(Enum):
    WAITING, RUNNING, DONE, FAILED, RELEASED = range(5)


class Room(Protocol):
    """What the disk has: `free` bytes, of which `reserved` are promised to somebody else."""

    def free(self) -> int: ...

    def reserved(self) -> int: ...


class FetchAhead:
    """Fetches what is wanted, and up to two files ahead of it where the disk has room for them.

    Files that are released before they were wanted are never fetched. `report` is called now and then in the thread
    that waits. Close it to end all fetches; `stop` is what they look at.
    """

    def __init__(
        self, files: Sequence[Fetchable], room: Room, stop: threading.Event, report: Callable[[], None]
    ) -> None:
        self._files = tuple(files)
        self._states = [_State.WAITING] * len(self._files)
        self._errors: dict[int, BaseException] = {}
        self._wanted = -1  # the file that is waited for, or was last
        self._reached = -1  # the largest number that was waited for
        self._room = room
        self._stop = stop
        self._report = report
        self._changed = threading.Condition()
        self._threads: list[threading.Thread] = []

    def wait_for(self, number: int) -> None:
        """Returns when file `number` is here; raises what its fetch raised."""
        with self._changed:
            self._wanted = number
            self._reached = max(self._reached, number)
            if self._states[number] is _State.FAILED:  # while nobody needed it, perhaps long ago
                self._states[number] = _State.WAITING
                self._errors.pop(number, None)
            self._require_room(number)
            self._start_threads()
            self._changed.notify_all()
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._settled(number), _REPORT_SECONDS)
                if self._settled(number):
                    break
            self._report()
        self._report()
        if number in self._errors:
            raise self._errors.pop(number)

    def release(self, number: int) -> None:
        """Notes that file `number` is not wanted any more."""
        with self._changed:
            self._states[number] = _State.RELEASED
            self._changed.notify_all()

    def close(self) -> None:
        """Ends the fetches. A thread that waits for a silent server ends with its timeout, and touches nothing then."""
        self._stop.set()
        with self._changed:
            self._changed.notify_all()
        for thread in self._threads:
            thread.join(timeout=1.0)

    def _settled(self, number: int) -> bool:
        return self._states[number] in (_State.DONE, _State.FAILED)

    def _start_threads(self) -> None:
        if not self._threads:
            self._threads = [threading.Thread(target=self._run, daemon=True) for _ in range(1 + AHEAD)]
            for thread in self._threads:
                thread.start()

    def _require_room(self, number: int) -> None:
        if self._states[number] is not _State.WAITING:
            return
        missing, free = self._files[number].missing, self._room.free()
        if missing > free:
            raise DoesNotFitError(
                f"The next file needs {format_size(missing)} of disk and {format_size(free)} are free.",
                "What was fetched and converted is kept: free some space and pull again to go on from there.",
            )

    def _run(self) -> None:
        while True:
            with self._changed:
                number = self._next()
                while number is None and not self._stop.is_set():
                    self._changed.wait(1.0)  # room on the disk comes without a notice
                    number = self._next()
                if number is None or self._stop.is_set():
                    return
                self._states[number] = _State.RUNNING
            self._fetch(number)

    def _fetch(self, number: int) -> None:
        error: BaseException | None = None
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
            if state is _State.WAITING and self._has_room(number):
                return number
        return None

    def _has_room(self, number: int) -> bool:
        running = sum(
            file.missing for file, state in zip(self._files, self._states, strict=True) if state is _State.RUNNING
        )
        return self._room.free() - self._room.reserved() - running >= self._files[number].missing
