"""Which page borders of a prompt are worth a checkpoint. A pure decision.

Agents edit what they sent before: they strip thinking, replace old tool results, drop observations. Such an edit
invalidates everything after the opening edge of what it changes, and what it puts there begins like what was there,
with the header of a turn. So the borders at opening edges come first, then those that such a header crosses, then
closing edges; a coarse net is for edits that respect nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import IntEnum

from engine.memory.pages import PAGE_TOKENS, page_border

HEADER_TOKENS = 12  # that an edit may leave as they are after an opening edge
NET_TOKENS = 1024  # between two borders of the net, where the room allows it
NET_SHARE = 4  # one in so many saves is the net's, if it needs them

Anchor = tuple[int, bool]
"""Tokens before a semantic edge, and whether it opens."""


class Rank(IntEnum):
    """Why a checkpoint is kept."""

    NET = 0
    END = 1
    CLOSING = 2
    OPENING = 3


def borders_to_save(anchors: Sequence[Anchor], start: int, tokens: int, budget: int) -> Mapping[int, Rank]:
    """Page borders after `start` in a prompt of `tokens` that are to become checkpoints, `budget` of them at most.

    The last one from which the prompt itself could be taken up again is always among them.
    """
    end = page_border(tokens - 1)
    if end <= start or budget < 1:
        return {}
    chosen = {end: Rank.END}
    netted = max(0, budget - 1) // NET_SHARE
    for border, rank in _by_worth(anchors, tokens):
        if border in chosen:
            chosen[border] = max(chosen[border], rank)
        elif start < border <= end and len(chosen) < budget - netted:
            chosen[border] = rank
    for border in _net(chosen, start, end, budget - len(chosen)):
        chosen.setdefault(border, Rank.NET)
    return chosen


def borders_of_edge(anchor: Anchor) -> tuple[int, ...]:
    """The border before an edge and, where the header behind an opening edge crosses one, the next."""
    position, opens = anchor
    border = page_border(position)
    if opens and position + HEADER_TOKENS >= border + PAGE_TOKENS:
        return border, border + PAGE_TOKENS
    return (border,)


def _by_worth(anchors: Sequence[Anchor], tokens: int) -> Iterator[tuple[int, Rank]]:
    """Borders, the best first: that of the first opening edge, where other conversations part; then the latest ones."""
    inside = sorted({anchor for anchor in anchors if PAGE_TOKENS <= anchor[0] <= tokens}, reverse=True)
    opening = [borders_of_edge(anchor) for anchor in inside if anchor[1]]
    if opening:
        yield opening[-1][0], Rank.OPENING
    for borders in opening:
        yield borders[0], Rank.OPENING
    for borders in opening:
        yield from ((border, Rank.OPENING) for border in borders[1:])
    for anchor in inside:
        if not anchor[1]:
            yield page_border(anchor[0]), Rank.CLOSING


def _net(chosen: Iterable[int], start: int, end: int, budget: int) -> Iterator[int]:
    """At most `budget` borders that leave no gap larger than the net's width, or else leave equal parts."""
    if budget < 1:
        return
    width = NET_TOKENS
    while _count(chosen, start, end, width) > budget:
        width += NET_TOKENS
    yield from _fill(chosen, start, end, width)


def _count(chosen: Iterable[int], start: int, end: int, width: int) -> int:
    return sum(1 for _ in _fill(chosen, start, end, width))


def _fill(chosen: Iterable[int], start: int, end: int, width: int) -> Iterator[int]:
    last = start
    for border in sorted({*chosen, end}):
        if border <= start:
            continue
        while border - last > width:
            last += width
            yield last
        last = border
