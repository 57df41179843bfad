"""Readers of a block of tool calls: from the text between its markers to calls. Each is data: patterns and names."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from engine.text.formats.pieces import Call, MalformedCallError, Tools
from engine.text.formats.values import to_call, typed

_SPACE = re.compile(r"[\s,;]*")


class Reader(Protocol):
    """Reads what stands between the markers of a block."""

    @property
    def quotes(self) -> bool:
        """Whether a marker between double quotes belongs to a string and ends nothing."""
        ...

    def read(self, body: str, tools: Tools) -> list[Call]:
        """The calls in `body`, at least one. MalformedCallError for anything else."""
        ...


@dataclass(frozen=True)
class JsonCalls:
    """JSON objects, one after the other or in a list. The members `names`, `arguments` and `ids` are what counts.

    With `keyed` an object's only member is the call: its name and its arguments.
    """

    names: tuple[str, ...] = ("name",)
    arguments: tuple[str, ...] = ("arguments", "parameters")
    ids: tuple[str, ...] = ()
    keyed: bool = False
    quotes: bool = True

    def read(self, body: str, tools: Tools) -> list[Call]:
        try:
            return self._read(body)
        except MalformedCallError:
            pass
        for missing in ("}", "]", "}]"):  # an answer may end with the arguments of its last call
            try:
                return self._read(body + missing)
            except MalformedCallError:
                pass
        raise MalformedCallError

    def _read(self, body: str) -> list[Call]:
        return _some([self._call(each) for value in _json_values(body) for each in _listed(value)])

    def _call(self, value: Any) -> Call:
        if not isinstance(value, dict):
            raise MalformedCallError
        if self.keyed:
            if len(value) != 1:
                raise MalformedCallError
            return to_call(*next(iter(value.items())))
        inner = value.get("function")
        if isinstance(inner, dict):
            value = inner
        identity = _first(value, self.ids)
        return to_call(_first(value, self.names), _first(value, self.arguments), str(identity or ""))


@dataclass(frozen=True)
class NamedJson:
    """`head` has the groups `name` and perhaps `id`; after it stands a JSON object, and then `tail`."""

    head: re.Pattern[str]
    tail: re.Pattern[str] = _SPACE
    quotes: bool = True

    def read(self, body: str, tools: Tools) -> list[Call]:
        calls, at = [], _SPACE.match(body).end()  # type: ignore[union-attr]
        while at < len(body):
            head = self.head.match(body, at)
            if head is None:
                raise MalformedCallError
            value, end = _decode(body, head.end())
            tail = self.tail.match(body, end)
            if tail is None:
                raise MalformedCallError
            calls.append(to_call(head["name"], value, head.groupdict().get("id") or ""))
            at = _SPACE.match(body, tail.end()).end()  # type: ignore[union-attr]
        return _some(calls)


@dataclass(frozen=True)
class TaggedPairs:
    """`call` has the groups `name` and `pairs`, `pair` the groups `key`, `value` and perhaps `string`.

    `string` is "true" for text; where it is absent the tool's schema decides.
    """

    call: re.Pattern[str]
    pair: re.Pattern[str]
    quotes: bool = False

    def read(self, body: str, tools: Tools) -> list[Call]:
        return _some([self._call(found, tools) for found in _filling(self.call, body)])

    def _call(self, found: re.Match[str], tools: Tools) -> Call:
        name, arguments = found["name"], {}
        for pair in _filling(self.pair, found["pairs"]):
            kind = pair.groupdict().get("string")
            value = pair["value"]
            arguments[pair["key"]] = value if kind == "true" else typed(value, tools, name, pair["key"])
        return to_call(name, arguments)


@dataclass(frozen=True)
class PythonCalls:
    """A list of calls as Python writes them: `[f(city="Oslo", days=2)]`."""

    quotes: bool = False

    def read(self, body: str, tools: Tools) -> list[Call]:
        try:
            tree = ast.parse(_without_json_words(body.strip()), mode="eval").body
            nodes = tree.elts if isinstance(tree, ast.List | ast.Tuple) else [tree]
            return _some([self._call(node) for node in nodes])
        except (SyntaxError, ValueError, MemoryError, RecursionError):
            raise MalformedCallError from None

    def _call(self, node: ast.expr) -> Call:
        if not isinstance(node, ast.Call) or node.args:
            raise MalformedCallError
        arguments = {item.arg: ast.literal_eval(item.value) for item in node.keywords if item.arg}
        if len(arguments) != len(node.keywords):
            raise MalformedCallError
        try:
            return to_call(ast.unparse(node.func), arguments)
        except TypeError:  # a set, bytes, a complex number
            raise MalformedCallError from None


@dataclass(frozen=True)
class QuotedNotation:
    """`call:NAME{key:value,...}`: JSON whose keys are bare and whose strings stand between `quote` marks."""

    quote: str
    head: re.Pattern[str]
    quotes: bool = False

    def read(self, body: str, tools: Tools) -> list[Call]:
        head = self.head.match(body.strip())
        if head is None:
            raise MalformedCallError
        value, rest = self._value(body.strip()[head.end() :])
        if rest.strip():
            raise MalformedCallError
        return [to_call(head["name"], value)]

    def _value(self, text: str) -> tuple[Any, str]:
        """The value that `text` begins with, and what follows it."""
        text = text.lstrip()
        if text.startswith(self.quote):
            end = text.find(self.quote, len(self.quote))
            if end < 0:
                raise MalformedCallError
            return text[len(self.quote) : end], text[end + len(self.quote) :]
        if text.startswith("{"):
            return self._members(text[1:])
        if text.startswith("["):
            return self._elements(text[1:])
        value, end = _decode(text, 0)
        return value, text[end:]

    def _members(self, text: str) -> tuple[dict[str, Any], str]:
        members: dict[str, Any] = {}
        text = text.lstrip()
        while not text.startswith("}"):
            key, colon, text = text.partition(":")
            if not colon:
                raise MalformedCallError
            members[key.strip().removeprefix(self.quote).removesuffix(self.quote)], text = self._value(text)
            text = _after_comma(text, "}")
        return members, text[1:]

    def _elements(self, text: str) -> tuple[list[Any], str]:
        elements: list[Any] = []
        text = text.lstrip()
        while not text.startswith("]"):
            value, text = self._value(text)
            elements.append(value)
            text = _after_comma(text, "]")
        return elements, text[1:]


@dataclass(frozen=True)
class NestedTags:
    """Calls whose arguments are tags within tags, each after the same `mark`; the tags of a list are called `item`."""

    mark: str
    call: re.Pattern[str]
    quotes: bool = False

    def read(self, body: str, tools: Tools) -> list[Call]:
        return _some([self._call(found, tools) for found in _filling(self.call, body)])

    def _call(self, found: re.Match[str], tools: Tools) -> Call:
        name = found["name"]
        tags = self._tags(found["pairs"])
        return to_call(name, {key: self._value(text, tools, name, key) for key, text in tags})

    def _tags(self, text: str) -> list[tuple[str, str]]:
        opening = re.compile(re.escape(self.mark) + r"<([^\s<>/]+)>")
        tags, at = [], 0
        while found := opening.search(text, at):
            closing = f"{self.mark}</{found[1]}>"
            end = text.find(closing, found.end())
            if end < 0:
                raise MalformedCallError
            tags.append((found[1], text[found.end() : end]))
            at = end + len(closing)
        return tags

    def _value(self, text: str, tools: Tools, tool: str, key: str) -> Any:
        if self.mark not in text:
            return typed(text, tools, tool, key)
        tags = self._tags(text)
        if tags and all(name == "item" for name, _ in tags):
            return [self._value(inner, {}, "", "") for _, inner in tags]
        return {name: self._value(inner, {}, "", "") for name, inner in tags}


def _some(calls: list[Call]) -> list[Call]:
    if not calls:
        raise MalformedCallError
    return calls


def _decode(text: str, at: int) -> tuple[Any, int]:
    """The JSON value at `at`, and where it ends."""
    at = _SPACE.match(text, at).end()  # type: ignore[union-attr]
    try:
        return json.JSONDecoder(strict=False).raw_decode(text, at)
    except (ValueError, RecursionError):
        raise MalformedCallError from None


def _json_values(text: str) -> Iterator[Any]:
    at = _SPACE.match(text).end()  # type: ignore[union-attr]
    while at < len(text):
        value, at = _decode(text, at)
        yield value
        at = _SPACE.match(text, at).end()  # type: ignore[union-attr]


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _first(value: Mapping[str, Any], names: tuple[str, ...]) -> Any:
    return next((value[name] for name in names if name in value), None)


def _filling(pattern: re.Pattern[str], text: str) -> Iterator[re.Match[str]]:
    """The matches of a pattern, which must leave nothing but space between them."""
    at = 0
    for found in pattern.finditer(text):
        if text[at : found.start()].strip():
            raise MalformedCallError
        at = found.end()
        yield found
    if text[at:].strip():
        raise MalformedCallError


def _after_comma(text: str, closing: str) -> str:
    text = text.lstrip()
    if text.startswith(","):
        return text[1:].lstrip()
    if not text.startswith(closing):
        raise MalformedCallError
    return text


_STRING_OR_WORD = re.compile(r"""("(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*')|\b(true|false|null)\b""", re.DOTALL)
_PYTHON_WORDS = {"true": "True", "false": "False", "null": "None"}


def _without_json_words(text: str) -> str:
    """Python whose `true`, `false` and `null`, outside strings, are spelt as Python does, and whose strings end."""
    whole = _STRING_OR_WORD.sub(lambda found: found[1] or _PYTHON_WORDS[found[2]], text)
    return _STRING_OR_WORD.sub(lambda found: (found[1] or found[0]).replace("\n", "\\n"), whole)
