"""Finding markers in text that arrives in pieces, without reading any of it twice."""

from __future__ import annotations

import re
from collections.abc import Iterable


class Beginnings:
    """What some words may begin as, at the end of a text."""

    def __init__(self, words: Iterable[str]) -> None:
        self._beginnings = frozenset(word[:size] for word in words for size in range(1, len(word) + 1))
        self._longest = max(map(len, self._beginnings), default=0)

    def certain(self, text: str) -> int:
        """How much of `text`, in which none of the words stands, belongs to none, whatever follows."""
        for size in range(min(self._longest, len(text)), 0, -1):
            if text[-size:] in self._beginnings:
                return len(text) - size
        return len(text)


class Finder:
    """Finds the first of some markers; the longest of several that begin together.

    With `quotes` those between double quotes do not count.
    """

    def __init__(self, markers: Iterable[str], quotes: bool = False) -> None:
        self.markers = tuple(sorted(set(markers), key=len, reverse=True))
        self._longest = max(map(len, self.markers), default=0)
        words = list(map(re.escape, self.markers))
        self._pattern = re.compile("|".join([r"\\.", '"', *words] if quotes else words), re.DOTALL) if words else None
        self._beginnings = Beginnings(self.markers)
        self._escapes = quotes
        self._at = 0
        self._quoted = False

    def find(self, text: str, final: bool) -> re.Match[str] | None:
        """The first marker in `text`, which begins with what was given before. `final`: nothing follows."""
        if self._pattern is None:
            return None
        while found := self._pattern.search(text, self._at):
            if found[0] == '"':
                self._quoted = not self._quoted
            elif found[0][0] != "\\" and not self._quoted:
                grows = any(marker.startswith(text[found.start() :]) for marker in self.markers if marker != found[0])
                return None if grows and not final else found
            self._at = found.end()
        self._at = max(self._at, len(text) - self._longest + 1)
        return None

    def forget(self, count: int) -> None:
        """The first `count` characters are no longer given."""
        self._at = max(0, self._at - count)

    def certain(self, text: str) -> int:
        """How much of `text`, in which no marker was found, belongs to none, whatever follows."""
        certain = self._beginnings.certain(text)
        if self._escapes and text.endswith("\\") and self._at < len(text):
            return min(certain, len(text) - 1)  # it escapes what follows
        return certain
