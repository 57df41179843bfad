"""Custom tools, whose input is text of any form: for templates and models functions of one string."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from engine.front.forms.text_grammars import TextGrammar
from engine.text.formats.pieces import CallBegun, CallEnded, CallGrown, CallPiece

INPUT = "input"
"""The one parameter of their functions."""
_HEAD = re.compile(rf'\s*\{{\s*"{INPUT}"\s*:\s*"')
# Whole characters of a JSON string: two escapes make one of those beyond U+FFFF.
_CHARACTERS = re.compile(
    r'(?:[^"\\]|\\[^u]|\\u(?![dD][89a-fA-F])[0-9a-fA-F]{4}|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})*'
)


def as_function(tool: Mapping[str, Any], grammar: TextGrammar | None) -> Mapping[str, Any]:
    """A custom tool as a function. The `grammar` of its text is told in words."""
    described = {key: tool[key] for key in ("name", "description") if tool.get(key) is not None}
    text = {"type": "string", **({} if grammar is None else {"description": _told(grammar)})}
    parameters = {"type": "object", "properties": {INPUT: text}, "required": [INPUT]}
    return {"type": "function", "function": {**described, "parameters": parameters}}


def _told(grammar: TextGrammar) -> str:
    return f"Text of the form that this {grammar.syntax} grammar describes:\n{grammar.definition}"


def call_of(identity: str, name: str, text: str) -> Mapping[str, Any]:
    """A call of a custom tool as one of its function."""
    arguments = json.dumps({INPUT: text}, ensure_ascii=False)
    return {"id": identity, "type": "function", "function": {"name": name, "arguments": arguments}}


class CustomCalls:
    """Makes text of the JSON with which a model calls custom tools, as it grows."""

    def __init__(self, custom: Collection[str]) -> None:
        """`custom` are the names of the tools."""
        self._custom = custom
        self._input: _Input | None = None  # of the call that has begun, if its tool is a custom one

    def read(self, piece: CallPiece) -> Sequence[CallPiece]:
        """What a piece of a call is for the client; calls of other tools stay as they are."""
        if isinstance(piece, CallBegun):
            self._input = _Input() if piece.name in self._custom else None
            return [replace(piece, custom=self._input is not None)]
        if self._input is None:
            return [piece]
        more = self._input.grow(piece.arguments) if isinstance(piece, CallGrown) else self._input.finish()
        return [*([CallGrown(more)] if more else []), *([piece] if isinstance(piece, CallEnded) else [])]


class _Input:
    """The text of one call, out of the JSON of its arguments."""

    def __init__(self) -> None:
        self._arguments: list[str] = []
        self._told: list[str] = []
        self._begun = False
        self._rest = ""  # what is no whole character yet, or stands before the text

    def grow(self, arguments: str) -> str:
        """The text that some more of the arguments makes certain."""
        self._arguments.append(arguments)
        self._rest += arguments
        if not self._begun:
            head = _HEAD.match(self._rest)
            if head is None:
                return ""
            self._begun, self._rest = True, self._rest[head.end() :]
        characters = _CHARACTERS.match(self._rest)
        assert characters is not None  # it matches nothing, too
        self._rest = self._rest[characters.end() :]
        self._told.append(json.loads(f'"{characters[0]}"', strict=False))
        return self._told[-1]

    def finish(self) -> str:
        """The rest. A model that calls the parameter otherwise is understood, too."""
        arguments, told = "".join(self._arguments), "".join(self._told)
        values = json.loads(arguments)
        text = next(iter(values.values())) if len(values) == 1 else values.get(INPUT)
        # Half of a pair of escapes is no character, and cannot be sent.
        whole = (text if isinstance(text, str) else arguments).encode("utf-8", "replace").decode()
        return whole[len(told) :] if whole.startswith(told) else ""
