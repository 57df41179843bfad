"""How often something is tried again, and how long is waited in between."""

from __future__ import annotations

import random
import threading
from dataclasses import dataclass

from engine.base.errors import FreetokenError, NetworkError
from engine.base.units import format_duration


class Passing(Exception):
    """A failure that may pass. `wait` are the seconds that the other side asks for, 0 if it does not say."""

    def __init__(self, reason: str, wait: float = 0.0) -> None:
        super().__init__(reason)
        self.reason = reason
        self.wait = wait


class Stopped(FreetokenError):
    """The download was given up from this side; whoever waits for it has an error of its own."""


@dataclass(frozen=True)
class Rules:
    """`tries` in a row without any progress end it. Waits double from `first_wait` seconds on, or are what the server
    asks for, as long as that is no more than `longest_wait`: the Hub counts its limits over five minutes.
    """

    tries: int = 6
    first_wait: float = 0.5
    longest_wait: float = 300.0


class Patience:
    """Counts the failures of one request in a row, and waits after each. `stop` ends a wait at once.

    `again` says, after "Check the connection and" or "Later", what the user does when it is given up.
    """

    def __init__(self, what: str, stop: threading.Event, rules: Rules, again: str = "try again.") -> None:
        self._what = what
        self._stop = stop
        self._rules = rules
        self._again = again
        self._failures = 0

    def progressed(self) -> None:
        """Something came: failures before it do not count any more."""
        self._failures = 0

    def failed(self, failure: Passing) -> None:
        """Waits, or raises NetworkError when there were too many failures or the wait would be too long."""
        self._failures += 1
        if self._failures >= self._rules.tries:
            raise NetworkError(
                f"{self._what} cannot be fetched: {failure.reason}, {self._failures} times in a row.",
                f"Check the connection and {self._again}",
            ) from None
        if failure.wait > self._rules.longest_wait:
            raise NetworkError(
                f"{self._what} cannot be fetched for {format_duration(failure.wait)}: {failure.reason}.",
                f"Later, {self._again} A token raises the Hub's limits: hf auth login.",
            ) from None
        doubled = self._rules.first_wait * 2 ** (self._failures - 1)
        if pause(max(failure.wait, doubled * random.uniform(0.5, 1.0)), self._stop):
            raise Stopped(f"{self._what} was given up.")


def pause(seconds: float, stop: threading.Event) -> bool:
    """Waits, or returns True at once when `stop` is set."""
    return stop.wait(seconds)
