"""Which tokens of a vocabulary spell a marker, in whatever pieces, and which end within a character."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from engine.base.spelling import LOST, CharacterEdges, Spelling
from engine.text.decoding import byte_alphabet

_SPACES = "ĠĊĉč▁" + r"\s"  # as vocabularies write them


def _letters(low: int, high: int) -> str:
    """The set of what stands for the bytes from `low` up to `high` in byte-level vocabularies."""
    return f"[{''.join(re.escape(char) for char, byte in byte_alphabet().items() if low <= byte < high)}]"


_MIDDLE = _letters(0x80, 0xC0)
PARTS_OF_CHARACTERS = re.compile(
    f"^{_MIDDLE}+$|(?:{_letters(0xC2, 0xE0)}|{_letters(0xE0, 0xF0)}{_MIDDLE}?|{_letters(0xF0, 0xF5)}{_MIDDLE}{{0,2}})$"
)
"""What the tokens of `character_edges` look like in a byte-level vocabulary; others may look so too."""


def candidates(marker: str) -> re.Pattern[str]:
    """What tokens that can have a part in spelling `marker` look like in a vocabulary; others may look so too."""
    letters = {byte: char for char, byte in byte_alphabet().items()}
    written = "".join(letters[byte] for byte in marker.encode())  # in byte-level vocabularies
    firsts = "".join(map(re.escape, marker[0] + written[0]))
    return re.compile(f"[{firsts}]|^[{re.escape(marker + written)}]|^[{_SPACES}]+$")


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
        return len(marker) + bool(text.partition(marker)[2].strip())
    most = min(len(marker) - 1, len(text))
    return next(count for count in range(most, -1, -1) if text.endswith(marker[:count]))


def _at_beginning(marker: bytes, spelled: int, content: bytes) -> int:
    text = marker[:spelled] + content if spelled else content.lstrip()
    if text.startswith(marker):
        return len(marker)
    return len(text) if marker.startswith(text) else LOST


def character_edges(tokens: Iterable[tuple[int, bytes]]) -> CharacterEdges:
    """Where `tokens`, given by their ids and bytes, end within characters."""
    lacking, filling = {}, {}
    for token, content in tokens:
        if content and all(0x80 <= byte < 0xC0 for byte in content):
            filling[token] = len(content)
        elif count := _lacks(content):
            lacking[token] = count
    return CharacterEdges(lacking, filling)


_SIZES = ((range(0xC2, 0xE0), 2), (range(0xE0, 0xF0), 3), (range(0xF0, 0xF5), 4))  # by the first byte, in UTF-8


def _lacks(content: bytes) -> int:
    """How many bytes the character lacks with which `content` ends."""
    for place, byte in enumerate(reversed(content[-3:]), start=1):
        if not 0x80 <= byte < 0xC0:
            return max(0, next((size for firsts, size in _SIZES if byte in firsts), 1) - place)
    return 0
