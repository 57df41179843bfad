"""Ctrl-C during work that keeps what was done: the first one ends it in order, a second one at once."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from engine.base.errors import FreetokenError

INTERRUPTED = 130
_SHOW_CURSOR = b"\x1b[?25h\n"


class Interrupted(FreetokenError):
    """Ctrl-C; exit code 130. `message` says what has become of the work."""

    exit_code = INTERRUPTED

    def __init__(self, message: str = "") -> None:
        super().__init__(f"Interrupted. {message}".rstrip())


@contextmanager
def interruptible(outcome: Callable[[], str]) -> Iterator[None]:
    """Turns Ctrl-C into Interrupted, with the sentence of `outcome`, asked for when all is cleaned up.

    Cleaning up may have to wait for a disk. Whoever does not want to wait presses again: then the process ends there,
    as if it had been killed, which work of this kind survives.
    """
    before = signal.getsignal(signal.SIGINT)
    if before in (signal.SIG_IGN, None):  # whoever started us wants it so
        yield
        return
    signal.signal(signal.SIGINT, _first)
    try:
        yield
    except KeyboardInterrupt:
        raise Interrupted(outcome()) from None
    finally:
        if signal.getsignal(signal.SIGINT) is _first:  # after one Ctrl-C the next forces, to the end of the process
            signal.signal(signal.SIGINT, before)


def _first(signum: int, frame: FrameType | None) -> None:
    signal.signal(signal.SIGINT, _second)
    raise KeyboardInterrupt


def _second(signum: int, frame: FrameType | None) -> None:
    if os.isatty(2):
        os.write(2, _SHOW_CURSOR)  # a moving bar hides it
    os._exit(INTERRUPTED)
