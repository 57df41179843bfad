"""Checked members of a JSON request. Every error names the member, so that the client knows which one to change."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sized
from dataclasses import dataclass
from functools import cache
from reprlib import repr as shown  # a bad value may be megabytes long, and an answer quotes it
from typing import Any, TypeVar

from engine.base.errors import UsageError
from engine.base.sampling import Range
from engine.front.wire.schemas import Schema


class FieldError(UsageError):
    """A member of a request that cannot be used; `field` is its name."""

    def __init__(self, field: str, message: str, remedy: str = "") -> None:
        super().__init__(f"{field}: {message}", remedy)
        self.field = field


Reader = Callable[[str, Any], Any]
SomeReader = TypeVar("SomeReader", bound=Callable[[str, Any], Any])

LONGEST_TEXT = 8 * 2**20
MOST_MESSAGES = 16384
MOST_STOPS = 16
MOST_BIASES = 1024
MOST_LOGPROBS = 20
_LONGEST_NAME = 128
_SCHEMAS: dict[Reader, Schema] = {}


def described(schema: Schema) -> Callable[[SomeReader], SomeReader]:
    """Say what a reader takes. The schema may be wider than the reader, never narrower."""

    def note(reader: SomeReader) -> SomeReader:
        _SCHEMAS[reader] = schema
        return reader

    return note


def schema_of(reader: Reader) -> Schema:
    """What a reader takes, as far as that was said."""
    return _SCHEMAS.get(reader, {})


@dataclass(frozen=True)
class Field:
    """One member: how it is read, its value where it is absent, and where it is null (None: as if it were absent)."""

    read: Reader
    default: Any = None
    null: Any = None
    required: bool = False

    def value(self, name: str, body: Mapping[str, Any]) -> Any:
        """The member's value in `body`. A required one is read even where it is absent, and refused as null."""
        given = body.get(name)
        if given is None and not self.required:
            return self.null if name in body and self.null is not None else self.default
        return self.read(name, given)


def read_fields(
    body: Mapping[str, Any], table: Mapping[str, Field], ignored: frozenset[str] = frozenset()
) -> dict[str, Any]:
    """The values of all members in `table`. `ignored` members change nothing here; any other is refused."""
    for name in body:
        if name not in table and name not in ignored:
            raise FieldError(shortened(name), "this server knows no such parameter.")
    return {name: field.value(name, body) for name, field in table.items()}


def shortened(name: str) -> str:
    """A name that a client made up, short enough to be told back."""
    return name if len(name) <= _LONGEST_NAME else f"{name[:_LONGEST_NAME]}..."


@cache
def within(allowed: Range) -> Reader:
    """A number of a range."""

    @described({"type": "integer" if allowed.whole else "number", "minimum": allowed.low, "maximum": allowed.high})
    def read(name: str, value: Any) -> Any:
        if problem := allowed.problem(value):
            raise FieldError(name, problem)
        return value

    return read


def whole(low: int, high: int) -> Reader:
    """A whole number within `low .. high`."""
    return within(Range(low, high, whole=True))


@described({"type": "string", "minLength": 1})
def model(name: str, value: Any) -> str:
    """A model's name."""
    if not isinstance(value, str) or not value:
        raise FieldError(name, "a model's name is expected.", "GET /v1/models lists them.")
    return value


@described({"type": "string", "pattern": "^/"})
def absolute_path(name: str, value: Any) -> str:
    """The path of a file from the root on: the server is in a folder of its own."""
    if not isinstance(value, str) or not value.startswith("/") or "\0" in value:
        raise FieldError(name, "the absolute path of a file is expected.")
    return value


@described({"type": "boolean"})
def flag(name: str, value: Any) -> bool:
    """true or false."""
    if not isinstance(value, bool):
        raise FieldError(name, f"true or false is expected, not {shown(value)}.")
    return value


@described(
    {
        "anyOf": [
            {"type": "string", "minLength": 1},
            {"type": "array", "items": {"type": "string", "minLength": 1}, "maxItems": MOST_STOPS},
        ]
    }
)
def stops(name: str, value: Any) -> tuple[str, ...]:
    """A stop string or a list of some."""
    values = [value] if isinstance(value, str) else value
    if not isinstance(values, list) or not all(isinstance(item, str) for item in values):
        raise FieldError(name, "a string or a list of strings is expected.")
    if len(values) > MOST_STOPS:
        raise FieldError(name, f"{len(values)} stop strings are more than the {MOST_STOPS} allowed.")
    if not all(values):
        raise FieldError(name, "a stop string is empty.")
    return tuple(values)


@described(
    {
        "type": "object",
        "propertyNames": {"pattern": "^[0-9]{1,9}$"},
        "additionalProperties": {"type": "number", "minimum": -100, "maximum": 100},
        "maxProperties": MOST_BIASES,
    }
)
def logit_bias(name: str, value: Any) -> dict[int, float]:
    """{token id: amount from -100 to 100}; ids are JSON keys, so strings of digits."""
    if not isinstance(value, dict) or len(value) > MOST_BIASES:
        raise FieldError(name, f"an object of at most {MOST_BIASES} token ids is expected.")
    amount = within(Range(-100, 100))
    bias = {}
    for key, item in value.items():
        if not (key.isascii() and key.isdigit()) or len(key) > 9:
            raise FieldError(name, f"{shown(key)} is not a token id.")
        bias[int(key)] = amount(name, item)
    return bias


@described({"type": "string"})
def text(name: str, value: Any) -> str:
    """Text of a bounded length."""
    if not isinstance(value, str):
        raise FieldError(name, f"text is expected, not {shown(value)}.")
    if len(value) > LONGEST_TEXT:
        raise FieldError(name, f"{len(value)} characters are more than the {LONGEST_TEXT} allowed.", "Send less text.")
    return value


@described({"type": "object"})
def mapping(name: str, value: Any) -> dict[str, Any]:
    """An object."""
    if not isinstance(value, dict):
        raise FieldError(name, "an object is expected.")
    return value


@described({"type": "array", "items": {"type": "object"}, "maxItems": MOST_MESSAGES})
def mappings(name: str, value: Any) -> tuple[dict[str, Any], ...]:
    """A list of objects, not more than any conversation has."""
    if not isinstance(value, list):
        raise FieldError(name, "a list is expected.")
    check_count(name, value)
    return tuple(mapping(f"{name}[{index}]", item) for index, item in enumerate(value))


def check_count(name: str, value: Sized) -> None:
    """FieldError for a list that is longer than any conversation."""
    if len(value) > MOST_MESSAGES:
        raise FieldError(name, f"{len(value)} entries are more than the {MOST_MESSAGES} allowed.", "Send fewer.")


def one_of(*allowed: str) -> Reader:
    """One of a few words."""

    @described({"enum": list(allowed)})
    def read(name: str, value: Any) -> Any:
        if value not in allowed:
            raise FieldError(name, f"one of {', '.join(allowed)} is expected, not {shown(value)}.")
        return value

    return read


def only(*allowed: Any) -> Reader:
    """One of a few values that mean: not used. Anything else asks for what this release does not do."""

    @described({"enum": list(allowed)})
    def read(name: str, value: Any) -> Any:
        if value not in allowed:
            raise FieldError(name, "this is not supported yet.", "Leave it out.")
        return value

    return read
