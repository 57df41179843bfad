"""Readers of a block of tool calls: from the text between its markers to calls. Each is data: patterns and names."""

from __future__ import annotations

import ast
import re
from collections.abc import Set
from dataclasses import dataclass
from itertools import chain
from typing import Any, Protocol

from engine.text.formats.json_text import arguments, call, key, string, until, value, whole_value
from engine.text.formats.pieces import Call, CallBegun, CallGrown, MalformedCallError, Tools
from engine.text.formats.source import Parts, Source, Steps, Waiting
from engine.text.formats.values import may_be_other, to_call, typed, types_allowed, written


class Reader(Protocol):
    """Reads what stands between the markers of a block."""

    @property
    def quotes(self) -> bool:
        """Whether a marker between double quotes belongs to a string and ends nothing."""
        ...

    def read(self, source: Source, tools: Tools) -> Steps[None]:
        """Tell the calls in a block as they come, at least one. MalformedCallError where something else stands."""
        ...


@dataclass(frozen=True)
class JsonCalls:
    """JSON objects, one after the other or in a list. The members `names`, `arguments` and `ids` are what counts.

    With `keyed` a member is a call: its name and its arguments. A call is told when its arguments begin, if its name
    has come before, else with the end of the object. An id that comes later is not read.
    """

    names: tuple[str, ...] = ("name",)
    arguments: tuple[str, ...] = ("arguments", "parameters")
    ids: tuple[str, ...] = ()
    keyed: bool = False
    quotes: bool = True

    def read(self, source: Source, tools: Tools) -> Steps[None]:
        while (yield from source.between("[", "]", "}")):
            if (yield from source.char()) != "{":
                raise MalformedCallError
            source.at += 1
            yield from self._object(source)

    def _object(self, source: Source, inner: bool = False) -> Steps[None]:
        """A call, from behind its brace to the one that ends it; perhaps it stands in a member `function`."""
        name, identity, held, told = None, "", None, False
        while (yield from _another(source)):
            member = yield from key(source)
            if self.keyed:
                yield from arguments(source, member)
                told = True
            elif member == "function" and not (inner or told) and (yield from source.char()) == "{":
                source.at += 1
                yield from self._object(source, inner=True)
                told = True
            elif member in self.arguments and isinstance(name, str) and not told:
                yield from arguments(source, name, identity)
                told = True
            else:
                other = yield from whole_value(source)
                if member in self.names and name is None:
                    name = other
                elif member in self.arguments and held is None:
                    held = other
                elif member in self.ids:
                    identity = str(other or "")
        if not told:
            yield from call(to_call(name, held, identity))


@dataclass(frozen=True)
class NamedJson:
    """`head` has the groups `name` and perhaps `id`; behind it stand a JSON object and perhaps words of `tail`.

    Behind `identity`, if a format has that, an id may stand behind the name.
    """

    head: re.Pattern[str]
    tail: tuple[str, ...] = ()
    identity: str = ""
    quotes: bool = True

    def read(self, source: Source, tools: Tools) -> Steps[None]:
        while (yield from source.between(*self.tail)):
            head = yield from source.head(self.head)
            yield from arguments(source, head["name"], head.groupdict().get("id") or "")


@dataclass(frozen=True)
class Recipient:
    """The arguments of one call, whose name stands before them; nothing stands for none."""

    name: str
    quotes: bool = True

    def read(self, source: Source, tools: Tools) -> Steps[None]:
        if not (yield from source.between()):
            yield from call(to_call(self.name, None))
            return
        yield from arguments(source, self.name)
        if (yield from source.between()):
            raise MalformedCallError


@dataclass(frozen=True)
class TaggedPairs:
    """Calls whose arguments are pairs of a key and a value between tags.

    `call` matches what begins a call and has the group `name`, `pair` what stands before a value and has the groups
    `key` and perhaps `string`: "true" for text, "false" for none; else the tool's schema decides. `call_begins` and
    `pair_begins` are the first words of both. `ends` ends a call, "" if the block does, and `value_ends` a value, in it
    KEY for its key. Both may also stand in a value: it is over where `value_ends` is followed by the next pair, or by
    the end of the call and that by the next call or the end of the block. With `lines` a value stands between line
    ends. `text` stands before a value that is text, in it KEY for its key. With `mark` a value that holds it is tags
    within tags, those of a list called `item`.
    """

    call: re.Pattern[str]
    call_begins: str
    ends: str
    pair: re.Pattern[str]
    pair_begins: str
    value_ends: str
    text: str
    lines: bool = False
    mark: str = ""
    quotes: bool = False

    @property
    def _edges(self) -> tuple[str, ...]:
        return (self.ends, self.pair_begins) if self.ends else (self.pair_begins,)

    def read(self, source: Source, tools: Tools) -> Steps[None]:
        while (yield from source.between()):
            name = (yield from source.head(self.call))["name"]
            yield from self._next(source)
            yield CallBegun(name)
            yield CallGrown("{")
            source.unclosed.append("}")
            yield from self._pairs(source, tools, name)
            yield CallGrown(source.unclosed.pop())

    def around(self, key: str) -> tuple[str, str]:
        """The words between which a text is the value of `key`."""
        return self.text.replace("KEY", key), "\n" * self.lines + self.value_ends.replace("KEY", key)

    def _pairs(self, source: Source, tools: Tools, name: str) -> Steps[None]:
        before = ""
        while True:
            word, offset = yield from self._next(source)
            if word == self.ends:
                source.at += offset
                return
            pair = yield from source.head(self.pair)
            text = self._text(source, self.value_ends.replace("KEY", pair["key"]))
            types = types_allowed(tools, name, pair["key"])
            marked = pair.groupdict().get("string")
            if marked == "true":
                types = {"string"}
            elif marked == "false" and types != {"string"}:
                types = types - {"string"}
            before += written(pair["key"]) + ": "
            if types == {"string"}:
                yield from string(text, source.unclosed, before)
            else:
                yield from self._tell(source, text, types, before)
            before = ", "

    def _tell(self, source: Source, text: Parts, types: Set[str], before: str) -> Steps[None]:
        """Tell a value when it is whole, or as it comes from where it can be nothing but text."""
        begun = ""
        for part in text:
            if part is None:
                yield None
                continue
            begun += part
            if "string" in types and not self.mark and not may_be_other(begun, types):
                yield from string(chain((begun,), text), source.unclosed, before)
                return
        yield CallGrown(before + written(self._typed(begun, types)))

    def _next(self, source: Source) -> Waiting[tuple[str, int]]:
        """What follows, the end of the call or the beginning of a pair, and the offset behind it."""
        word, offset = yield from source.sees(0, *self._edges)
        if word is None:
            raise MalformedCallError
        if not word and self.ends:
            yield from source.more()
        return word, offset

    def _text(self, source: Source, ends: str) -> Parts:
        """A value up to its end, which is taken too."""
        words = (f"\n{ends}", ends) if self.lines else (ends,)
        while True:
            yield from until(source, words)
            size = len(ends) + source.text.startswith("\n", source.at) if self.lines else len(ends)
            if (yield from self._over(source, size)):
                source.at += size
                return
            part = source.text[source.at : source.at + size]
            source.at += size
            yield part

    def _over(self, source: Source, offset: int) -> Waiting[bool]:
        """Whether a value can be over behind `offset`."""
        word, offset = yield from source.sees(offset, *self._edges)
        if word and word == self.ends:
            word, _ = yield from source.sees(offset, self.call_begins)
        return word is not None

    def _typed(self, text: str, types: Set[str]) -> Any:
        if not self.mark or self.mark not in text:
            return typed(text, types)
        tags = self._tags(text)
        if tags and all(tag == "item" for tag, _ in tags):
            return [self._typed(inner, frozenset()) for _, inner in tags]
        return {tag: self._typed(inner, frozenset()) for tag, inner in tags}

    def _tags(self, text: str) -> list[tuple[str, str]]:
        tags, at = [], 0
        while found := self.pair.search(text, at):
            closing = self.value_ends.replace("KEY", found["key"])
            end = text.find(closing, found.end())
            if end < 0:
                raise MalformedCallError
            tags.append((found["key"], text[found.end() : end]))
            at = end + len(closing)
        return tags


@dataclass(frozen=True)
class PythonCalls:
    """A list of calls as Python writes them: `[f(city="Oslo", days=2)]`. They are read when all of it is there."""

    quotes: bool = False

    def read(self, source: Source, tools: Tools) -> Steps[None]:
        body = yield from source.rest()
        try:
            tree = ast.parse(_without_json_words(body.strip()), mode="eval").body
            nodes = tree.elts if isinstance(tree, ast.List | ast.Tuple) else [tree]
            calls = [self._call(node) for node in nodes]
        except (SyntaxError, ValueError, MemoryError, RecursionError):
            raise MalformedCallError from None
        for each in calls:
            yield from call(each)

    def _call(self, node: ast.expr) -> Call:
        if not isinstance(node, ast.Call) or node.args:
            raise MalformedCallError
        found = {item.arg: ast.literal_eval(item.value) for item in node.keywords if item.arg}
        if len(found) != len(node.keywords):
            raise MalformedCallError
        return to_call(ast.unparse(node.func), found)


@dataclass(frozen=True)
class QuotedNotation:
    """`call:NAME{key:value,...}`: JSON whose keys are bare and whose strings stand between `quote` marks."""

    quote: str
    head: re.Pattern[str]
    quotes: bool = False

    def read(self, source: Source, tools: Tools) -> Steps[None]:
        while (yield from source.between()):
            name = (yield from source.head(self.head))["name"]
            if (yield from source.char()) != "{":
                raise MalformedCallError
            yield CallBegun(name)
            yield from value(source, source.unclosed, self.quote)


def _another(source: Source) -> Waiting[bool]:
    """Whether another member of an object follows; its end is taken."""
    while True:
        char = yield from source.char()
        if char not in ",}":
            return True
        source.at += 1
        if char == "}":
            return False


_STRING_OR_WORD = re.compile(r"""("(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*')|\b(true|false|null)\b""", re.DOTALL)
_PYTHON_WORDS = {"true": "True", "false": "False", "null": "None"}


def _without_json_words(text: str) -> str:
    """Python whose `true`, `false` and `null`, outside strings, are spelt as Python does, and whose strings end."""
    whole = _STRING_OR_WORD.sub(lambda found: found[1] or _PYTHON_WORDS[found[2]], text)
    return _STRING_OR_WORD.sub(lambda found: (found[1] or found[0]).replace("\n", "\\n"), whole)
