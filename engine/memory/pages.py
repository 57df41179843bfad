"""How context memory is cut: a page holds what `PAGE_TOKENS` consecutive positions left behind."""

from __future__ import annotations

PAGE_TOKENS = 16


def pages_for(tokens: int) -> int:
    """Pages that `tokens` positions take."""
    return -(-tokens // PAGE_TOKENS)


def page_border(tokens: int) -> int:
    """The last border between two pages that `tokens` positions reach."""
    return tokens // PAGE_TOKENS * PAGE_TOKENS
