"""How long a step of so many tokens takes here, learnt from the steps that ran."""

from __future__ import annotations

MANY = 16  # tokens of a step that also read
_FADE = 0.95  # what an observation weighs when the next one has come


class Pace:
    """Predicts seconds a step as `base + rate * tokens`, least squares over recent steps.

    Every observation weighs less than the next one, so that the line follows a conversation that gets deeper or a
    machine that gets busier. It follows late: with every part of a long prompt attention reads
    further back, and the mean of twenty parts is too short for the next. So where the last step took longer than the
    line says, the next one is expected to take longer in proportion. And parts that get smaller as they get slower look
    like a step whose tokens cost nothing, so after a step of `MANY` tokens the next one has at most in proportion.
    """

    def __init__(self) -> None:
        self._weight = 0.0
        self._tokens = 0.0
        self._seconds = 0.0
        self._squares = 0.0
        self._products = 0.0
        self._last = (0, 0.0)  # tokens and seconds of the last step

    @property
    def known(self) -> bool:
        """Whether there was an observation."""
        return self._weight > 0.0

    def observe(self, tokens: int, seconds: float) -> None:
        """Learn from a step of `tokens` tokens."""
        self._weight = self._weight * _FADE + 1.0
        self._tokens = self._tokens * _FADE + tokens
        self._seconds = self._seconds * _FADE + seconds
        self._squares = self._squares * _FADE + tokens * tokens
        self._products = self._products * _FADE + tokens * seconds
        self._last = (tokens, seconds)

    def line(self) -> tuple[float, float] | None:
        """(base, rate), neither negative; None before the first observation."""
        if self._weight == 0.0:
            return None
        spread = self._squares - self._tokens * self._tokens / self._weight
        proportional = self._products / self._squares
        # With steps of one size only, nothing tells base from rate; blaming the tokens errs towards short steps.
        if spread <= 0.01 * self._squares / self._weight:
            return 0.0, proportional
        rate = (self._products - self._tokens * self._seconds / self._weight) / spread
        base = (self._seconds - rate * self._tokens) / self._weight
        if rate <= 0.0 or base < 0.0:
            return 0.0, proportional
        return base, rate

    def tokens_within(self, seconds: float, most: int) -> int:
        """Tokens of a step that should take at most `seconds`, between 0 and `most`; `most` while nothing is known."""
        line = self.line()
        if line is None:
            return most
        base, rate = line
        tokens, took = self._last
        if tokens >= MANY and tokens * seconds < most * took:
            most = int(tokens * seconds / took)
        expected = base + rate * tokens
        if took > expected > 0.0:
            base, rate = base * took / expected, rate * took / expected
        left = seconds - base
        if left >= most * rate:  # asked first: a rate may be too small to divide by
            return most
        return int(left / rate) if left > 0.0 else 0
