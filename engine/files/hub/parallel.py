"""Doing the same to many things at a time, where each has to wait for an answer."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable
from typing import TypeVar

_In = TypeVar("_In")
_Out = TypeVar("_Out")


def in_parallel(work: Callable[[_In], _Out], things: Iterable[_In], at_once: int) -> list[_Out]:
    """The results of `work`, in the order of `things`. The first error is raised, and nothing is begun after it.

    Its threads are daemons: after an interrupt nobody waits for one that a silent server holds up.
    """
    todo: queue.SimpleQueue[tuple[int, _In]] = queue.SimpleQueue()
    done: queue.SimpleQueue[Exception | None] = queue.SimpleQueue()
    over = threading.Event()
    results: dict[int, _Out] = {}
    count = 0
    for count, thing in enumerate(things, 1):
        todo.put((count, thing))

    def run() -> None:
        while not over.is_set():
            try:
                number, thing = todo.get_nowait()
            except queue.Empty:
                return
            try:
                results[number] = work(thing)
            except Exception as error:
                over.set()
                done.put(error)
            else:
                done.put(None)

    for _ in range(min(at_once, count)):
        threading.Thread(target=run, daemon=True).start()
    try:
        for _ in range(count):
            if (error := done.get()) is not None:
                raise error
    finally:
        over.set()
    return [results[number] for number in sorted(results)]
