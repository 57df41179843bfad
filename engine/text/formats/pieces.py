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
class Call:
    """A whole tool call. `arguments` is the JSON of an object; `id` is "" where the model gave none."""

    name: str
    arguments: str
    id: str = ""


Piece = Said | Thought | Call


class MalformedCallError(ValueError):
    """A block that should hold tool calls holds something else."""
