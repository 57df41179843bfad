"""Bars made of characters, for bandwidths and their ranges."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TextIO

_EIGHTHS = " ▏▎▍▌▋▊▉"
_FEWEST_CELLS = 8
_NO_TERMINAL = (1000, 24)


@dataclass(frozen=True)
class Bar:
    """One line of a chart: its label, its value with unit as text, and how long the bar is."""

    label: str
    text: str
    value: float


def draw(bars: Sequence[Bar], width: int, unicode: bool) -> list[str]:
    """Lines with bars of at most `width` cells, to scale with each other; plain characters without `unicode`.

    Bars are shorter where the terminal is too narrow for the lines, down to a few cells.
    """
    longest = max((bar.value for bar in bars), default=0.0)
    labels = max((len(bar.label) for bar in bars), default=0)
    texts = max((len(bar.text) for bar in bars), default=0)
    left = shutil.get_terminal_size(_NO_TERMINAL).columns - labels - texts - len("    ")
    width = min(width, max(left, _FEWEST_CELLS))
    lines = []
    for bar in bars:
        share = bar.value / longest if longest > 0 else 0.0
        lines.append(f"{bar.label:<{labels}}  {bar.text:>{texts}}  {_bar(share * width, unicode)}".rstrip())
    return lines


def _bar(cells: float, unicode: bool) -> str:
    if not unicode:
        return "#" * round(cells)
    eighths = round(cells * 8)
    return "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()


def can_draw(stream: TextIO) -> bool:
    """Whether `stream` can be sent block characters."""
    try:
        "█".encode(stream.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True
