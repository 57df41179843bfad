"""The moving bar on stderr. Imports rich, so only a terminal pays for it."""

from __future__ import annotations

from types import TracebackType
from typing import TextIO

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)


class Moving:
    """One phase: a spinner, and a bar as soon as a total is known, with bytes and their rate if `sizes`.

    A context manager; nothing of it is left on the terminal.
    """

    def __init__(self, stderr: TextIO, title: str, sizes: bool, colour: bool) -> None:
        console = Console(file=stderr, no_color=not colour, highlight=False)
        self._title = title
        self._plain = Progress(SpinnerColumn(), TextColumn("{task.description}"), console=console, transient=True)
        counts: list[ProgressColumn] = [TimeRemainingColumn()]
        if sizes:
            counts = [DownloadColumn(binary_units=True), TransferSpeedColumn(), *counts]
        self._sized = Progress(TextColumn("{task.description}"), BarColumn(), *counts, console=console, transient=True)
        self._active: Progress | None = None

    def __enter__(self) -> Moving:
        self._show(self._plain, None)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._active is not None:
            self._active.stop()

    def update(self, done: int, total: int) -> None:
        """Move the bar to `done` of `total` bytes or steps."""
        if total <= 0:
            return
        if self._active is not self._sized:
            self._show(self._sized, total)
        self._sized.update(self._task, completed=done, total=total)

    def _show(self, progress: Progress, total: int | None) -> None:
        if self._active is not None:
            self._active.stop()
        self._active = progress
        self._task = progress.add_task(self._title, total=total)
        progress.start()
