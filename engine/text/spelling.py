"""Which tokens of a vocabulary spell a marker, in whatever pieces."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from engine.base.spelling import LOST, Spelling

_SPACES = "ĠĊĉč▁" + r"\s"  # as vocabularies write them


def candidates(marker: str) -> re.Pattern[str]:
    """What tokens that can have a part in spelling `marker` look like in a vocabulary; others may look so too."""
    return re.compile(f"{re.escape(marker[0])}|^[{re.escape(marker)}]|^[{_SPACES}]+$")


def spell(marker: str, tokens: Iterable[tuple[int, bytes]], first: bool = False) -> Spelling:
    """The spelling of `marker` by `tokens`, given by their ids and the bytes that they stand for."""
    goal = marker.encode()
    follow = _at_beginning if first else _anywhere
    steps = {}
    for token, content in _partakers(goal, tokens):
        row = tuple(follow(goal, spelled, content) for spelled in range(len(goal)))
        if any(step != (LOST if first else 0) for step in row):
            steps[token] = row
    return Spelling(len(goal), steps, first)


def _partakers(marker: bytes, tokens: Iterable[tuple[int, bytes]]) -> Iterator[tuple[int, bytes]]:
    """The tokens that can have a part in it, or are space: few of many, found without looking at each closely."""
    beginnings = tuple(marker[: count + 1] for count in range(len(marker)))
    endings = tuple(marker[count:] for count in range(len(marker)))
    for token, content in tokens:
        inside = content in marker or marker in content
        if inside or content.endswith(beginnings) or content.startswith(endings) or not content.strip():
            yield token, content


def _anywhere(marker: bytes, spelled: int, content: bytes) -> int:
    text = marker[:spelled] + content
    if marker in text:
        return len(marker)
    most = min(len(marker) - 1, len(text))
    return next(count for count in range(most, -1, -1) if text.endswith(marker[:count]))


def _at_beginning(marker: bytes, spelled: int, content: bytes) -> int:
    text = marker[:spelled] + content if spelled else content.lstrip()
    if text.startswith(marker):
        return len(marker)
    return len(text) if marker.startswith(text) else LOST
