"""JSON told while it arrives, spelt as `json.dumps` spells it. At any moment `Source.unclosed` makes a whole of it."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from typing import Any

from engine.text.formats.pieces import Call, CallBegun, CallGrown, MalformedCallError
from engine.text.formats.scanning import Beginnings
from engine.text.formats.source import Parts, Source, Steps, Waiting, whole
from engine.text.formats.values import read_json, to_call, written

_DEEPEST = 200
_LONGEST_WORD = 4300  # digits that Python makes a number of
_CLOSERS = {"{": "}", "[": "]"}
_WORD = re.compile(r"[-+.\w]*")
_PLAIN = re.compile(r'(?:[^"\\]+|\\["\\/bfnrt])*')
_UNICODE = re.compile(r"\\u(?:[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|[0-9a-fA-F]{4})")
_LONGEST_ESCAPE = len(r"\ud83d\ude00")
_BARE_KEY = re.compile(r"[^:]*:")


def arguments(source: Source, name: str, identity: str = "") -> Steps[None]:
    """Tell a call whose arguments stand here: an object, JSON text of one, or null. MalformedCallError for others."""
    char = yield from source.char()
    if char == "{" and name:
        yield CallBegun(name, identity)
        yield from value(source, source.unclosed)
    else:
        yield from call(to_call(name, (yield from whole_value(source)), identity))


def call(read: Call) -> Iterator[CallBegun | CallGrown]:
    """Tell a call that is whole."""
    yield CallBegun(read.name, read.id)
    yield CallGrown(read.arguments)


def whole_value(source: Source) -> Steps[Any]:
    """The value that stands here, when it is whole."""
    told: list[str] = []
    for step in value(source, []):
        if step is None:
            yield None
        elif isinstance(step, CallGrown):
            told.append(step.arguments)
    return read_json("".join(told))


def value(source: Source, unclosed: list[str], quote: str = "") -> Steps[None]:
    """Tell the value that stands here, as it comes. `unclosed` holds at any moment what would close it.

    Keys come with the value behind them, numbers and words when they are whole, strings as they grow. Where strings
    stand between marks `quote`, they are spelt without escapes, and keys are bare. A comma may end a list or an object.
    """
    before, complete = "", False  # what is due before the next value, and whether there is one already
    while True:
        char = yield from source.char()
        if unclosed and char == unclosed[-1]:
            source.at += 1
            yield CallGrown(unclosed.pop())
            complete = True
        elif complete:
            if char != ",":
                raise MalformedCallError
            source.at += 1
            before, complete = ", ", False
        else:
            if unclosed and unclosed[-1] == "}":
                before += written((yield from key(source, quote))) + ": "
                char = yield from source.char()
            complete = yield from _begin(source, unclosed, before, char, quote)
            before = ""
        if not unclosed:
            return


def key(source: Source, quote: str = "") -> Waiting[str]:
    """The key that stands here, with its colon."""
    if quote:
        found = yield from source.head(_BARE_KEY)
        return found[0][:-1].strip().removeprefix(quote).removesuffix(quote)
    if (yield from source.char()) != '"':
        raise MalformedCallError
    source.at += 1
    found_key = yield from whole(_string(source))
    if (yield from source.char()) != ":":
        raise MalformedCallError
    source.at += 1
    return found_key


def string(parts: Iterator[str | None], unclosed: list[str], before: str = "") -> Steps[None]:
    """Tell a string of `parts` as they come."""
    yield CallGrown(before + '"')
    unclosed.append('"')
    for part in parts:
        yield None if part is None else CallGrown(written(part)[1:-1])
    yield CallGrown(unclosed.pop())


def until(source: Source, words: tuple[str, ...]) -> Parts:
    """The text up to the first of `words`, which is not taken."""
    beginnings = Beginnings(words)
    pattern = re.compile("|".join(map(re.escape, words)))
    while True:
        found = pattern.search(source.text, source.at)
        end = source.at + beginnings.certain(source.text[source.at :]) if found is None else found.start()
        part, source.at = source.text[source.at : end], end
        if part:
            yield part
        if found is not None:
            return
        yield from source.more()


def _begin(source: Source, unclosed: list[str], before: str, char: str, quote: str) -> Steps[bool]:
    """Tell a value, or the beginning of one that holds others; whether it is whole."""
    if char in _CLOSERS:
        if len(unclosed) == _DEEPEST:
            raise MalformedCallError
        source.at += 1
        yield CallGrown(before + char)
        unclosed.append(_CLOSERS[char])
        return False
    if quote and (yield from source.sees(0, quote))[0]:
        source.at += len(quote)
        yield from string(until(source, (quote,)), unclosed, before)
        source.at += len(quote)
    elif char == '"':
        source.at += 1
        yield from string(_string(source), unclosed, before)
    else:
        yield CallGrown(before + (yield from _word(source)))
    return True


def _word(source: Source) -> Waiting[str]:
    """A number, true, false or null. What no JSON can hold is null."""
    while True:
        found = _WORD.match(source.text, source.at)
        assert found is not None
        if found.end() - source.at > _LONGEST_WORD:
            raise MalformedCallError
        if found.end() < len(source.text):
            break
        yield from source.more()
    read = read_json(found[0])
    source.at = found.end()
    return "null" if isinstance(read, float) and not math.isfinite(read) else written(read)


def _string(source: Source) -> Parts:
    """What a JSON string holds, its end taken too. A backslash that escapes nothing stands for itself."""
    while True:
        found = _PLAIN.match(source.text, source.at)
        assert found is not None
        if found[0]:
            source.at = found.end()
            yield json.loads(f'"{found[0]}"', strict=False)
        rest = source.text[source.at : source.at + _LONGEST_ESCAPE]
        if rest[:1] == '"':
            source.at += 1
            return
        if len(rest) < 2 or (rest[1] == "u" and len(rest) < _LONGEST_ESCAPE and not source.final):
            yield from source.more()
            continue
        escape = _UNICODE.match(rest)
        end = 1 if escape is None else escape.end()
        source.at += end
        yield "\\" if escape is None else json.loads(f'"{escape[0]}"')
