"""Single settings of how weights were quantised, out of config.json: absent, null, or of the right type."""

from __future__ import annotations

from engine.base.errors import CorruptFileError
from engine.files.quantised.settings import Settings


def integer(settings: Settings, *names: str, default: int) -> int:
    """The first of `names` that is given. Raises CorruptFileError for one that is no whole number."""
    for name in names:
        value = settings.table.get(name)
        if value is not None:
            if type(value) is not int:
                raise _mistyped(name, value, "a whole number")
            return value
    return default


def flag(settings: Settings, name: str, default: bool) -> bool:
    """Raises CorruptFileError for what is neither true nor false."""
    value = settings.table.get(name)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise _mistyped(name, value, "true or false")
    return value


def text(settings: Settings, *names: str, default: str) -> str:
    """The first of `names` that is given, in lower case. Raises CorruptFileError for one that is no text."""
    for name in names:
        value = settings.table.get(name)
        if value is not None:
            if not isinstance(value, str):
                raise _mistyped(name, value, "a text")
            return value.lower()
    return default


def _mistyped(name: str, value: object, expected: str) -> CorruptFileError:
    return CorruptFileError(f"config.json: {name} of the quantisation is {value!a:.60}, not {expected}.")
