"""Tokens that a grammar allows next. What a grammar means is the business of llguidance; nothing here reads text.

Its tokenizer is made when the first request asks for a grammar, which takes a second or more for a large vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from engine.base.errors import FreetokenError, UnsupportedError, UsageError
from engine.worker.protocol import Grammar

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

Floats = NDArray[np.float32]


class Grammars:
    """Makes the constraints of one model's requests."""

    def __init__(self, tokenizer: Path | None, vocab_size: int) -> None:
        """`tokenizer` is the model's tokenizer.json; None: there is none."""
        self._path = tokenizer
        self._vocab_size = vocab_size
        self._tokenizers: dict[tuple[int, ...], LLTokenizer] = {}

    def constraint(self, grammar: Grammar, stop_ids: Iterable[int]) -> Constraint:
        """A constraint at the start of an answer that one of `stop_ids` ends.

        Raises UnsupportedError for a model without a tokenizer, or with one that cannot be used, UsageError for a
        grammar that makes no sense.
        """
        from llguidance import LLMatcher

        matcher = LLMatcher(self._tokenizer(tuple(sorted(stop_ids))), grammar.text, log_level=0)
        if matcher.is_error():
            raise UsageError(
                f"The grammar of the answer cannot be used: {matcher.get_error()}.", "Simplify its schema."
            )
        return Constraint(matcher, grammar)

    def _tokenizer(self, stop_ids: tuple[int, ...]) -> LLTokenizer:
        from llguidance import LLTokenizer

        if stop_ids not in self._tokenizers:
            if self._path is None or not self._path.is_file():
                raise UnsupportedError("The model has no tokenizer.json, which grammars need.", "Ask for plain text.")
            try:
                source = self._path.read_text(encoding="utf-8")
                self._tokenizers[stop_ids] = LLTokenizer(source, self._vocab_size, list(stop_ids) or None)
            except Exception as error:  # its own exceptions have no common base
                message = f"The model's tokenizer cannot be used for grammars: {error}."
                raise UnsupportedError(message, "Ask for plain text.") from error
        return self._tokenizers[stop_ids]


class Constraint:
    """Where one answer is in its grammar."""

    def __init__(self, matcher: LLMatcher, grammar: Grammar) -> None:
        self._matcher = matcher
        self._grammar = grammar
        self._tail: tuple[int, ...] = ()
        self._in_force = not grammar.after
        self._done = False

    def restrict(self, logits: Floats) -> Floats:
        """`logits` [vocab] with minus infinity for tokens that may not come next."""
        if not self._in_force or self._done:
            return logits
        mask = np.zeros(-(-len(logits) // 32), np.int32)
        self._matcher.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
        self._check()
        allowed = np.unpackbits(mask.view(np.uint8), bitorder="little")[: len(logits)]
        return np.where(allowed, logits, np.float32(-np.inf))

    def take(self, token: int) -> None:
        """Note the token that came next."""
        if self._done:
            return
        if not self._in_force:
            self._tail = (*self._tail, token)[-len(self._grammar.after) :]
            self._in_force = self._tail == self._grammar.after
            return
        self._matcher.consume_token(token)
        self._check()
        self._done = self._grammar.then_free and self._matcher.is_stopped()

    def _check(self) -> None:
        if self._matcher.is_error():
            raise FreetokenError(
                f"The grammar of the answer cannot be followed: {self._matcher.get_error()}.", "Simplify its schema."
            )
