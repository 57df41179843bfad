"""Sizes, token counts, durations and shares as people type them, and as they are printed.

A size counts bytes: `B`, the binary `K M G T` and `KiB MiB GiB TiB` (1M is 1MiB, as memory tools have it), and the
decimal `KB MB GB TB`. A token count is plain or ends in `k` (1024). Parsers raise `UsageError` with the offending text.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from engine.base.errors import UsageError

KIB, MIB, GIB, TIB = 2**10, 2**20, 2**30, 2**40

_BYTE_UNITS = {
    "b": 1,
    "k": KIB, "kib": KIB, "kb": 10**3,
    "m": MIB, "mib": MIB, "mb": 10**6,
    "g": GIB, "gib": GIB, "gb": 10**9,
    "t": TIB, "tib": TIB, "tb": 10**12,
}  # fmt: skip
_DURATION_UNITS = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_NUMBER = re.compile(r"(\d+(?:\.\d+)?|\.\d+)\s*([A-Za-z%]*)", re.ASCII)
_SEVERAL = re.compile(r"(?:\d{1,9}(?:\.\d{1,9})?[A-Za-z]+){2,}", re.ASCII)  # as Go's programs write a duration
_MOST_DIGITS = 40  # far more than any number here needs, and few enough to be an exact integer or a finite float
_LARGEST = 2**62  # beyond this a number is a slip of the finger, and would not fit a signed 64-bit field


@dataclass(frozen=True)
class KvBudget:
    """How much context memory to keep: tokens, bytes, or a share of what it and cached experts have together.

    Exactly one is positive, and 0 < share < 1.
    """

    tokens: int = 0
    bytes: int = 0
    share: float = 0.0

    def __str__(self) -> str:
        if self.share:
            return f"{self.share * 100:g}%"
        return f"{format_tokens(self.tokens)} tokens" if self.tokens else format_size(self.bytes)


@dataclass(frozen=True)
class ExpertRoom:
    """Room for cached experts: bytes, a share of the pool (0 < share <= 1), or slots.

    At most one is positive; none is: no cache at all.
    """

    bytes: int = 0
    share: float = 0.0
    slots: int = 0

    @property
    def nothing(self) -> bool:
        """Whether no expert is to be cached."""
        return not (self.bytes or self.share or self.slots)

    def __str__(self) -> str:
        if self.bytes:
            return format_size(self.bytes)
        if self.share:
            return f"{self.share * 100:g}%"
        if not self.slots:
            return "no cache"
        return f"{self.slots} slot{'s' if self.slots > 1 else ''}"

    @property
    def exact(self) -> str:
        """Text that `parse_experts` reads back as this room, shares to thirteen digits."""
        if self.bytes:
            return f"{self.bytes}B"
        return f"{self.share * 100:.13f}".rstrip("0").rstrip(".") + "%" if self.share else str(self.slots)


def _split(text: str, wanted: str) -> tuple[str, str]:
    """Number and lower-case unit of `text`; both as written, so that a caller can stay exact."""
    match = _NUMBER.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"{text!r} is not {wanted}.")
    if len(match.group(1)) > _MOST_DIGITS:
        raise UsageError(f"{text!r:.60}... has too many digits.")
    return match.group(1), match.group(2).lower()


def _scaled(number: str, factor: int, text: str) -> int:
    """`number * factor` as an integer, exactly where `number` is whole."""
    value = int(number) * factor if number.isdigit() else round(float(number) * factor)
    if value > _LARGEST:
        raise UsageError(f"{text!r} is too large.")
    return value


def parse_size(text: str) -> int:
    """Bytes from `64M`, `1.5GiB`, `4096B`; a bare number is refused because its unit would be a guess."""
    wanted = "a size such as 512M, 2G, 64MiB or 1.5GiB"
    number, unit = _split(text, wanted)
    if unit not in _BYTE_UNITS:
        raise UsageError(f"{text!r} is not {wanted}.")
    value = _scaled(number, _BYTE_UNITS[unit], text)
    if value == 0:
        raise UsageError(f"{text!r} is zero; a size is at least one byte.")
    return value


def parse_tokens(text: str) -> int:
    """Tokens from `4096` or `32k` (k is 1024)."""
    wanted = "a number of tokens such as 4096 or 32k"
    number, unit = _split(text, wanted)
    if unit not in ("", "k") or (unit == "" and not number.isdigit()):
        raise UsageError(f"{text!r} is not {wanted}.")
    value = _scaled(number, KIB if unit else 1, text)
    if value == 0:
        raise UsageError(f"{text!r} is zero; at least one token is needed.")
    return value


def parse_kv(text: str) -> KvBudget:
    """A KV budget: `8192` and `32k` are tokens; `512M` and `2GiB` bytes; `40%` is of what context and experts share."""
    wanted = "a KV budget such as 8192 or 32k (tokens), 512M or 2GiB (bytes), 40% (of what it shares with experts)"
    number, unit = _split(text, wanted)
    if unit == "%":
        share = float(number) / 100
        if not 0 < share < 1:
            raise UsageError(f"{text!r} is not a share between 0% and 100%.")
        return KvBudget(share=share)
    if unit in ("", "k"):
        return KvBudget(tokens=parse_tokens(number + unit))
    if unit in _BYTE_UNITS and unit != "b":
        return KvBudget(bytes=parse_size(number + unit))
    raise UsageError(f"{text!r} is not {wanted}.")


def parse_experts(text: str) -> ExpertRoom:
    """Room for experts: `2G` (bytes), `37%` (of the pool) or `120` (slots); `0` and `0%` are no cache."""
    wanted = "room for experts such as 2G (bytes), 37% (of all experts), 120 (slots) or 0 (none)"
    number, unit = _split(text, wanted)
    if unit == "%":
        share = float(number) / 100
        if not 0 <= share <= 1:
            raise UsageError(f"{text!r} is not a share between 0% and 100%.")
        return ExpertRoom(share=share)
    if unit == "":
        if not number.isdigit() or int(number) > _LARGEST:
            raise UsageError(f"{text!r} is not {wanted}.")
        return ExpertRoom(slots=int(number))
    if unit not in _BYTE_UNITS:
        raise UsageError(f"{text!r} is not {wanted}.")
    return ExpertRoom(bytes=parse_size(text))


def parse_duration(text: str) -> float:
    """Seconds from `90`, `30s`, `5m`, `1.5h`, `1h30m0s`; `-1` and `forever` mean no end and give infinity."""
    if text.strip().lower() in ("-1", "forever"):
        return float("inf")
    wanted = "a duration such as 30s, 5m, 1h, 0 or forever"
    parts = re.findall(r"[\d.]+[A-Za-z]+", text) if _SEVERAL.fullmatch(text.strip()) else [text]
    seconds = 0.0
    for part in parts:
        number, unit = _split(part, wanted)
        if unit not in _DURATION_UNITS:
            raise UsageError(f"{text!r} is not {wanted}.")
        seconds += float(number) * _DURATION_UNITS[unit]
    return seconds


def format_size(count: int) -> str:
    """Bytes for people, in binary units with three significant digits: `98.4 MB` would read `93.8 MiB`."""
    if count < KIB:
        return f"{count} B"
    value = float(count)
    for unit in ("KiB", "MiB", "GiB", "TiB"):
        value /= KIB
        if value < 999.5 or unit == "TiB":
            break
    digits = 2 if value < 9.995 else 1 if value < 99.95 else 0
    return f"{value:.{digits}f} {unit}"


def format_tokens(count: int) -> str:
    """`32k` for whole multiples of 1024, digits otherwise; `parse_tokens` reads both back."""
    return f"{count // KIB}k" if count and count % KIB == 0 else str(count)


def format_duration(seconds: float) -> str:
    """`312 ms`, `4.2 s`, `3 min 20 s`, `2 h 5 min`, `forever`."""
    if seconds == float("inf"):
        return "forever"
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s" if rest else f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if minutes else f"{hours} h"
