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
"""How much lies before a semantic edge (characters in a text, tokens elsewhere), and whether something opens there;
else something has just closed."""


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
    worth = _by_worth(anchors, start, end, tokens)
    chosen = _choose(worth, end, budget)
    gaps = sum(1 for _ in _fill(chosen, start, end, NET_TOKENS))
    if gaps:
        chosen = _choose(worth, end, budget - min(gaps, budget // NET_SHARE))
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


def _choose(worth: Sequence[tuple[int, Rank]], end: int, budget: int) -> dict[int, Rank]:
    """The end, and the best borders, `budget` of them in all."""
    chosen = {end: Rank.END}
    for border, rank in worth:
        if border in chosen or len(chosen) < budget:
            chosen[border] = max(chosen.get(border, rank), rank)
    return chosen


def _by_worth(anchors: Sequence[Anchor], start: int, end: int, tokens: int) -> list[tuple[int, Rank]]:
    """Borders in `start + 1 .. end`, the best first: that of the first opening edge, where other conversations part;
    then the latest ones."""
    inside = sorted({anchor for anchor in anchors if anchor[0] <= tokens}, reverse=True)
    opening = [borders_of_edge(anchor) for anchor in inside if anchor[1] and anchor[0] >= PAGE_TOKENS]
    worth = [(borders[0], Rank.OPENING) for borders in (*opening[-1:], *opening)]
    worth += [(border, Rank.OPENING) for borders in opening for border in borders[1:]]
    worth += [(page_border(position), Rank.CLOSING) for position, opens in inside if not opens]
    return [(border, rank) for border, rank in worth if start < border <= end]


def _net(chosen: Mapping[int, Rank], start: int, end: int, budget: int) -> list[int]:
    """At most `budget` borders that leave no gap wider than the net, or than the narrowest net there is room for."""
    width = NET_TOKENS
    while budget > 0:
        borders = list(_fill(chosen, start, end, width))
        if len(borders) <= budget:
            return borders
        width += NET_TOKENS
    return []


def _fill(chosen: Iterable[int], start: int, end: int, width: int) -> Iterator[int]:
    """The borders, every `width` tokens, that fill the gaps between those that are `chosen`."""
    last = start
    for border in sorted(chosen):
        while border - last > width:
            last += width
            yield last
        last = border
