"""Whether a candidate makes more tokens a second than what is in force: tried between two stretches of the latter.

A fill costs time now and buys hits later, so no single step can tell. A candidate runs for hundreds of tokens, after
some that do not count while the cache takes its new shape, and must beat the stretches before and after it: text that
happens to be easier while it ran makes the one after easier too, or was easier before.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto


@dataclass(frozen=True)
class TrialRules:
    """Lengths in tokens. A rejected candidate doubles the wait, up to `longest_wait`."""

    window: int = 256
    settle: int = 128
    first_wait: int = 512
    wait: int = 1024
    longest_wait: int = 16384
    margin: float = 0.03  # by which a candidate must be faster than both stretches around it
    hopeless: float = 0.4  # of the rate before: a candidate so slow is given up ...
    glance: int = 32  # ... after so many tokens
    unlike: float = 0.2  # difference in tokens a step that makes stretches incomparable


USUAL_RULES = TrialRules()


class Verdict(Enum):
    """What a step means for the division in force."""

    GO_ON = auto()
    TRY = auto()  # put the candidate in force
    BACK = auto()  # put the old one in force again, to measure it after the candidate
    ACCEPTED = auto()  # put the candidate in force for good
    REJECTED = auto()  # the old one is in force, or comes back


@dataclass
class _Stretch:
    """Tokens and seconds of one stretch, of which the first `skip` tokens count in `rate_of_all` alone."""

    skip: int
    tokens: int = 0
    steps: int = 0
    seconds: float = 0.0
    all_tokens: int = 0
    all_seconds: float = 0.0

    def add(self, tokens: int, seconds: float) -> None:
        self.all_tokens += tokens
        self.all_seconds += seconds
        if self.skip > 0:
            self.skip -= tokens
            return
        self.tokens += tokens
        self.steps += 1
        self.seconds += seconds

    @property
    def rate(self) -> float:
        return self.tokens / self.seconds if self.seconds > 0 else 0.0

    @property
    def rate_of_all(self) -> float:
        return self.all_tokens / self.all_seconds if self.all_seconds > 0 else 0.0

    @property
    def width(self) -> float:
        """Tokens a step."""
        return self.tokens / self.steps if self.steps else 0.0


class _Phase(Enum):
    WAIT = auto()
    BEFORE = auto()
    TRYING = auto()
    AFTER = auto()


class Trials:
    """One trial at a time; knows tokens and seconds, and nothing of what is tried."""

    def __init__(self, rules: TrialRules = USUAL_RULES) -> None:
        self._rules = rules
        self._phase = _Phase.WAIT
        self._left = rules.first_wait
        self._wait = rules.wait
        self._stretches: list[_Stretch] = []
        self.gain = 0.0  # of the last verdict: the candidate's rate over the better of its neighbours, less one

    @property
    def trying(self) -> bool:
        """Whether the candidate is in force."""
        return self._phase is _Phase.TRYING

    @property
    def waiting(self) -> bool:
        """Whether no trial is under way."""
        return self._phase is _Phase.WAIT

    def due(self, tokens: int) -> bool:
        """Whether the wait ends with a step of so many tokens."""
        return self.waiting and self._left <= tokens

    def void(self) -> bool:
        """End a trial whose stretches cannot be compared any more; whether the candidate was in force."""
        was_trying = self.trying
        self._pause(self._rules.wait)
        self._wait = self._rules.wait
        return was_trying

    def step(self, tokens: int, seconds: float, worth_trying: bool) -> Verdict:
        """Count a step. A trial begins after the wait if there is something `worth_trying`."""
        rules = self._rules
        if self._phase is _Phase.WAIT:
            self._left -= tokens
            if self._left <= 0 and worth_trying:
                self._phase, self._stretches = _Phase.BEFORE, [_Stretch(skip=0)]
            return Verdict.GO_ON
        stretch = self._stretches[-1]
        stretch.add(tokens, seconds)
        if self._phase is _Phase.TRYING and stretch.all_tokens >= rules.glance:
            ratio = stretch.rate_of_all / self._stretches[0].rate
            if ratio < rules.hopeless:
                return self._end(ratio - 1)
        if stretch.tokens < rules.window:
            return Verdict.GO_ON
        if self._phase is _Phase.AFTER:
            return self._judge()
        self._phase = _Phase.TRYING if self._phase is _Phase.BEFORE else _Phase.AFTER
        self._stretches.append(_Stretch(skip=rules.settle))
        return Verdict.TRY if self.trying else Verdict.BACK

    def _judge(self) -> Verdict:
        before, candidate, after = self._stretches
        widths = [stretch.width for stretch in self._stretches]
        if max(widths) > min(widths) * (1 + self._rules.unlike):
            self._pause(self._rules.wait)
            self.gain = 0.0
            return Verdict.REJECTED
        gain = candidate.rate / max(before.rate, after.rate) - 1
        if gain <= self._rules.margin:
            return self._end(gain)
        self.gain = gain
        self._wait = self._rules.wait
        self._pause(self._wait)
        return Verdict.ACCEPTED

    def _end(self, gain: float) -> Verdict:
        self.gain = gain
        self._pause(self._wait)
        self._wait = min(2 * self._wait, self._rules.longest_wait)
        return Verdict.REJECTED

    def _pause(self, tokens: int) -> None:
        self._phase, self._left, self._stretches = _Phase.WAIT, tokens, []
