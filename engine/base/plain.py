"""Frozen dataclasses to plain JSON values and back, strictly: every key known, every type right.

A field with a default may be absent: an older release that did not know it wrote the file.

Fields may be `int`, `float`, `str`, `bool`, `tuple[X, ...]`, a dataclass, `X | None`, or a union of dataclasses. A
member of such a union carries a class variable `kind`, which tells the members apart in JSON.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from typing import Any, TypeVar

from engine.base.errors import CorruptFileError, FreetokenError, UnsupportedError

T = TypeVar("T")

LARGEST_NUMBER = 1e30
LARGEST_SIZE = 2**31


def to_plain(value: Any) -> Any:
    """The value as dicts, lists, strings and numbers; dataclasses become objects, with their `kind` first."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: to_plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
        kind = _kind(type(value))
        return {"kind": kind, **fields} if kind else fields
    if isinstance(value, tuple):
        return [to_plain(item) for item in value]
    return value


def from_plain(cls: type[T], data: Any, where: str, remedy: str) -> T:
    """Build a dataclass from what `to_plain` made of it.

    `where` names the place in error messages, `remedy` is what they advise. Raises CorruptFileError for a missing key
    without a default or a wrong type, UnsupportedError for a key or a `kind` that this release does not know, and what
    the classes raise.
    """
    try:
        value: T = _read_dataclass(cls, data, where)
    except FreetokenError as error:
        raise type(error)(error.message, error.remedy or remedy) from None
    return value


def finite(data: Any) -> float | None:
    """The number as a float; None for what is no number, not finite, or larger than any setting of a model."""
    if isinstance(data, bool) or not isinstance(data, int | float) or not -LARGEST_NUMBER < data < LARGEST_NUMBER:
        return None
    return float(data)


def whole(data: Any) -> int | None:
    """The whole number; None for what is none, or beyond 31 bits, which no size of a model is."""
    if isinstance(data, bool) or not isinstance(data, int) or not -LARGEST_SIZE < data < LARGEST_SIZE:
        return None
    return data


def _kind(cls: type) -> str:
    return str(vars(cls).get("kind", ""))


def _read_dataclass(cls: type, data: Any, where: str) -> Any:
    if not isinstance(data, dict):
        raise _wrong(where, "an object", data)
    hints = typing.get_type_hints(cls)
    fields = dataclasses.fields(cls)
    known = {field.name for field in fields} | ({"kind"} if _kind(cls) else set())
    unknown = sorted(set(data) - known)
    if unknown:
        raise UnsupportedError(f"{where} has a field that this release does not know: {unknown[0]}.")
    missing = [field.name for field in fields if field.name not in data and field.default is dataclasses.MISSING]
    if missing:
        raise CorruptFileError(f"{where} lacks the field {missing[0]}.")
    given = [field.name for field in fields if field.name in data]
    return cls(**{name: _read(hints[name], data[name], f"{where}.{name}") for name in given})


def _read(hint: Any, data: Any, where: str) -> Any:
    if isinstance(hint, types.UnionType):
        return _read_union(typing.get_args(hint), data, where)
    if typing.get_origin(hint) is tuple:
        if not isinstance(data, list):
            raise _wrong(where, "a list", data)
        item = typing.get_args(hint)[0]
        return tuple(_read(item, value, f"{where}[{index}]") for index, value in enumerate(data))
    if dataclasses.is_dataclass(hint):
        return _read_dataclass(typing.cast(type, hint), data, where)
    return _read_scalar(hint, data, where)


def _read_union(members: tuple[Any, ...], data: Any, where: str) -> Any:
    if data is None and type(None) in members:
        return None
    classes = [member for member in members if member is not type(None)]
    if len(classes) == 1:
        return _read(classes[0], data, where)
    if not isinstance(data, dict):
        raise _wrong(where, "an object", data)
    by_kind = {_kind(member): member for member in classes}
    kind = data.get("kind")
    if not isinstance(kind, str) or kind not in by_kind:
        raise UnsupportedError(f"{where} is of a kind that this release does not know: {shortened(kind)}.")
    return _read_dataclass(by_kind[kind], data, where)


def _read_scalar(hint: type, data: Any, where: str) -> Any:
    if hint is float:
        number = finite(data)
        if number is None:
            raise _wrong(where, "a number", data)
        return number
    if hint is int:
        size = whole(data)
        if size is None:
            raise _wrong(where, "a whole number below 2^31", data)
        return size
    if not isinstance(data, hint):
        raise _wrong(where, "a string" if hint is str else "true or false", data)
    return data


def _wrong(where: str, wanted: str, data: Any) -> CorruptFileError:
    return CorruptFileError(f"{where} must be {wanted}, not {shortened(data)}.")


def shortened(data: Any) -> str:
    """What a message shows of a value that should not be there."""
    text = repr(data)
    return text if len(text) <= 60 else f"{text[:57]}..."
