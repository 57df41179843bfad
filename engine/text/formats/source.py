"""The text of a block of tool calls while it arrives, for readers that stop where they need more of it.

A reader is a generator: it yields what it knows of calls, and None where it needs more text. What it takes depends on
the text alone, never on how that was cut.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator
from typing import TypeVar

from engine.text.formats.pieces import CallBegun, CallGrown, MalformedCallError

Result = TypeVar("Result")
Steps = Generator[CallBegun | CallGrown | None, None, Result]
Waiting = Generator[None, None, Result]  # for more text, until something is known that is not told
Parts = Generator[str | None, None, None]  # of one text, None where more is needed

_LONGEST_HEAD = 1024  # what begins a call; longer ones would be tried again at every token
_SPACES = re.compile(r"\s*")
_SEPARATORS = re.compile(r"[\s,;]*")


class Source:
    """What is there of a block. `at` is how far it was read, `final` whether nothing follows.

    `unclosed` is what the arguments that are being told have opened: the closing words, the outermost first.
    """

    def __init__(self) -> None:
        self.text = ""
        self.at = 0
        self.final = False
        self.unclosed: list[str] = []
        self.telling = False  # a call that is not over yet
        self.told = False  # any call
        self._kept = 0  # where that begins of which nothing was told

    def push(self, text: str, final: bool) -> None:
        """Some more text. Positions change: readers keep none but `at` while they wait."""
        if self.telling:
            self._kept = self.at
        self.text = self.text[self._kept :] + text
        self.at -= self._kept
        self._kept = 0
        self.final = final

    def take_rest(self) -> str:
        """What is no call: all of which nothing was told, or what a call was not read of."""
        rest = self.text[self.at if self.telling else self._kept :]
        self.text, self.at, self._kept = "", 0, 0
        return rest

    def begin(self) -> None:
        """Note that a call is told."""
        self.told = self.telling = True

    def more(self) -> Waiting[None]:
        """Wait for more. MalformedCallError if nothing follows: then what is left is part of something unfinished."""
        if self.final:
            self.at = len(self.text)
            raise MalformedCallError
        yield None

    def char(self) -> Waiting[str]:
        """The next character that is no space; it is not taken."""
        while True:
            self.at = _SPACES.match(self.text, self.at).end()  # type: ignore[union-attr]
            if self.at < len(self.text):
                return self.text[self.at]
            yield from self.more()

    def head(self, pattern: re.Pattern[str]) -> Waiting[re.Match[str]]:
        """What `pattern` matches here, once nothing that follows can change it; it is taken."""
        while True:
            found = pattern.match(self.text, self.at)
            end = len(self.text) if found is None else found.end()
            if end - self.at > _LONGEST_HEAD:
                raise MalformedCallError
            if found is not None and (self.final or end < len(self.text)):
                self.at = end
                return found
            yield from self.more()

    def sees(self, offset: int, *words: str) -> Waiting[tuple[str | None, int]]:
        """Which of `words` stands behind `offset` and space, "" where the block ends, None for anything else.

        With it comes the offset behind the word. Of words that begin alike the longer ones stand first. Where the block
        ends within a word, it counts as ended.
        """
        while True:
            start = _SPACES.match(self.text, self.at + offset).end()  # type: ignore[union-attr]
            word = next((word for word in words if self.text.startswith(word, start)), None)
            rest = self.text[start : start + _LONGEST_HEAD]
            undecided = not rest or any(other.startswith(rest) for other in words if other != word)
            if not undecided or (self.final and word is not None):
                return word, start + len(word or "") - self.at
            if self.final:
                return "", len(self.text) - self.at
            yield None

    def between(self, *words: str) -> Waiting[bool]:
        """Skip what may stand before, between and behind calls, `words` among it; whether anything follows."""
        self.telling = False
        while True:
            self._skip(_SEPARATORS.match(self.text, self.at).end())  # type: ignore[union-attr]
            if self.at == len(self.text) and not self.final:
                yield None
                continue
            word, offset = yield from self.sees(0, *words)
            if word is None:
                return True
            self._skip(self.at + offset)
            if not word:
                return False

    def rest(self) -> Waiting[str]:
        """All that follows."""
        while not self.final:
            yield None
        rest, self.at = self.text[self.at :], len(self.text)
        return rest

    def _skip(self, to: int) -> None:
        self.at = to
        if self.told:
            self._kept = to


def whole(parts: Iterator[str | None]) -> Waiting[str]:
    """A text when all of its parts are there."""
    found: list[str] = []
    for part in parts:
        if part is None:
            yield None
        else:
            found.append(part)
    return "".join(found)
