"""Many things at a time: in order, no more than so many, ended by the first error."""

from __future__ import annotations

import threading

import pytest

from engine.files.hub.parallel import in_parallel


def test_results_are_in_order_and_threads_are_bounded() -> None:
    running = most = 0
    lock = threading.Lock()
    four = threading.Barrier(4, timeout=5)

    def work(number: int) -> int:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        four.wait()  # which lets through four at a time
        with lock:
            running -= 1
        return number * number

    assert in_parallel(work, range(16), 4) == [number * number for number in range(16)]
    assert most == 4


def test_nothing_to_do() -> None:
    assert in_parallel(str, [], 4) == []


def test_the_first_error_is_raised_and_ends_it() -> None:
    begun: list[int] = []

    def work(number: int) -> None:
        begun.append(number)
        if number == 3:
            raise ValueError("three")

    with pytest.raises(ValueError, match="three"):
        in_parallel(work, range(10_000), 1)
    assert 3 in begun
    assert len(begun) < 10_000
