"""Reasoning that may not go on for ever: counts its tokens and brings it to its end. Token ids only."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from engine.worker.place import Place
from engine.worker.protocol import ThoughtBound

Floats = NDArray[np.float32]


class Thought:
    """Where one answer is in its reasoning."""

    def __init__(self, bound: ThoughtBound) -> None:
        self._bound = bound
        self._left = bound.tokens
        self._rest: tuple[int, ...] = ()  # of the closing words, once they are due
        self._completing: tuple[int, ...] = ()  # before them: what goes on with a character that is not whole
        self._lacking = 0  # bytes of that character
        self._barring = False
        self._place = Place(bound.opens, bound.closes, bound.begun)
        self._close_if_due()

    @property
    def forced(self) -> int | None:
        """The token that has to come next; None: any."""
        return self._rest[0] if self._rest else None

    def restrict(self, logits: Floats) -> Floats:
        """`logits` [vocab] with minus infinity for tokens that may not come next: within a character that is to be the
        last, or right behind the closing words.
        """
        if self._completing:
            allowed = np.full_like(logits, -np.inf)
            allowed[list(self._completing)] = logits[list(self._completing)]
            return allowed
        if not self._barring or not self._bound.barred:
            return logits
        allowed = logits.copy()
        allowed[list(self._bound.barred)] = -np.inf
        return allowed

    def take(self, token: int) -> None:
        """Note the token that came next."""
        self._barring = len(self._rest) == 1
        if self._rest:
            self._rest = self._rest[1:]
            if not self._rest:
                self._place.leave()
            return
        self._left -= self._place.inside
        self._lacking = self._bound.characters.after(self._lacking, token)
        self._place.take(token)
        self._close_if_due()

    def _close_if_due(self) -> None:
        """Begin the closing words, but not within those that the model itself has begun, nor within a character."""
        due = self._place.inside and self._left <= 0 and not self._place.in_marker
        self._completing = self._bound.characters.completing(self._lacking) if due else ()
        if due and not self._completing:
            self._rest = self._bound.closing
