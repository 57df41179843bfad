"""Reading JSON and files that somebody else wrote: every surprise becomes a sentence that names the file."""

from __future__ import annotations

import errno
import json
import os
import stat
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from engine.base.errors import CorruptFileError, FreetokenError, NoRoomError, NotFoundError

MAX_JSON_BYTES = 256 << 20


def open_regular(path: Path) -> int:
    """A read-only descriptor of the regular file at `path`; a directory, pipe or device is refused without waiting.

    Errors: NotFoundError when nothing is there, CorruptFileError when it is no regular file or cannot be read.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        if path.is_symlink():
            raise NotFoundError(
                f"{path} is a link to {os.readlink(path)}, which is not there.", "Fetch the file again."
            ) from None
        raise NotFoundError(f"{path} is not there.") from None
    except OSError as error:
        if lack := resource_error(error, f"{path} cannot be opened"):
            raise lack from None
        remedy = "Check who may read it." if isinstance(error, PermissionError) else ""
        raise CorruptFileError(f"{path} cannot be opened: {os.strerror(error.errno or errno.EIO)}.", remedy) from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise CorruptFileError(f"{path} is not a regular file.")
    return descriptor


def resource_error(error: OSError, what: str) -> FreetokenError | None:
    """What to raise, with `what` failed, where this process lacks something and the file is not to blame; else None."""
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return FreetokenError(f"{what}: too many files are open.", "Raise the limit: ulimit -n 4096")
    if error.errno == errno.ENOMEM:
        return NoRoomError(f"{what}: memory ran out.", "Close other programs, or raise the limit: ulimit -v unlimited")
    return None


def check_readable(path: Path) -> None:
    """Raises as `open_regular` does for a file that cannot be read."""
    os.close(open_regular(path))


def read_small_file(path: Path, limit: int = MAX_JSON_BYTES) -> bytes:
    """All bytes of a file of at most `limit` bytes."""
    with os.fdopen(open_regular(path), "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size > limit:
            raise CorruptFileError(f"{path} has {size} bytes; at most {limit} make sense.")
        try:
            return file.read(limit)
        except OSError as error:
            raise CorruptFileError(f"{path} cannot be read: {os.strerror(error.errno or errno.EIO)}.") from None


def parse_object(text: bytes, where: str) -> dict[str, Any]:
    """The JSON object in `text`. Duplicate keys, NaN, infinities and endless nesting are refused; `where` names it."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        table = dict(pairs)
        if len(table) != len(pairs):
            twice = Counter(name for name, _ in pairs).most_common(1)[0][0]
            raise CorruptFileError(f"{where} holds {twice!a} twice.")
        return table

    def no_constant(name: str) -> float:
        raise CorruptFileError(f"{where} holds {name}, which is not JSON.")

    if not text.strip():
        raise CorruptFileError(f"{where} is empty.")
    try:
        value = json.loads(text, object_pairs_hook=unique, parse_constant=no_constant)
    except (ValueError, RecursionError) as error:
        raise CorruptFileError(f"{where} is not valid JSON: {error}.") from None
    if not isinstance(value, dict):
        raise CorruptFileError(f"{where} is not a JSON object.")
    return value


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object in the file at `path`. Raises as `read_small_file` and `parse_object` do."""
    return parse_object(read_small_file(path), str(path))


class Table:
    """A JSON object read field by field. A missing, mistyped or out-of-range field raises CorruptFileError."""

    def __init__(self, value: object, where: str) -> None:
        if not isinstance(value, dict):
            raise CorruptFileError(f"{where} is not an object.")
        self._table: dict[str, Any] = value
        self.where = where

    def __contains__(self, name: str) -> bool:
        return name in self._table

    def _get(self, name: str) -> Any:
        if name not in self._table:
            raise CorruptFileError(f"{self.where} lacks {name!a}.")
        return self._table[name]

    def integer(self, name: str, low: int, high: int) -> int:
        """A whole number within `low .. high`."""
        value = self._get(name)
        if type(value) is not int or not low <= value <= high:
            raise CorruptFileError(f"{self.where}: {name} is {value!a:.60}, not a number from {low} to {high}.")
        return value

    def text(self, name: str) -> str:
        value = self._get(name)
        if not isinstance(value, str):
            raise CorruptFileError(f"{self.where}: {name} is not a string.")
        return value

    def items(self, name: str) -> list[Any]:
        value = self._get(name)
        if not isinstance(value, list):
            raise CorruptFileError(f"{self.where}: {name} is not a list.")
        return value

    def integers(self, name: str, low: int, high: int) -> tuple[int, ...]:
        """A list of whole numbers, each within `low .. high`."""
        values = self.items(name)
        for value in values:
            if type(value) is not int or not low <= value <= high:
                raise CorruptFileError(f"{self.where}: {name} holds {value!a:.60}, not numbers {low} to {high}.")
        return tuple(values)

    def table(self, name: str) -> Table:
        return Table(self._get(name), f"{self.where}: {name}")

    def tables(self, name: str) -> list[Table]:
        """A list of objects."""
        return [Table(value, f"{self.where}: {name}[{i}]") for i, value in enumerate(self.items(name))]

    def named_tables(self) -> Iterator[tuple[str, Table]]:
        """Each field as an object, with its name."""
        for name, value in self._table.items():
            yield name, Table(value, f"{self.where}: {name!a}")

    def raw(self) -> dict[str, Any]:
        return self._table
