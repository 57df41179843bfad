"""Tokens that a grammar allows next, as another process works them out."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from engine.base.errors import UnsupportedError
from engine.base.spelling import LOST
from engine.worker.grammar_link import GrammarProcess, Next, Vocabulary
from engine.worker.place import Place
from engine.worker.protocol import Grammar

Floats = NDArray[np.float32]


class Grammars:
    """Makes the constraints of one model's requests. Its process starts with the first of them."""

    def __init__(self, tokenizer: Path | None, vocab_size: int) -> None:
        """`tokenizer` is the model's tokenizer.json; None: there is none."""
        self._path = tokenizer
        self._vocab_size = vocab_size
        self._process: GrammarProcess | None = None

    def constraints(self, grammars: Sequence[Grammar], stop_ids: Iterable[int]) -> list[Constraint]:
        """Constraints at the start of an answer that one of `stop_ids` ends, `ready` after a while.

        Raises UnsupportedError for a model without a tokenizer.
        """
        if grammars and (self._path is None or not self._path.is_file()):
            raise UnsupportedError("The model has no tokenizer.json, which grammars need.", "Ask for plain text.")
        return [Constraint(self._running(), grammar, tuple(sorted(stop_ids))) for grammar in grammars]

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.close()

    def _running(self) -> GrammarProcess:
        if self._process is None or not self._process.alive:
            self.close()
            self._process = GrammarProcess(Vocabulary(str(self._path), self._vocab_size))
        return self._process


class Constraint:
    """Where one answer is in its grammar. Close it when the answer is over."""

    _keys = itertools.count()

    def __init__(self, process: GrammarProcess, grammar: Grammar, stop_ids: tuple[int, ...]) -> None:
        self._process = process
        self._grammar = grammar
        self._key = next(self._keys)
        self._next: Future[Next] = process.call("open", self._key, grammar.text, stop_ids, grammar.begun or ())
        aside = grammar.aside
        self._aside = Place((), ()) if aside is None else Place(aside.opens, aside.closes, aside.begun)
        marker = grammar.after
        self._spelled = 0 if marker is None or grammar.begun is None else marker.length  # of that it begins behind
        self._exceeding = () if marker is None else marker.exceeding()
        self._evaded = LOST if grammar.unless is None else 0  # what is spelled of the marker that does without it
        self._left = False  # a token of that marker came that the grammar does not allow

    @property
    def ready(self) -> bool:
        """Whether it is known what may come next, or why nothing can, or that the grammar has not begun; else
        `restrict` waits.
        """
        return not self._in_force or self._next.done()

    def check(self) -> None:
        """Raise what is known to be wrong with the grammar: UsageError, or UnsupportedError about the tokenizer."""
        if self._in_force or self._next.done():
            self._next.result()

    def restrict(self, logits: Floats) -> Floats:
        """`logits` [vocab] with minus infinity for tokens that may not come next.

        Raises FreetokenError where the grammar cannot be followed.
        """
        self._begin_again_if_over()
        if not self._in_force:
            return self._without_exceeding(logits)
        if self._done:
            return logits
        fits = self._fitting(len(logits))
        fits[self._evading()] = 1
        return np.where(fits, logits, np.float32(-np.inf))

    def take(self, token: int) -> None:
        """Note the token that came next."""
        self._begin_again_if_over()
        aside = self._aside.inside
        self._aside.take(token)
        if not self._in_force:
            marker = self._grammar.after
            assert marker is not None
            self._spelled = 0 if aside or self._aside.inside else marker.after(self._spelled, token)
        elif not self._done:
            if self._grammar.unless is not None and self._evaded != LOST:
                self._left = not self._fitting(token + 1)[token]
                self._evaded = self._grammar.unless.after(self._evaded, token)
            if not self._left:
                self._next = self._process.call("take", self._key, token)

    def close(self) -> None:
        """Let the process forget it."""
        self._process.call("close", self._key)

    def _fitting(self, count: int) -> NDArray[np.uint8]:
        """1 for those of the first `count` tokens that the grammar allows."""
        if self._left:
            return np.zeros(count, np.uint8)
        bits = np.frombuffer(self._next.result().mask, np.uint8)
        return np.unpackbits(bits, count=count, bitorder="little")

    def _without_exceeding(self, logits: Floats) -> Floats:
        """`logits` without the tokens that complete the marker and begin what follows, which the grammar would miss."""
        exceeding = () if self._aside.inside else self._exceeding[self._spelled]
        if not exceeding:
            return logits
        allowed = logits.copy()
        allowed[list(exceeding)] = -np.inf
        return allowed

    def _evading(self) -> list[int]:
        """The tokens that bring the marker nearer that does without the grammar."""
        if self._grammar.unless is None or self._evaded == LOST:
            return []
        return [token for token, spelled in self._grammar.unless.steps.items() if spelled[self._evaded] > self._evaded]

    def _begin_again_if_over(self) -> None:
        if self._grammar.again and self._in_force and self._done:
            self._spelled = 0
            self._next = self._process.call("reset", self._key)

    @property
    def _in_force(self) -> bool:
        """Whether it has begun."""
        return self._grammar.after is None or self._grammar.after.complete(self._spelled)

    @property
    def _done(self) -> bool:
        """Whether the answer goes on as it likes."""
        if self._grammar.unless is not None and self._grammar.unless.complete(self._evaded):
            return True
        return self._grammar.then_free and self._next.result().stopped
