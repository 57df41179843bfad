"""How context memory is cut: a page holds what `PAGE_TOKENS` consecutive positions left behind."""

from __future__ import annotations

from collections.abc import Sequence

PAGE_TOKENS = 16


def pages_for(tokens: int) -> int:
    """Pages that `tokens` positions take."""
    return -(-tokens // PAGE_TOKENS)


def page_border(tokens: int) -> int:
    """The last border between two pages that `tokens` positions reach."""
    return tokens // PAGE_TOKENS * PAGE_TOKENS


def common_tokens(one: Sequence[int], other: Sequence[int]) -> int:
    """Tokens that two sequences of one type have in common at their beginnings."""
    low, high = 0, min(len(one), len(other))
    if one[:high] == other[:high]:
        return high
    while high - low > 1:  # the parts compared get shorter: linear in all
        middle = (low + high) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle
    return low
