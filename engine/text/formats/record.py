"""What a format is. Data only: known.py has those that are known."""

from __future__ import annotations

import re
from dataclasses import dataclass

from engine.text.formats.readers import Reader

NAME = "NAME"  # stands for a tool's name in `CallFormat.forced`


@dataclass(frozen=True)
class Region:
    """A part of an answer between markers. Without `closes` it ends with the answer, or where it opens again."""

    opens: tuple[str, ...]
    closes: tuple[str, ...] = ()


@dataclass(frozen=True)
class ThoughtFormat:
    """Reasoning. A template has this format if it holds all `signs`.

    With `text` given, what lies outside both regions is neither reasoning nor text.
    """

    signs: tuple[str, ...]
    region: Region
    text: Region | None = None


@dataclass(frozen=True)
class CallFormat:
    """Blocks of tool calls. A template has this format if it holds all `signs`.

    `forced` is how an answer begins that calls a tool: with NAME for a certain one, up to there for any; a digit in it
    stands for any number, several for any id. With `bare` an answer that is nothing but what `reader` reads is a call
    without markers. `ids` is how the template wants ids: "" any, or a number of letters and digits.
    """

    name: str
    signs: tuple[str, ...]
    region: Region
    reader: Reader
    forced: str
    bare: bool = False
    ids: str = ""
    inner: tuple[str, ...] = ()


@dataclass(frozen=True)
class Channels:
    """Messages with a header each, which says what they are: reasoning, a call, or text.

    A header ends with `message`, and a message with one of `closes`, or where the next one `opens`. A header that names
    a `recipient` is of a call of it; one that holds the word `thought` is of reasoning. `text` is the end of the header
    of a message that is the answer, `turn` what stands before it, and `channel` what a header says first.
    """

    signs: tuple[str, ...]
    opens: str
    message: str
    closes: tuple[str, ...]
    recipient: re.Pattern[str]
    thought: str
    text: str
    turn: str
    channel: str
    forced: str
    inner: tuple[str, ...] = ()


@dataclass(frozen=True)
class AnswerFormat:
    """How the answers of one template are read; what is None does not occur in them."""

    thought: ThoughtFormat | None = None
    calls: CallFormat | None = None
    channels: Channels | None = None

    @property
    def id_style(self) -> str:
        """How the template wants the ids of calls."""
        return "" if self.calls is None else self.calls.ids

    @property
    def markers(self) -> frozenset[str]:
        """All that separates the parts of an answer: a decoder must not leave these out, special tokens or not."""
        found: set[str] = set()
        if self.channels is not None:
            found |= {*self.channels.inner, self.channels.opens, self.channels.message, *self.channels.closes}
        regions = [] if self.thought is None else [self.thought.region, self.thought.text]
        regions += [] if self.calls is None else [self.calls.region]
        for region in regions:
            found |= {*region.opens, *region.closes} if region is not None else set()
        if self.calls is not None:
            found |= set(self.calls.inner)
        return frozenset(found)
