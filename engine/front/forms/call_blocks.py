"""Grammars of blocks of calls, as the formats write them whose arguments are JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass

from engine.text.formats.readers import JsonCalls, NamedJson
from engine.text.formats.record import NAME, AnswerFormat, CallFormat, Channels
from engine.text.text import Text

SHARED = r"""
object: "{" SPACE (member (SPACE "," SPACE member)*)? SPACE "}"
member: STRING SPACE ":" SPACE value
value: object | list | STRING | NUMBER | "true" | "false" | "null"
list: "[" SPACE (value (SPACE "," SPACE value)*)? SPACE "]"
STRING: /"([^"\\]|\\(["\\\/bfnrt]|u[0-9a-fA-F]{4}))*"/
NUMBER: /-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?/
SPACE: /[ \t\r\n]{0,99}/
COUNT: /[0-9]{1,6}/
ID: /[a-zA-Z0-9_-]{1,64}/
"""
_OTHER = r'other: /"(tool_call_)?id"/ SPACE ":" SPACE "\"" ID "\""' + "\n"
_RECIPIENT = " to=functions"


@dataclass(frozen=True)
class CallBlock:
    """What follows the `marker` of a block: `rules` of a grammar that lacks those of the arguments of each tool,
    `arguments0` and so on, and has one of any `object`.
    """

    marker: str
    rules: str


def call_block(text: Text, form: AnswerFormat, names: Sequence[str], several: bool) -> CallBlock | None:
    """The block of calls of the tools `names`; None where a format is not held to grammars.

    Without `several` it ends with the arguments of the first: nothing that follows would change what is called.
    """
    words = Words(text)
    if form.channels is not None:
        return words.message(form.channels, names)
    match form.calls:
        case CallFormat(reader=JsonCalls() as reader):
            return words.json_block(form.calls, reader, names, several)
        case CallFormat(reader=NamedJson() as reader):
            return words.named_block(form.calls, reader, names, several)
    return None


class Words:
    """Writes the words of a format as a model's tokens spell them."""

    def __init__(self, text: Text) -> None:
        self._text = text

    def json_block(self, calls: CallFormat, reader: JsonCalls, names: Sequence[str], several: bool) -> CallBlock:
        """Objects, one after the other or in a list."""
        keys = " | ".join(json.dumps(json.dumps(key)) for key in reader.arguments)
        pairs = [json.dumps(json.dumps(name, ensure_ascii=False)) for name in names]
        before, behind = "", ""
        if not reader.keyed:
            before, behind = '(other SPACE "," SPACE)?', '("," SPACE other SPACE)?'
            called = json.dumps(json.dumps(reader.names[0]))
            pairs = [f'{called} SPACE ":" SPACE {name} SPACE "," SPACE ({keys})' for name in pairs]
        closing = f'SPACE {behind} "}}"' if several else ""
        rules = [
            f'call: "{{" SPACE {before} pair {closing}\n',
            _choice("pair", [f'{pair} SPACE ":" SPACE' for pair in pairs]),
            _OTHER,
        ]
        if several:
            rules.append(f"start: SPACE block{self.end(calls)}\n")
            rules.append('block: call (SPACE call)* | "[" SPACE call SPACE ("," SPACE call SPACE)* "]"\n')
        else:
            rules.append('start: SPACE ("[" SPACE)? call\n')
        return CallBlock(calls.region.opens[0], "".join([*rules, SHARED]))

    def named_block(self, calls: CallFormat, reader: NamedJson, names: Sequence[str], several: bool) -> CallBlock:
        """Arguments, each behind the name of a tool."""
        marker = calls.region.opens[0]
        before, _, after = calls.forced.removeprefix(marker).partition(NAME)
        identity = f"({self.spelt(reader.identity)} ID)? " if reader.identity else ""
        more = " (SPACE call)*" if before else ""
        tails = "".join(f" SPACE {self.spelt(tail)}" for tail in reader.tail)
        rules = [
            f"start: SPACE call{more}{self.end(calls)}\n" if several else "start: SPACE call\n",
            f"call: {self.spelt(before)} named{tails if several else ''}\n",
            _choice("named", [f"{json.dumps(name)} {identity}{self.spelt(after)}" for name in names]),
        ]
        return CallBlock(marker, "".join([*rules, SHARED]))

    def message(self, channels: Channels, names: Sequence[str]) -> CallBlock:
        """A message whose header names its recipient, before or behind its channel."""
        channel, _, header = channels.forced.partition(_RECIPIENT)
        kind = header.partition(NAME)[2].strip()
        kinds = " | ".join(map(self.spelt, (kind, kind.removeprefix(channels.inner[1]), channels.message)))
        rules = [
            'start: "." named\n',
            _choice("named", [f"{json.dumps(name)} header" for name in names]),
            f"header: ({self.spelt(channel)})? SPACE ({kinds})\n",
        ]
        return CallBlock(_RECIPIENT.strip(), "".join([*rules, SHARED]))

    def spelt(self, words: str) -> str:
        """A sequence of literals and special tokens. A digit stands for a number, several for an id."""
        return " ".join(map(self.part, self._text.cut(words)))

    def part(self, part: str | int) -> str:
        """One part of such a sequence: words without special tokens, or the id of one."""
        if isinstance(part, int):
            return f"<[{part}]>"
        return " ".join(_literal(piece) for piece in re.split("([0-9]+)", part) if piece)

    def end(self, calls: CallFormat) -> str:
        """The end of a block, unless the answer itself ends there."""
        if not calls.region.closes or set(self._text.cut(calls.region.closes[0])) & self._text.eos_ids:
            return ""
        return f" SPACE {self.spelt(calls.region.closes[0])}"


def _literal(words: str) -> str:
    if words.isdecimal():
        return "COUNT" if len(words) == 1 else "ID"
    return json.dumps(words)


def _choice(rule: str, beginnings: Sequence[str]) -> str:
    """A rule that is any of some beginnings, each with the arguments of its tool behind it."""
    places = range(len(beginnings))
    each = [f"{rule}{i}: {beginnings[i]} arguments{i}\n" for i in places]
    return "".join([f"{rule}: {' | '.join(f'{rule}{i}' for i in places)}\n", *each])
