"""Reading config.json: typed values by name, with sentences for what is missing or of the wrong type."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, replace
from typing import Any, Final, cast

from engine.base.errors import CorruptFileError, UnsupportedError
from engine.base.plain import finite, shortened, whole

REMEDY = "Check the model's config.json, or fetch it again."


class _Required:
    """Marks a key without a default."""


class _Absent:
    """Says that a null is as good as no value."""


REQUIRED: Final = _Required()
ABSENT: Final = _Absent()


@dataclass(frozen=True)
class Key:
    """A value of config.json: the first of `names` that is there and not null, else `default`, perhaps a key itself.

    Where a null says something else than nothing, `null` is what it stands for. A name with a dot is that of a field
    of an object inside, `object.field`. A whole number is meant `times` over.
    """

    names: tuple[str, ...]
    default: Any = REQUIRED
    times: int = 1
    null: Any = ABSENT


def key(*names: str, default: Any = REQUIRED, null: Any = ABSENT) -> Key:
    """Short form of `Key`, for the records of families."""
    return Key(names, default, null=null)


@dataclass(frozen=True)
class Config:
    """config.json, or one object inside it that `where` names; `layer` is the one that is asked for (-1: none)."""

    data: Mapping[str, Any]
    where: str = "config.json"
    layer: int = -1

    def of_layer(self, layer: int) -> Config:
        """The same for one layer: a list of numbers holds one for every layer."""
        return replace(self, layer=layer)

    def raw(self, wanted: Any) -> Any:
        """The value of a key, unchecked; anything that is not a key stands for itself."""
        if not isinstance(wanted, Key):
            return wanted
        for name in wanted.names:
            value = self._value(name)
            if value is not None:
                return value
            if not isinstance(wanted.null, _Absent) and self._is_null(name):
                return wanted.null
        if isinstance(wanted.default, _Required):
            raise CorruptFileError(f"{self.where} lacks {wanted.names[0]}.", REMEDY)
        return self.raw(wanted.default)

    def has(self, wanted: Key) -> bool:
        """Whether a key's value is there and not null."""
        return any(self._value(name) is not None for name in wanted.names)

    def _value(self, name: str) -> Any:
        holder, field = self._place(name)
        return holder.data.get(field)

    def _is_null(self, name: str) -> bool:
        holder, field = self._place(name)
        return field in holder.data and holder.data[field] is None

    def _place(self, name: str) -> tuple[Config, str]:
        holder, dot, field = name.partition(".")
        return self.inner(holder)._place(field) if dot else (self, name)

    def _of_layer(self, value: Any, wanted: Any) -> Any:
        """The layer's own of a list of values, one for every layer."""
        if not (isinstance(value, list) and 0 <= self.layer < len(value)):
            return value
        own = value[self.layer]
        return wanted.null if own is None and isinstance(wanted, Key) and wanted.null is not ABSENT else own

    def integer(self, wanted: Key | int) -> int:
        if isinstance(wanted, Key) and isinstance(wanted.default, Key) and not self.has(wanted):
            return self.integer(wanted.default)
        value = self.raw(wanted)
        size = whole(self._of_layer(value, wanted))
        if size is None:
            raise self._wrong(wanted, "a whole number below 2^31", value)
        return size * wanted.times if isinstance(wanted, Key) else size

    def number(self, wanted: Key | float) -> float:
        value = self.raw(wanted)
        number = finite(self._of_layer(value, wanted))
        if number is None:
            raise self._wrong(wanted, "a number", value)
        return number

    def flag(self, wanted: Key | bool) -> bool:
        value = self.raw(wanted)
        if not isinstance(value, bool):
            raise self._wrong(wanted, "true or false", value)
        return value

    def is_set(self, wanted: Key | bool) -> bool:
        """A flag that some write as a number, which sets it unless it is 0."""
        value = self.raw(wanted)
        return value if isinstance(value, bool) else self.number(wanted) != 0

    def text(self, wanted: Key | str) -> str:
        value = self.raw(wanted)
        if not isinstance(value, str):
            raise self._wrong(wanted, "a string", value)
        return value

    def integers(self, wanted: Key) -> tuple[int, ...]:
        """A list of whole numbers, perhaps as a text with commas between them; a single one counts as a list of one."""
        value = self.raw(wanted)
        items = value if isinstance(value, list | tuple) else [value]
        if isinstance(value, str):
            items = [int(item) if item.strip().isdecimal() else item for item in value.split(",")]
        sizes = tuple(size for item in items if (size := whole(item)) is not None)
        if len(sizes) != len(items):
            raise self._wrong(wanted, "a whole number below 2^31 or a list of them", value)
        return sizes

    def numbers(self, wanted: Key) -> tuple[float, ...]:
        value = self.raw(wanted)
        if not isinstance(value, list | tuple) or not value:
            raise self._wrong(wanted, "a list of numbers", value)
        return tuple(self.number(item) for item in value)

    def texts(self, wanted: Key) -> tuple[str, ...]:
        value = self.raw(wanted)
        if not isinstance(value, list | tuple) or any(not isinstance(item, str) for item in value):
            raise self._wrong(wanted, "a list of strings", value)
        return tuple(value)

    def inner(self, name: str) -> Config:
        """The object under `name`; an absent one is empty."""
        value = self.data.get(name)
        if value is not None and not isinstance(value, dict):
            raise self._wrong(key(name), "an object", value)
        return Config(value or {}, f"{name} in {self.where}", self.layer)

    def with_fields(self, fields: dict[str, Any]) -> Config:
        """The same with these fields before its own, which are asked for where they lie."""
        return replace(self, data=ChainMap(fields, cast("MutableMapping[str, Any]", self.data)))

    def only(self, name: str, allowed: tuple[Any, ...]) -> None:
        """Refuse a value that is there, not null, and not among `allowed`: what it asks for is not implemented.

        A list is as good as all of its values.
        """
        value = self._value(name)
        values = value if isinstance(value, list) else [value]
        if value is not None and any(each not in allowed for each in values):
            known = " or ".join(repr(item) for item in allowed) or "nothing"
            raise UnsupportedError(
                f"{self.where} asks for {name} = {shortened(value)}; this release knows only {known}.",
                "Use another model, or a release that knows it.",
            )

    def _wrong(self, wanted: Any, kind: str, value: Any) -> CorruptFileError:
        name = wanted.names[0] if isinstance(wanted, Key) else "a value"
        return CorruptFileError(f"{name} in {self.where} must be {kind}, not {shortened(value)}.", REMEDY)


def is_on(when: tuple[str, str] | None, config: Config) -> bool:
    """Whether a field has the value that switches something on; nothing to switch it is on."""
    return when is None or config.data.get(when[0]) == when[1]
