"""What `freetoken run` is asked: the argument, what is piped in before it, or nothing, which means a REPL."""

from __future__ import annotations

import os
import select
import sys
from typing import TextIO

from engine.base.errors import DoesNotFitError, UsageError
from engine.base.units import format_size
from engine.front.wire.limits import Limits
from freetoken_cli.output import Output
from freetoken_cli.terminal import is_terminal

PATIENCE_SECONDS = 1.0


def read_prompt(argument: str | None, output: Output) -> str | None:
    """The prompt, with stdin before it; None when a person at a terminal gave none and wants to talk.

    `-` reads stdin even from a terminal. Raises UsageError when there is nothing to answer.
    """
    argument = None if argument is None else as_text(argument, "The prompt")
    interactive = is_terminal(sys.stdin)
    piped = ""
    if argument == "-":
        argument, piped = None, _read(sys.stdin, output)
    elif not interactive:
        piped = _read(sys.stdin, output)
    text = "\n\n".join(part for part in (piped.strip("\n"), argument or "") if part.strip())
    if text:
        return text
    if argument is None and interactive and is_terminal(output.stdout) and not piped:
        return None
    raise UsageError("There is no prompt.", 'Give one: freetoken run MODEL "prompt", or pipe one in.')


def as_text(argument: str, what: str) -> str:
    """An argument whose bytes the locale could not read, read as UTF-8. Raises UsageError if they are not."""
    try:
        argument.encode()
    except UnicodeEncodeError:
        try:
            return os.fsencode(argument).decode()
        except UnicodeDecodeError as error:
            raise UsageError(f"{what} is not UTF-8 text (byte {error.start}).", "Write it in UTF-8.") from None
    return argument


def _read(stdin: TextIO, output: Output) -> str:
    """All of stdin. Says that it is waiting when nothing comes for a while, as a forgotten pipe would look frozen.

    Raises DoesNotFitError for more than one request can carry, before the rest of it is read: a pipe may never end.
    """
    most = Limits().body_bytes
    try:
        if not select.select([stdin], [], [], PATIENCE_SECONDS)[0]:
            output.note("Reading the prompt from stdin until it ends (Ctrl-D at a terminal).")
        text = stdin.buffer.read(most + 1)
        if len(text) > most:
            raise DoesNotFitError(f"stdin is longer than {format_size(most)}, the most of a request.", "Pipe in less.")
        return text.decode()
    except UnicodeDecodeError as error:
        raise UsageError(f"stdin is not UTF-8 text (byte {error.start}).", "Pipe text in, not a binary file.") from None
