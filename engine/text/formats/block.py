"""A block of tool calls while it arrives: what its reader knows of calls, and what turns out to be none."""

from __future__ import annotations

from engine.text.formats.pieces import CallBegun, CallEnded, CallGrown, CallPiece, MalformedCallError, Said, Tools
from engine.text.formats.readers import Reader
from engine.text.formats.source import Source


class Block:
    """What stands behind `opener`. With `known_only` a call of what is no tool is none."""

    def __init__(self, opener: str, reader: Reader, tools: Tools, known_only: bool = False) -> None:
        self._opener = opener
        self._source = Source()
        self._steps = reader.read(self._source, tools)
        self._known = tools if known_only else None
        self._calling = False
        self._over = False

    @property
    def told(self) -> bool:
        """Whether a call of it has been told."""
        return self._source.told

    def push(self, text: str, final: bool) -> list[CallPiece | Said]:
        """What `text` makes certain; `final`: the block ends behind it.

        A block that holds no call is text, its opener with it. A call that breaks off is closed as it stands, and text
        that cannot belong to it or begin another is text.
        """
        if self._over:
            return [Said(text)]
        self._source.push(text, final)
        pieces: list[CallPiece | Said] = []
        try:
            for step in self._steps:
                if step is None:
                    return _joined(pieces)
                if isinstance(step, CallBegun):
                    self._begin(step, pieces)
                pieces.append(step)
        except (MalformedCallError, RecursionError):
            pass
        self._over = True
        self._end(pieces)
        rest = self._source.take_rest()
        pieces.append(Said(rest if self.told else self._opener + rest))
        return _joined(pieces)

    def _begin(self, call: CallBegun, pieces: list[CallPiece | Said]) -> None:
        if self._known is not None and call.name not in self._known:
            raise MalformedCallError
        self._end(pieces)
        self._source.begin()
        self._calling = True

    def _end(self, pieces: list[CallPiece | Said]) -> None:
        """End the call that is being told, closing what it has opened."""
        if self._calling:
            pieces += [CallGrown("".join(reversed(self._source.unclosed))), CallEnded()]
            self._calling = False


def _joined(pieces: list[CallPiece | Said]) -> list[CallPiece | Said]:
    """`pieces` without empty ones, what a call has grown by in one."""
    joined: list[CallPiece | Said] = []
    for piece in pieces:
        last = joined[-1] if joined else None
        if isinstance(piece, CallGrown) and isinstance(last, CallGrown):
            joined[-1] = CallGrown(last.arguments + piece.arguments)
        elif not (isinstance(piece, Said) and not piece.text) and piece != CallGrown(""):
            joined.append(piece)
    return joined
