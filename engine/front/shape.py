"""What an interface makes of the pieces of an answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from engine.front.answers import Piece, ScoredToken
from engine.front.tally import Tally
from engine.front.wire.dialects import Dialect, Json
from engine.text.text import Text


class Shape(Protocol):
    """One kind of answer on one interface."""

    dialect: Dialect

    def opening(self, index: int) -> Sequence[Json]:
        """The first events of choice `index`."""
        ...

    def events(self, piece: Piece) -> Sequence[Json]:
        """The events for a piece."""
        ...

    def closing(self, tally: Tally) -> Sequence[Json]:
        """The last events, with counts."""
        ...

    def whole(self, pieces: Sequence[Piece], tally: Tally) -> Json:
        """The unstreamed answer made of all `pieces`."""
        ...


def scores(text: Text, tokens: Sequence[ScoredToken]) -> list[Json]:
    """Tokens with their log probabilities and those of the most likely ones, as OpenAI's chats and ollama tell them."""
    return [
        {
            **_score(text, scored.token, scored.scores.logprob),
            "top_logprobs": [_score(text, *pair) for pair in scored.scores.top],
        }
        for scored in tokens
    ]


def _score(text: Text, token: int, logprob: float) -> Json:
    content = text.token_bytes(token)
    return {"token": content.decode("utf-8", "replace"), "logprob": logprob, "bytes": list(content)}
