"""Fetching ahead: in order, no more than two files beyond what is wanted, and only where the disk has room."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from engine.base.errors import DoesNotFitError, FreetokenError, NetworkError
from engine.files.hub.ahead import AHEAD, FetchAhead

SIZE = 100


class FakeFile:
    """A file that is fetched when `gate` opens; `error` is what its next fetch raises."""

    def __init__(self) -> None:
        self.path = Path("downloads/model.safetensors")
        self.missing = SIZE
        self.gate = threading.Event()
        self.gate.set()
        self.begun = threading.Event()
        self.fetches = 0
        self.error: Exception | None = None

    def fetch(self) -> None:
        self.fetches += 1
        self.begun.set()
        assert self.gate.wait(5)
        error, self.error = self.error, None
        if error is not None:
            raise error
        self.missing = 0


class Disk:
    def __init__(self) -> None:
        self.free = 10**9
        self.error: Exception | None = None

    def look(self) -> tuple[Path, int]:
        if self.error is not None and threading.current_thread() is not threading.main_thread():
            raise self.error
        return Path("/disk"), self.free


@contextmanager
def fetching(count: int, disk: Disk | None = None) -> Iterator[tuple[list[FakeFile], FetchAhead]]:
    files = [FakeFile() for _ in range(count)]
    room = disk or Disk()
    ahead = FetchAhead(room.look, threading.Event())
    for file in files:
        ahead.add(file)
    try:
        yield files, ahead
    finally:
        for file in files:
            file.gate.set()
        ahead.close()


def wait_until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 5
    while not true():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.005)


def fetched(files: list[FakeFile]) -> list[int]:
    return [number for number, file in enumerate(files) if file.fetches]


def test_nothing_is_fetched_before_something_is_wanted() -> None:
    with fetching(3) as (files, _):
        time.sleep(0.05)
        assert fetched(files) == []


def test_two_files_are_fetched_beyond_the_one_that_is_wanted() -> None:
    with fetching(8) as (files, ahead):
        for number in range(8):
            ahead.wait_for(files[number])
            assert files[number].missing == 0
            last = min(number + AHEAD, 7)
            wait_until(lambda last=last: fetched(files) == list(range(last + 1)))  # type: ignore[misc]
            time.sleep(0.01)
            assert fetched(files) == list(range(last + 1))
            ahead.release(files[number])
        assert [file.fetches for file in files] == [1] * 8


def test_files_that_are_released_before_they_were_wanted_are_never_fetched() -> None:
    with fetching(8) as (files, ahead):
        for number in (0, 1, 3, 5):
            ahead.release(files[number])
        ahead.wait_for(files[2])
        wait_until(lambda: fetched(files) == [2, 4, 6])
        time.sleep(0.02)
        assert fetched(files) == [2, 4, 6]


def test_a_file_before_those_that_were_fetched_ahead_is_had_at_once() -> None:
    with fetching(8) as (files, ahead):
        for number in (0, 2, 3):
            ahead.release(files[number])
        ahead.wait_for(files[5])
        files[7].gate.clear()
        ahead.wait_for(files[1])
        assert files[1].missing == 0


def test_files_come_at_the_same_time() -> None:
    with fetching(3) as (files, ahead):
        for file in files[1:]:
            file.gate.clear()
        ahead.wait_for(files[0])
        assert all(file.begun.wait(5) for file in files)


def test_an_error_is_raised_where_its_file_is_wanted() -> None:
    with fetching(3) as (files, ahead):
        files[0].error = NetworkError("cut")
        with pytest.raises(NetworkError, match="cut"):
            ahead.wait_for(files[0])
        ahead.wait_for(files[1])


def test_a_file_that_failed_ahead_is_tried_again_when_it_is_wanted() -> None:
    with fetching(2) as (files, ahead):
        files[1].error = NetworkError("a line that was down for a while")
        ahead.wait_for(files[0])
        wait_until(lambda: files[1].error is None)
        time.sleep(0.05)  # until the error has been noted
        ahead.wait_for(files[1])
        assert (files[1].fetches, files[1].missing) == (2, 0)


def test_the_disk_keeps_what_the_conversion_will_write() -> None:
    disk = Disk()
    with fetching(4, disk) as (files, ahead):
        disk.free, ahead.reserved = 250, 100
        files[1].gate.clear()
        ahead.wait_for(files[0])
        wait_until(lambda: fetched(files) == [0, 1])
        time.sleep(0.02)
        assert fetched(files) == [0, 1], "one file more would take what is promised"
        disk.free = 301
        files[1].gate.set()
        wait_until(lambda: fetched(files) == [0, 1, 2])


def test_a_file_that_is_wanted_and_does_not_fit() -> None:
    disk = Disk()
    disk.free = SIZE - 1
    with (
        fetching(1, disk) as (files, ahead),
        pytest.raises(DoesNotFitError, match=r"^model\.safetensors needs 100 B of disk and 99 B are free at /disk"),
    ):
        ahead.wait_for(files[0])


def test_whoever_waits_can_tell_how_far_it_is() -> None:
    reports: list[int] = []
    with fetching(1) as (files, ahead):
        files[0].gate.clear()

        def report() -> None:
            reports.append(files[0].missing)
            if len(reports) == 2:
                files[0].gate.set()

        ahead.report = report
        ahead.wait_for(files[0])
    assert reports[:2] == [SIZE, SIZE]
    assert reports[-1] == 0


def test_an_interrupt_while_waiting_leaves_no_thread_that_works_on() -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    before = threading.active_count()
    with fetching(1) as (files, ahead):
        files[0].gate.clear()
        ahead.report = interrupted
        with pytest.raises(KeyboardInterrupt):
            ahead.wait_for(files[0])
    assert threading.active_count() == before


@pytest.mark.parametrize(
    ("error", "told"),
    [(OSError(5, "Input/output error"), FreetokenError), (ZeroDivisionError("a mistake"), ZeroDivisionError)],
)
def test_a_disk_that_cannot_be_looked_at_ends_the_wait(error: Exception, told: type[Exception]) -> None:
    """Looking at it is no part of a fetch, and nobody fetches any more after it."""
    disk = Disk()
    with fetching(2, disk) as (files, ahead):
        disk.error = error
        files[0].gate.clear()
        with pytest.raises(told, match=str(error.args[-1])):
            ahead.wait_for(files[0])
