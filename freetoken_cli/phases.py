"""The phases of taking a model in, each shown by a line or a bar from its first step on, and what came of them."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from dataclasses import asdict
from typing import Any

from engine.base.progress import Progress, silent
from engine.files.conversion.converted import Converted
from engine.files.pulling.repository import CONVERT, FETCH, FETCH_AND_CONVERT
from freetoken_cli.output import Output

_TITLES = {
    FETCH: "Fetching {name}",
    CONVERT: "Converting {name}",
    FETCH_AND_CONVERT: "Fetching and converting {name}",
}


class Phases:
    """A context manager, and a callback that gets the phase, the bytes done and the bytes there will be.

    A phase is announced by its first step: what is refused before it began was never said to begin. Steps may come from
    any thread.
    """

    def __init__(self, output: Output, name: str) -> None:
        self._output = output
        self._name = name
        self._stack = ExitStack()
        self._current = ""
        self._progress: Progress = silent
        self._lock = threading.RLock()

    def __enter__(self) -> Phases:
        return self

    def __exit__(self, *error: object) -> None:
        self._end()

    def __call__(self, phase: str, done: int, total: int) -> None:
        with self._lock:
            if phase != self._current:
                self._end()
                self._current = phase
                self._progress = self._stack.enter_context(self._output.phase(_TITLES[phase].format(name=self._name)))
            self._progress(done, total)

    def wait(self, title: str) -> None:
        """Something short before the first phase, which a log need not tell."""
        with self._lock:
            self._end()
            self._stack.enter_context(self._output.waiting(title))

    def say(self, text: str) -> None:
        """A note between two steps, where it does not meet a moving bar."""
        with self._lock:
            self._end()
            self._output.note(text)

    def warn(self, text: str) -> None:
        """As `say`, for what has to be known."""
        with self._lock:
            self._end()
            self._output.warn(text)

    def _end(self) -> None:
        with self._lock:
            self._stack.close()
            self._current = ""


def conversion_record(done: Converted | None) -> dict[str, Any]:
    """Stable keys of what a conversion has to say: tensors left out by purpose, and what requantising cost, or null.

    Both are null where nothing was converted.
    """
    requantised = done.requantised if done else None
    return {
        "left_out": dict(done.left_out) if done else None,
        "requantised": asdict(requantised) if requantised else None,
    }
