"""The JSON of a request's body, and sentences about what of it cannot be used."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from engine.base.errors import UsageError
from engine.front.wire.fields import FieldError, shortened

_MOST_DIGITS = 4300  # Python makes no whole number of more


@dataclass(frozen=True)
class _Huge:
    """Stands for a number that is too large, and says why."""

    problem: str


def read_object(data: bytes) -> dict[str, Any]:
    """The object that a body is, with U+FFFD for halves of surrogate pairs, which no answer could carry.

    UsageError for anything else, FieldError for an object with a number that is too large.
    """
    try:
        text = data.decode(json.detect_encoding(data))
        content = _read(text)
    except RecursionError:
        raise UsageError("The request's body is nested too deeply.") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"The request's body is not JSON: {error}.", "Send one JSON object.") from None
    if not isinstance(content, dict):
        raise UsageError("The request's body is not a JSON object.", "Send one.")
    return _whole_characters(content) if "\\ud" in text.lower() else content


def _read(text: str) -> Any:
    try:
        return json.loads(text, parse_constant=_refuse_constant, parse_float=_finite)
    except json.JSONDecodeError:
        raise
    except ValueError:  # of a number; which one it is costs time that a good body need not take
        content = json.loads(text, parse_constant=_refuse_constant, parse_int=_whole, parse_float=_real)
        for place, huge in _huge_numbers("", content):
            raise FieldError(place, huge.problem) from None
        raise UsageError("The request's body holds a number that is too large.") from None


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError(text)
    return value


def _whole(text: str) -> int | _Huge:
    digits = len(text.lstrip("-"))
    return int(text) if digits <= _MOST_DIGITS else _Huge(f"{digits} digits are more than the {_MOST_DIGITS} allowed.")


def _real(text: str) -> float | _Huge:
    value = float(text)
    return _Huge(f"{shortened(text)} is too large for a number.") if math.isinf(value) else value


def _huge_numbers(place: str, content: Any) -> Iterator[tuple[str, _Huge]]:
    """The numbers in `content` that are too large, with the names of their places."""
    if isinstance(content, _Huge):
        yield place, content
    elif isinstance(content, list):
        for index, value in enumerate(content):
            if isinstance(value, list | dict | _Huge):
                yield from _huge_numbers(f"{place}[{index}]", value)
    elif isinstance(content, dict):
        for name, value in content.items():
            if isinstance(value, list | dict | _Huge):
                yield from _huge_numbers(f"{place}.{shortened(name)}" if place else shortened(name), value)


def _whole_characters(content: dict[str, Any]) -> dict[str, Any]:
    text = json.dumps(content, ensure_ascii=False)
    whole: dict[str, Any] = json.loads(text.encode("utf-16", "surrogatepass").decode("utf-16", "replace"))
    return whole


def _refuse_constant(name: str) -> float:
    raise UsageError(f"The request's body is not JSON: it holds {name}.")
