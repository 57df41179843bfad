"""Grammars of blocks of calls whose arguments stand between tags: a pair of a key and a value for each."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Set
from typing import Any

from engine.front.forms.call_blocks import SHARED, CallBlock, Words
from engine.text.formats.readers import TaggedPairs
from engine.text.formats.record import NAME, CallFormat
from engine.text.formats.values import types_allowed
from engine.text.text import Text

_ANNOTATIONS = frozenset({"title", "description", "default", "examples"})
_OF_OBJECTS = _ANNOTATIONS | {
    "type",
    "properties",
    "required",
    "additionalProperties",
    "$schema",
    "$defs",
    "definitions",
}
_KEY = re.compile(r"[\w.:/-]+")
_KINDS = {"integer": "number", "": "object"}
"""How tags tell the JSON types that they have no word of their own for."""


def tagged_block(
    text: Text, calls: CallFormat, tools: Mapping[str, Mapping[str, Any] | None], several: bool
) -> tuple[CallBlock, frozenset[str]]:
    """The block of calls of `tools`, given with their schemas, and the tools whose calls follow theirs there.

    Those without a schema take any pairs, as do those whose schema tags cannot be held to.
    """
    return _Tags(text, calls).block(tools, several)


class _Tags:
    def __init__(self, text: Text, calls: CallFormat) -> None:
        assert isinstance(calls.reader, TaggedPairs)
        self._text = text
        self._words = Words(text)
        self._calls = calls
        self._reader = calls.reader

    def block(self, tools: Mapping[str, Mapping[str, Any] | None], several: bool) -> tuple[CallBlock, frozenset[str]]:
        marker = self._calls.region.opens[0]
        before, _, after = self._calls.forced.removeprefix(marker).strip().partition(NAME)
        more = " (SPACE call)*" if several and self._reader.ends else ""
        rules = [f"start: SPACE call{more}{self._words.end(self._calls)}\n"]
        held = set()
        for index, (name, schema) in enumerate(tools.items()):
            pairs = None if schema is None else self._pairs(name, schema)
            held |= set() if pairs is None else {name}
            pairs = "(pair SPACE)*" if pairs is None else pairs
            rules.append(f"named{index}: {json.dumps(name)} {self._words.spelt(after)} SPACE {pairs}\n")
        named = " | ".join(f"named{index}" for index in range(len(tools)))
        rules.append(f"call: {self._words.spelt(before)} ({named}) {self._words.spelt(self._reader.ends)}\n")
        rules.append(
            f"pair: ({self._opening('ID', 'string')} | {self._opening('ID', 'object')}) {self._text_value()}\n"
        )
        rules += [self._terminals(), SHARED]
        return CallBlock(marker, "".join(rules)), frozenset(held)

    def _pairs(self, tool: str, schema: Mapping[str, Any]) -> str | None:
        """The pairs of a tool in the order of its schema; None where that says more than tags can be held to."""
        properties, required = schema.get("properties", {}), schema.get("required", [])
        plain = schema.keys() <= _OF_OBJECTS and isinstance(properties, Mapping) and isinstance(required, list)
        if self._reader.mark or not plain or not {*map(str, required)} <= properties.keys():
            return None
        shared = {name: schema[name] for name in ("$defs", "definitions") if name in schema}
        pairs = []
        for key, each in properties.items():
            types = types_allowed({tool: schema}, tool, key)
            value = self._value(each, types, shared) if isinstance(each, Mapping) and _KEY.fullmatch(key) else None
            if value is None:
                return None
            kind = "string" if types and types <= {"string", "null"} else min(types, default="")
            pair = f"{self._opening(json.dumps(key), kind)} {value} SPACE"
            pairs.append(pair if key in required else f"({pair})?")
        return " ".join(pairs)

    def _value(self, schema: Mapping[str, Any], types: Set[str], shared: Mapping[str, Any]) -> str | None:
        """A value with its end."""
        ends = self._words.spelt(self._reader.value_ends)
        if "string" not in types:
            options = {"whitespace_pattern": "[ \\n\\t]{0,12}"}
            return f"SPACE %json {json.dumps({**schema, **shared, 'x-guidance': options})} SPACE {ends}"
        branches = schema.get("anyOf", [{}])
        plain = isinstance(branches, list) and all(_is_plain(each) for each in branches)
        if types <= {"string", "null"} and plain and _is_plain(schema, "anyOf"):
            return self._text_value()
        choices = [schema["const"]] if "const" in schema else schema.get("enum")
        known = types == {"string"} and (_is_plain(schema, "const") or _is_plain(schema, "enum"))
        if not known or not isinstance(choices, list) or not all(isinstance(each, str) for each in choices):
            return None
        line = '"\\n"?' if self._reader.lines else ""
        return f"{line} ({' | '.join(map(json.dumps, choices))}) {line} {ends}"

    def _text_value(self) -> str:
        """A text with its end; what of that is no special token belongs to the terminal."""
        first, *rest = self._text.cut(self._reader.value_ends)
        behind = [f"<[{first}]>"] if isinstance(first, int) else []
        return " ".join(["TEXT", *behind, *map(self._words.part, rest)])

    def _terminals(self) -> str:
        """The texts of values: up to the first end, and without what would end the block."""
        first, *rest = self._text.cut(self._reader.value_ends)
        ends = _escaped(first) if isinstance(first, str) else ""
        regexes = [f"/(?s:.*){ends}/"]
        if ends and not rest:
            regexes.append(f"~/(?s:.*){ends}(?s:.+)/")
        closer = self._text.cut(self._calls.region.closes[0])
        if all(isinstance(part, str) for part in closer):
            regexes.append(f"~/(?s:.*){_escaped(''.join(map(str, closer)))}(?s:.*)/")
        return f"TEXT: {' & '.join(regexes)}\n"

    def _opening(self, key: str, kind: str) -> str:
        """What stands before a value of a JSON type, `key` being a literal or a terminal."""
        words = self._reader.text.rstrip("\n")
        if kind != "string":
            told = f'type="{_KINDS.get(kind, kind)}"'
            words = words.replace('string="true"', 'string="false"').replace('type="string"', told)
        before, _, behind = words.partition("KEY")
        return f"{self._spaced(before)} {key} {self._spaced(behind)}"

    def _spaced(self, words: str) -> str:
        """`words` with some space or none where they have a line end."""
        return " SPACE ".join(map(self._words.spelt, words.split("\n")))


def _is_plain(schema: Any, *members: str) -> bool:
    """Whether a schema says nothing but types, and perhaps these `members`."""
    return isinstance(schema, Mapping) and schema.keys() <= _ANNOTATIONS | {"type", *members}


def _escaped(words: str) -> str:
    return re.sub(r"([\\/.*+?()\[\]{}|^$&~#-])", r"\\\1", words)
