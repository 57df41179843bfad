"""The pieces of an answer put together again, for those who want it whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from engine.front.answers import Piece, ScoredToken
from engine.text.formats.pieces import Call, CallGatherer


@dataclass
class Whole:
    """All of one choice, as its pieces told it."""

    index: int
    texts: list[str] = field(default_factory=list)
    thoughts: list[str] = field(default_factory=list)
    tokens: list[ScoredToken] = field(default_factory=list)  # those of the text
    calls: list[Call] = field(default_factory=list)
    finish_reason: str = "stop"
    stopped: str | None = None  # the stop string that ended it

    @property
    def text(self) -> str:
        return "".join(self.texts)

    @property
    def thought(self) -> str:
        return "".join(self.thoughts)


def gathered(pieces: Sequence[Piece]) -> list[Whole]:
    """Every choice, in order of their numbers."""
    found: dict[int, Whole] = {}
    calls: dict[int, CallGatherer] = {}
    for piece in pieces:
        whole = found.setdefault(piece.index, Whole(piece.index))
        whole.texts.append(piece.text)
        whole.thoughts.append(piece.thought)
        whole.tokens += piece.tokens
        if piece.call is not None:
            call = calls.setdefault(piece.index, CallGatherer()).add(piece.call)
            whole.calls += [] if call is None else [call]
        if piece.finish_reason is not None:
            whole.finish_reason, whole.stopped = piece.finish_reason, piece.stopped
    return [found[index] for index in sorted(found)]
