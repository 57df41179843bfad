"""What somebody may have meant by a name that is not known."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import SequenceMatcher

_CUTOFF = 0.6  # of difflib's ratio; below it a name has little in common with what was typed
_MARGIN = 0.2  # a second name this much farther away may be the one that was meant


def nearest(typed: str, known: Iterable[str]) -> list[str]:
    """The one or two names of `known` nearest to `typed`, the nearest first; upper and lower case count the same."""
    matcher = SequenceMatcher()
    matcher.set_seq2(typed.lower())
    scored = []
    for name in set(known):
        matcher.set_seq1(name.lower())
        if matcher.real_quick_ratio() >= _CUTOFF and matcher.quick_ratio() >= _CUTOFF:
            scored.append((-matcher.ratio(), name))
    scored.sort()
    return [name for score, name in scored[:2] if -score >= max(_CUTOFF, -scored[0][0] - _MARGIN)]


def did_you_mean(typed: str, known: Iterable[str]) -> str:
    """ "Did you mean X?" or "Did you mean X or Y?"; "" when nothing is near."""
    names = nearest(typed, known)
    return f"Did you mean {' or '.join(names)}?" if names else ""
