"""The REPL of `freetoken run MODEL`: lines in, streamed answers out, slash commands in between."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Protocol

from freetoken_cli.answering import print_answer, print_statistics
from freetoken_cli.failures import report
from freetoken_cli.slash import Session, perform, say

PROMPT = ">>> "
CONTINUATION = "... "
QUOTES = '"""'
LEAVE_HINT = "Type /bye or press Ctrl-D to leave; Ctrl-C again leaves at once."


class Reader(Protocol):
    """Where lines come from: prompt_toolkit on a terminal, a list in tests."""

    def read(self, prompt: str) -> str:
        """One line (pasted text may hold several). Raises EOFError at the end, KeyboardInterrupt for Ctrl-C."""

    def pending(self) -> str:
        """What was typed on the line that Ctrl-C interrupted."""


class TerminalReader:
    """Lines with editing, history and paste. Imports prompt_toolkit, so only a REPL pays for it."""

    def __init__(self, history: Path, colour: bool) -> None:
        from prompt_toolkit import PromptSession
        from prompt_toolkit.history import FileHistory, History, InMemoryHistory
        from prompt_toolkit.output import ColorDepth

        kept: History
        try:
            history.parent.mkdir(parents=True, exist_ok=True)
            history.touch(mode=0o600)
            kept = FileHistory(str(history))
        except OSError:
            kept = InMemoryHistory()  # a full or read-only disk costs the history, not the conversation
        depth = None if colour else ColorDepth.DEPTH_1_BIT
        self._session: PromptSession[str] = PromptSession(history=kept, color_depth=depth)
        self._pending = ""

    def read(self, prompt: str) -> str:
        try:
            # The colour also keeps the prompt's last space: what has no style is not drawn at the end of a line.
            typed = self._session.prompt([("ansicyan", prompt)])
        except KeyboardInterrupt:
            self._pending = self._session.default_buffer.text
            raise
        # Bytes that are no UTF-8 come as lone surrogates, which neither a request nor a file can hold.
        return typed.encode("utf-16", "surrogatepass").decode("utf-16", "replace")

    def pending(self) -> str:
        return self._pending


def run_repl(session: Session, reader: Reader) -> int:
    """Talk until the person leaves; the exit code."""
    armed = False  # Ctrl-C on an empty line has just said how to leave
    while True:
        try:
            text, command = read_message(reader)
        except EOFError:
            return 0
        except KeyboardInterrupt:
            if reader.pending():
                armed = False
                continue
            if armed:
                return 130
            armed = True
            say(session, LEAVE_HINT)
            continue
        armed = False
        if not text.strip():
            continue
        try:
            _guarded(session, partial(perform if command else ask, session, text))
        except EOFError:
            return 0


def read_message(reader: Reader) -> tuple[str, bool]:
    """One message, and whether it is a command of the REPL: a line that begins with a slash.

    A line that begins with `\"\"\"` begins a message that ends where a line ends with them. What was pasted is a
    message already: `\"\"\"` within it, as of a program, are part of it.
    """
    line = reader.read(PROMPT)
    text = line.strip().removeprefix(QUOTES)
    if not line.lstrip().startswith(QUOTES) or ("\n" in text and not text.endswith(QUOTES)):
        return line, line.startswith("/") and "\n" not in line
    while not text.rstrip().endswith(QUOTES):
        text += "\n" + reader.read(CONTINUATION)
    return text.rstrip().removesuffix(QUOTES).strip("\n"), False


def _guarded(session: Session, action: Callable[[], None]) -> None:
    """Run one line's work: a failure or Ctrl-C is told, and the session goes on, because it holds a conversation."""
    try:
        action()
    except KeyboardInterrupt:
        say(session, "")
    except EOFError:
        raise
    except Exception as error:
        report(error, session.output.stderr, no_color=not session.output.colour_err)


def ask(session: Session, text: str) -> None:
    """Stream the answer to `text` and keep both in the conversation.

    An answer that is stopped is kept as far as it came. When nothing came, the question is taken back, so that the
    next one does not follow an unanswered one.
    """
    conversation = session.conversation
    conversation.add("user", text)
    said: list[str] = []
    try:
        session.last = print_answer(
            session.chat, conversation.messages(), session.sampling, session.think, session.output, said
        )
    finally:
        if said:
            conversation.add("assistant", "".join(said))
        else:
            conversation.turns.pop()
    if session.verbose:
        print_statistics(session.last, session.output)
