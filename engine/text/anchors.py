"""Where a later prompt is likely to part from this one: the edges of turns, thinking, tool calls and tool results.

Clients edit conversations at such edges: thinking is cut out of earlier answers, old tool results are replaced, turns
are dropped. What is kept of a computed prompt up to an edge serves the edited one too.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence

from engine.memory.retention import Anchor

# Words in the names of control tokens that close something, beside those that begin with `end`: end of sequence, turn,
# message, and the two by which harmony ends an answer.
_CLOSING_NAME = re.compile(r"\bend|\beo[a-z]\b|^\W*(?:call|return)\W*$")
_MARKUP = re.compile(r"<[/|]?[A-Za-z][\w:. -]{0,40}\|?>|\[/?[A-Z][A-Z_]{2,40}\]|<</?SYS>>|#{2,4} [A-Z][a-z]{3,20}:")
# What clients cut out or replace; other markup of a template (`<parameter>`, `<city>`) is no place to cut at.
_SUBJECTS = frozenset({
    "think", "thinking", "thought", "thoughts", "reason", "reasoning", "analysis", "tool", "tools", "toolcall", "call",
    "calls", "response", "responses", "result", "results", "output", "outputs", "observation", "observations", "inst",
    "instruction", "input", "sys", "system", "user", "human", "assistant", "bot", "model", "turn",
})  # fmt: skip


def closes(token: str) -> bool:
    """Whether a control token or a marker closes what another opened, by its spelling: `</think>`, `<|im_end|>`."""
    words = re.sub(r"[_\u2581]", " ", token.lower())
    return token[1:2] == "/" or bool(_CLOSING_NAME.search(words))


def plain_markers(literals: Iterable[str], control: Iterable[str]) -> frozenset[str]:
    """The markers that a template writes as ordinary text, among its `literals`; `control` tokens are none."""
    found = {marker for literal in literals for marker in _MARKUP.findall(literal)}
    return frozenset(marker for marker in found.difference(control) if has_subject(marker))


def has_subject(marker: str) -> bool:
    """Whether a token or a marker is called after thinking, tools, roles or turns."""
    return not _SUBJECTS.isdisjoint(re.findall(r"[a-z]+", marker.lower()))


def edges(markers: Iterable[tuple[int, str]]) -> Iterator[Anchor]:
    """The edges of tokens or markers of length 1 each, given by index and spelling."""
    for index, spelling in markers:
        closing = closes(spelling)
        yield index + closing, not closing


def among_tokens(places: Iterable[Anchor], spans: Sequence[tuple[int, int]]) -> Iterator[Anchor]:
    """Edges at characters of a text as edges between its tokens, whose first and past-the-last characters are `spans`.

    A token that lies across an edge comes after it where something opens, because it may be another one in a prompt
    that parts there; where something closes it comes before.
    """
    starts, ends = [start for start, _ in spans], [end for _, end in spans]
    for place, opens in places:
        yield (_first_after(ends, place) if opens else bisect_left(starts, place)), opens


def _first_after(ends: Sequence[int], place: int) -> int:
    """The number of tokens that end at `place` or before."""
    return bisect_left(ends, place + 1)


def merged(anchors: Iterable[Anchor]) -> tuple[Anchor, ...]:
    """Ascending, one for each position but the very beginning. Where one thing closes and another opens, it opens."""
    opens: dict[int, bool] = {}
    for position, opening in anchors:
        opens[position] = opens.get(position, False) or opening
    return tuple(sorted((position, opening) for position, opening in opens.items() if position))
