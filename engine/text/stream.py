"""The text of an answer while it is being generated, cut at stop strings."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from engine.base.errors import UsageError
from engine.text.decoding import Decoder


class StopScanner:
    """Lets text through up to the first stop string.

    The string that is complete first wins, the longest of several that end together; so the outcome does not depend
    on how the text is cut into chunks. Text that may be the beginning of a stop string is held back.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        if not all(stops):
            raise UsageError("A stop string is empty.", "Leave it out, or give at least one character.")
        self._stops = tuple(dict.fromkeys(stops))
        self._held = ""
        self.stopped: str | None = None
        """The stop string that ended the text."""

    def push(self, text: str) -> str:
        """The part of the text so far that no stop string can take back."""
        if self.stopped is not None:
            return ""
        if not self._stops:
            return text
        text = self._held + text
        found = [(start + len(stop), start, stop) for stop in self._stops if (start := text.find(stop)) >= 0]
        if found:
            _, start, self.stopped = min(found)
            self._held = ""
            return text[:start]
        cut = min(self._may_begin(stop, text) for stop in self._stops)
        self._held = text[cut:]
        return text[:cut]

    def finish(self) -> str:
        """What was held back."""
        held, self._held = self._held, ""
        return held

    @staticmethod
    def _may_begin(stop: str, text: str) -> int:
        """Where in `text` a beginning of `stop` runs to the end; the length of `text` where none does."""
        start = text.find(stop[0], max(0, len(text) - len(stop) + 1))
        while start >= 0 and not stop.startswith(text[start:]):
            start = text.find(stop[0], start + 1)
        return len(text) if start < 0 else start


class Stream:
    """Token ids in, certain text out: never half a character, never a part of a stop string.

    What `push` and `finish` return joins to the decoded text of all pushed ids, cut before the first stop string.
    """

    def __init__(self, decoder: Decoder, stops: Sequence[str], skipped: Collection[int]) -> None:
        self._decoder = decoder
        self._scanner = StopScanner(stops)
        self._skipped = skipped

    @property
    def stopped(self) -> str | None:
        """The stop string that ended the text, None while there is none."""
        return self._scanner.stopped

    def push(self, token: int) -> str:
        """The text that `token` makes certain, often empty."""
        if token in self._skipped:
            return ""
        return self._scanner.push(self._decoder.push(token))

    def finish(self) -> str:
        """The rest of the text, when no more tokens follow. Incomplete bytes become U+FFFD."""
        return self._scanner.push(self._decoder.finish()) + self._scanner.finish()
