"""What an answer is made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Tools = Mapping[str, Mapping[str, Any]]
"""The JSON schemas of the parameters of the tools that a request offers, by the tools' names."""


@dataclass(frozen=True)
class Said:
    """Some more of the answer's text."""

    text: str


@dataclass(frozen=True)
class Thought:
    """Some more of the reasoning before it."""

    text: str


@dataclass(frozen=True)
class CallBegun:
    """A tool call has begun; more of it follows, up to its `CallEnded`. `id` is "" where the model gave none.

    The arguments of a `custom` tool are text of any form.
    """

    name: str
    id: str = ""
    custom: bool = False


@dataclass(frozen=True)
class CallGrown:
    """Some more of the arguments of the call that has begun. All of them together are the JSON of an object, unless
    its tool is a custom one."""

    arguments: str


@dataclass(frozen=True)
class CallEnded:
    """The call that has begun is whole."""


CallPiece = CallBegun | CallGrown | CallEnded
Piece = Said | Thought | CallPiece


@dataclass(frozen=True)
class Call:
    """A whole tool call."""

    name: str
    arguments: str
    id: str = ""
    custom: bool = False


class CallGatherer:
    """Makes calls whole again."""

    def __init__(self) -> None:
        self._begun = CallBegun("")
        self._arguments: list[str] = []

    def add(self, piece: CallPiece) -> Call | None:
        """The call that `piece` ends, if it does."""
        match piece:
            case CallBegun():
                self._begun, self._arguments = piece, []
            case CallGrown():
                self._arguments.append(piece.arguments)
            case CallEnded():
                return Call(self._begun.name, "".join(self._arguments), self._begun.id, self._begun.custom)
        return None


class MalformedCallError(ValueError):
    """A block that should hold tool calls holds something else."""
