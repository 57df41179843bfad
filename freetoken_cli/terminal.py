"""What a stream can show. Each stream is asked on its own: `freetoken list | cat` still has a terminal on stderr."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TextIO


def is_terminal(stream: TextIO) -> bool:
    """Whether a person looks at `stream`; a closed stream has no audience."""
    try:
        return stream.isatty()
    except ValueError:
        return False


def may_animate(stream: TextIO, environment: Mapping[str, str]) -> bool:
    """Whether lines on `stream` can be rewritten: a terminal that is not `TERM=dumb`."""
    return is_terminal(stream) and environment.get("TERM", "") != "dumb"


def may_colour(stream: TextIO, environment: Mapping[str, str], no_color: bool = False) -> bool:
    """Whether `stream` gets colours: a capable terminal, no `NO_COLOR` (set and not empty), no `--no-color`."""
    return not no_color and not environment.get("NO_COLOR", "") and may_animate(stream, environment)


def styled(text: str, code: str, colour: bool) -> str:
    """`text` in the ANSI style `code` (such as "1" for bold) if `colour`, else unchanged."""
    return f"\x1b[{code}m{text}\x1b[0m" if colour and text else text


def printable(text: str) -> str:
    """`text` for one line of a terminal: control characters in names and messages show as escapes, not as commands."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def harmless(text: str) -> str:
    """`text` of several lines for a terminal: what could move the cursor or change the terminal shows as escapes.

    A model writes whatever it was taught to, and its words may come from a file that somebody else wrote.
    """
    if text.isprintable():
        return text
    return "".join(c if c in "\n\t" or not _commands(c) else c.encode("unicode_escape").decode() for c in text)


def _commands(character: str) -> bool:
    """Whether a terminal may obey `character`: C0 and C1 controls and the invisible reorderings of text."""
    code = ord(character)
    return code < 0x20 or 0x7F <= code < 0xA0 or 0x202A <= code <= 0x202E or 0x2066 <= code <= 0x2069
