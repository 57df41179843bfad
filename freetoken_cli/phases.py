"""The phases of taking a model in, each shown by a line or a bar from its first step on, and what came of them."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from engine.base.progress import Progress, silent
from freetoken_cli.output import Output

if TYPE_CHECKING:
    from engine.files.converted import Converted

FETCH, CONVERT = "fetch", "convert"
_TITLES = {FETCH: "Fetching {name}", CONVERT: "Converting {name}"}


class Phases:
    """A context manager, and a callback that gets the phase, the bytes done and the bytes there will be.

    A phase is announced by its first step: what is refused before it began was never said to begin.
    """

    def __init__(self, output: Output, name: str) -> None:
        self._output = output
        self._name = name
        self._stack = ExitStack()
        self._current = ""
        self._progress: Progress = silent

    def __enter__(self) -> Phases:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def __call__(self, phase: str, done: int, total: int) -> None:
        if phase != self._current:
            self._stack.close()
            self._current = phase
            self._progress = self._stack.enter_context(self._output.phase(_TITLES[phase].format(name=self._name)))
        self._progress(done, total)


def conversion_record(done: Converted) -> dict[str, Any]:
    """Stable keys of what a conversion has to say: tensors left out by purpose, and what requantising cost, or null."""
    requantised = done.requantised
    return {
        "left_out": dict(done.left_out),
        "requantised": None if requantised is None else asdict(requantised),
    }
