"""The process beside a worker that follows grammars: `python -P -m engine.worker.grammar_process CONFIG`.

Its standard input is a socket: calls of `Matchers` come in, their results go out in the same order.
"""

from __future__ import annotations

import json
import signal
import sys
import traceback
from collections.abc import Callable, Mapping
from functools import lru_cache
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING

from engine.base.errors import FreetokenError, UnsupportedError, UsageError
from engine.worker.grammar_link import Next, Vocabulary
from engine.worker.link import die_with_parent

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

_KEPT = 8  # grammars that are not read again


class Matchers:
    """Where the answers of one model are in their grammars. What those mean is the business of llguidance."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._tokenizers: dict[tuple[int, ...], LLTokenizer] = {}
        self._matchers: dict[int, LLMatcher] = {}
        self._read = lru_cache(_KEPT)(self._read_anew)  # an agent sends the same tools with every request

    def open(self, key: int, grammar: str, stop_ids: tuple[int, ...], begun: tuple[int, ...]) -> Next:
        """Begin an answer that one of `stop_ids` ends, behind the tokens `begun`.

        Raises UnsupportedError for a tokenizer that cannot be used, UsageError for a grammar that makes no sense.
        """
        self._matchers[key] = matcher = self._read(grammar, stop_ids).deep_copy()
        matcher.consume_tokens(list(begun))
        return _next(matcher)

    def take(self, key: int, token: int) -> Next:
        """Go on behind `token`. Raises UsageError where the grammar turns out to be more than can be followed."""
        self._matchers[key].consume_token(token)
        return _next(self._matchers[key])

    def reset(self, key: int) -> Next:
        """Go back to the beginning."""
        self._matchers[key].reset()
        return _next(self._matchers[key])

    def close(self, key: int) -> None:
        """Forget an answer. One that could not begin is fine."""
        self._matchers.pop(key, None)

    def _read_anew(self, grammar: str, stop_ids: tuple[int, ...]) -> LLMatcher:
        from llguidance import LLMatcher

        matcher = LLMatcher(self._tokenizer(stop_ids), grammar, log_level=0)
        if matcher.is_error():
            raise UsageError(f"The grammar of the answer cannot be used: {_why(matcher)}.", "Simplify its schema.")
        return matcher

    def _tokenizer(self, stop_ids: tuple[int, ...]) -> LLTokenizer:
        from llguidance import LLTokenizer

        if stop_ids not in self._tokenizers:
            try:
                source = Path(self._vocabulary.tokenizer).read_text(encoding="utf-8")
                self._tokenizers[stop_ids] = LLTokenizer(source, self._vocabulary.size, list(stop_ids) or None)
            except Exception as error:  # its own exceptions have no common base
                message = f"The model's tokenizer cannot be used for grammars: {error}."
                raise UnsupportedError(message, "Ask for plain text.") from error
        return self._tokenizers[stop_ids]


def _next(matcher: LLMatcher) -> Next:
    mask = matcher.compute_bitmask()
    if matcher.is_error():
        raise UsageError(f"The grammar of the answer cannot be followed: {_why(matcher)}.", "Simplify its schema.")
    return Next(mask, matcher.is_stopped())


def _why(matcher: LLMatcher) -> str:
    """The sentence of an error, without the state that follows it."""
    return matcher.get_error().partition("\n")[0].rstrip(".")


def main(config: str) -> None:
    """Answer calls until the worker has gone."""
    values = json.loads(config)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to the whole terminal; the front decides what it means
    die_with_parent(values.pop("parent"))
    matchers, link = Matchers(Vocabulary(**values)), Connection(sys.stdin.fileno())
    methods: Mapping[str, Callable[..., Next | None]] = {
        "open": matchers.open,
        "take": matchers.take,
        "reset": matchers.reset,
        "close": matchers.close,
    }
    while True:
        try:
            name, given = link.recv()
        except EOFError:
            return
        result: object
        try:
            result = methods[name](*given)
        except FreetokenError as error:
            result = error
        except Exception as error:
            traceback.print_exc()
            result = FreetokenError(f"The grammar of the answer cannot be followed: {error!r}.", "Simplify its schema.")
        link.send(result)


if __name__ == "__main__":
    main(sys.argv[1])
