"""Reads an answer, piece by piece, into text, reasoning and tool calls.

What comes out, neighbours of a kind joined, does not depend on how the answer was cut. A block that turns out not to
hold calls is text.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

from engine.text.formats.block import Block
from engine.text.formats.pieces import Piece, Said, Thought, Tools
from engine.text.formats.readers import Recipient
from engine.text.formats.record import NAME, AnswerFormat
from engine.text.formats.scanning import Finder

_BARE_BEGINS = "{"


class Part(Enum):
    """Where in an answer a parser is."""

    SAID = "said"
    THOUGHT = "thought"
    CALLS = "calls"
    BETWEEN = "between"  # outside of everything, in formats that mark their text too
    BARE = "bare"  # in what may be a call without markers


class AnswerParser:
    """One answer. `part` is where its prompt ends; tools that are None mean that calls are text."""

    def __init__(self, form: AnswerFormat, tools: Tools | None, part: Part = Part.SAID) -> None:
        self._form = form
        self._tools = tools
        self._held = ""
        self._space = ""  # dropped before and after a marked part, text like any other elsewhere
        self._trimming = part is not Part.SAID
        self._said = False
        self._passed = ""  # what stood outside of everything
        self._block = Block("", Recipient(""), {})
        self._pieces: list[Piece] = []
        self._steps: dict[Part, Callable[[bool], bool]] = {
            Part.SAID: self._read_said,
            Part.THOUGHT: self._read_thought,
            Part.CALLS: self._read_calls,
            Part.BETWEEN: self._read_header if form.channels else self._read_between,
            Part.BARE: self._read_calls,
        }
        self._enter(part)

    @property
    def thinking(self) -> bool:
        """Whether what comes next is reasoning, as far as is known."""
        return self._part is Part.THOUGHT

    def push(self, text: str) -> list[Piece]:
        """What `text` makes certain."""
        self._held += text
        return self._advance(final=False)

    def finish(self) -> list[Piece]:
        """The rest, when nothing follows."""
        pieces = self._advance(final=True)
        if not self._said and self._passed.strip():  # an answer without any marker is an answer all the same
            pieces.append(Said(self._passed.strip()))
        return pieces

    # --- the parts

    def _advance(self, final: bool) -> list[Piece]:
        while self._steps[self._part](final):
            pass
        pieces, self._pieces = self._pieces, []
        return pieces

    def _enter(self, part: Part) -> None:
        self._part = part
        self._finder = Finder(*self._markers(part))

    def _markers(self, part: Part) -> tuple[tuple[str, ...], bool]:
        """What ends or interrupts a part, and whether quotes protect."""
        channels, calls = self._form.channels, self._form.calls
        if part is Part.BARE:
            return (), False
        if channels is not None:
            ends = (channels.opens, *channels.closes)
            return ((channels.message,), False) if part is Part.BETWEEN else (ends, part is Part.CALLS)
        thought = self._form.thought
        opens_calls = calls.region.opens if calls is not None and self._tools is not None else ()
        match part:
            case Part.THOUGHT:
                assert thought is not None
                return thought.region.closes, False
            case Part.CALLS:
                assert calls is not None
                again = () if calls.region.closes else calls.region.opens
                return (*calls.region.closes, *again), calls.reader.quotes
            case Part.BETWEEN:
                assert thought is not None
                assert thought.text is not None
                return (*thought.region.opens, *thought.text.opens, *opens_calls), False
        opens_thought = thought.region.opens if thought is not None and not self._said else ()
        closes_text = thought.text.closes if thought is not None and thought.text is not None else ()
        return (*opens_thought, *opens_calls, *closes_text), False

    def _read_said(self, final: bool) -> bool:
        """Text up to the next marker."""
        if self._may_be_bare() and not self._said and self._held.lstrip()[:1] == _BARE_BEGINS:
            self._enter_calls("", Part.BARE)
            return True
        found = self._finder.find(self._held, final)
        if found is None:
            certain = len(self._held) if final else self._finder.certain(self._held)
            before = self._said
            self._say(self._take(certain))
            if final:
                self._flush()
            if self._said != before:
                self._enter(Part.SAID)  # reasoning opens at the beginning alone
            return False
        before = self._said
        self._say(self._take(found.start()))
        if self._said != before and self._opens_thought(found[0]):
            self._enter(Part.SAID)
            return True
        self._take(len(found[0]))
        self._open(found[0])
        return True

    def _read_thought(self, final: bool) -> bool:
        found = self._finder.find(self._held, final)
        if found is None:
            self._think(self._take(len(self._held) if final else self._finder.certain(self._held)))
            if final:
                self._space = ""
            return False
        self._think(self._take(found.start()))
        self._take(len(found[0]))
        self._leave()
        return True

    def _read_calls(self, final: bool) -> bool:
        """A block of calls, up to the marker that ends it."""
        found = self._finder.find(self._held, final)
        certain = len(self._held) if final else self._finder.certain(self._held)
        body = self._take(certain if found is None else found.start())
        for piece in self._block.push(body, final or found is not None):
            if isinstance(piece, Said):
                self._trimming = self._trimming and self._block.told
                self._say(piece.text)
            else:
                self._space = ""
                self._said = self._trimming = True
                self._pieces.append(piece)
        if found is None:
            return False
        closer = self._take(len(found[0]))
        if not self._block.told:
            self._say(closer)
        calls = self._form.calls
        if calls is not None and not calls.region.closes:
            self._enter_calls(closer)
        else:
            trimming = self._trimming
            self._leave()
            self._trimming = trimming
        return True

    def _read_between(self, final: bool) -> bool:
        found = self._finder.find(self._held, final)
        if found is None:
            self._passed += self._take(len(self._held) if final else self._finder.certain(self._held))
            return False
        self._passed += self._take(found.start())
        self._take(len(found[0]))
        self._open(found[0])
        return True

    def _read_header(self, final: bool) -> bool:
        """What comes next, by the header of its message."""
        channels = self._form.channels
        assert channels is not None
        found = self._finder.find(self._held, final)
        if found is None:
            if final:
                self._passed += self._take(len(self._held))
            return False
        header = self._take(found.start())
        self._take(len(found[0]))
        self._trimming = False
        recipient = channels.recipient.search(header)
        if recipient is not None and self._tools is not None:
            self._block = Block(header + found[0], Recipient(recipient[1]), self._tools)
            self._enter(Part.CALLS)
        else:
            self._enter(Part.THOUGHT if channels.thought in header else Part.SAID)
        return True

    # --- what is made of them

    def _open(self, marker: str) -> None:
        """Begin the part that a marker opens, or leave the text that it closes."""
        thought, calls = self._form.thought, self._form.calls
        self._trimming = True
        if calls is not None and marker in calls.region.opens:
            self._enter_calls(marker)
        elif self._opens_thought(marker):
            self._space = ""
            self._enter(Part.THOUGHT)
        elif thought is not None and thought.text is not None and marker in thought.text.opens:
            self._space = ""
            self._trimming = False
            self._enter(Part.SAID)
        else:
            self._leave()

    def _enter_calls(self, opener: str, part: Part = Part.CALLS) -> None:
        """Begin a block of calls."""
        calls, tools = self._form.calls, self._tools or {}
        assert calls is not None
        self._block = Block(opener, calls.reader, tools, known_only=part is Part.BARE)
        self._enter(part)

    def _leave(self) -> None:
        """Go on after a part that a marker has closed."""
        marked = self._form.channels is not None or (self._form.thought is not None and self._form.thought.text)
        if self._part is Part.THOUGHT:
            self._space = ""
        if marked:
            self._flush()
        self._trimming = True
        self._enter(Part.BETWEEN if marked else Part.SAID)

    def _opens_thought(self, marker: str) -> bool:
        return self._form.thought is not None and marker in self._form.thought.region.opens

    def _may_be_bare(self) -> bool:
        return self._form.calls is not None and self._form.calls.bare and bool(self._tools)

    def _take(self, count: int) -> str:
        """The first `count` characters that were held."""
        taken, self._held = self._held[:count], self._held[count:]
        self._finder.forget(count)
        return taken

    def _say(self, text: str) -> None:
        self._grow(text, Said)

    def _think(self, text: str) -> None:
        self._grow(text, Thought)

    def _grow(self, text: str, kind: type[Said] | type[Thought]) -> None:
        """Text whose last space is held back where another part may begin: there it is dropped."""
        text = self._space + text
        if self._trimming:
            text = text.lstrip()
        visible = text.rstrip() if kind is Thought or not self._is_last() else text
        self._space = text[len(visible) :]
        if visible:
            self._trimming = False
            self._said = self._said or kind is Said
            self._pieces.append(kind(visible))

    def _is_last(self) -> bool:
        """Whether no other part can follow the text of the answer."""
        calls = self._tools is not None and self._form.calls is not None
        marked = self._form.channels is not None or (self._form.thought is not None and self._form.thought.text)
        begun = self._said or self._form.thought is None
        return begun and not calls and not marked

    def _flush(self) -> None:
        """The space that was held back, after all."""
        if self._space and not self._trimming:
            self._pieces.append(Said(self._space))
        self._space = ""


def part_after(form: AnswerFormat, prompt: str) -> Part:
    """The part of an answer in which a rendered prompt ends."""
    if form.channels is not None:
        return Part.BETWEEN
    thought = form.thought
    if thought is None:
        return Part.SAID
    tail = prompt.rstrip()
    if tail.endswith(thought.region.opens):
        return Part.THOUGHT
    if thought.text is None or tail.endswith(thought.text.opens):
        return Part.SAID
    return Part.BETWEEN


def forced_beginning(form: AnswerFormat, tool: str = "") -> str:
    """How an answer begins that calls `tool`, or any tool; "" where the format has no calls."""
    source = form.channels or form.calls
    if source is None:
        return ""
    return source.forced.replace(NAME, tool) if tool else source.forced.partition(NAME)[0]
