"""The header of a safetensors file: eight bytes of length, then JSON that names each tensor's type, shape and bytes."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from engine.base.errors import CorruptFileError
from engine.files.codecs import align
from engine.files.untrusted import Table, parse_object

_POINTER = b"version https://git-lfs.github.com/spec/"
MAX_HEADER_BYTES = 100_000_000
_MAX_DIMENSION = 1 << 40

# bits a value of each type that the format names
DTYPE_BITS = {
    "BOOL": 8, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8,
    "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8,
    "I16": 16, "U16": 16, "F16": 16, "BF16": 16, "I32": 32, "U32": 32, "F32": 32, "C64": 64, "F64": 64, "I64": 64,
    "U64": 64,
}  # fmt: skip


REMEDY = "Fetch that file again; if it is so in the original, use another checkpoint."

Read = Callable[[int, int], bytes | memoryview]
"""Gives the bytes `start .. stop` of a file."""


@dataclass(frozen=True)
class Entry:
    """One tensor: its bytes are `start .. stop` of the file."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int


def read_header(read: Read, size: int, where: str, remedy: str = REMEDY) -> dict[str, Entry]:
    """The tensors of a safetensors file of `size` bytes, in file order; `read(start, stop)` gives its bytes.

    Raises CorruptFileError, naming `where`, for a header that is cut, too long or no JSON, and for tensors that
    overlap, leave a hole, exceed the file, or do not fill it.
    """
    try:
        return _read_header(read, size, where)
    except CorruptFileError as error:
        raise CorruptFileError(error.message, error.remedy or remedy) from None


def _read_header(read: Read, size: int, where: str) -> dict[str, Entry]:
    if size < 8:
        raise CorruptFileError(
            f"{where} is too short to be a safetensors file: it has {size} bytes, at least 8 belong."
        )
    if bytes(read(0, min(size, len(_POINTER)))) == _POINTER:
        raise CorruptFileError(
            f"{where} is only a pointer of git's large-file storage to the file: it has {size} bytes.",
            "Fetch the file itself, with: git lfs pull, or from where the checkpoint came.",
        )
    length = int.from_bytes(read(0, 8), "little")
    if length > MAX_HEADER_BYTES:
        raise CorruptFileError(
            f"{where} is not a safetensors file: its header would have {length} bytes, at most {MAX_HEADER_BYTES} make "
            "sense."
        )
    if 8 + length > size:
        raise CorruptFileError(f"{where} is short: its header ends at byte {8 + length}, the file at {size}.")
    text = bytes(read(8, 8 + length))
    table = parse_object(text, f"the header of {where}")
    table.pop("__metadata__", None)
    data_start = 8 + length
    entries = {
        name: _entry(Table(value, f"{where}: tensor {name!a:.120}"), data_start) for name, value in table.items()
    }
    return _checked(entries, data_start, size, where)


def _entry(table: Table, data_start: int) -> Entry:
    dtype = table.text("dtype")
    if dtype not in DTYPE_BITS:
        raise CorruptFileError(f"{table.where} is of the unknown type {dtype!a:.40}.")
    shape = table.integers("shape", 0, _MAX_DIMENSION)
    offsets = table.integers("data_offsets", 0, 1 << 60)
    if len(offsets) != 2 or len(shape) > 16:
        raise CorruptFileError(f"{table.where} has {len(offsets)} offsets and {len(shape)} dimensions.")
    start, stop = offsets
    bits = math.prod(shape) * DTYPE_BITS[dtype]
    if bits % 8 or stop - start != bits // 8:
        raise CorruptFileError(f"{table.where} holds {stop - start} bytes; {dtype} {list(shape)} needs {bits / 8:g}.")
    return Entry(dtype, shape, data_start + start, data_start + stop)


def _checked(entries: Mapping[str, Entry], data_start: int, size: int, where: str) -> dict[str, Entry]:
    ordered = dict(sorted(entries.items(), key=lambda item: (item[1].start, item[1].stop)))
    end = data_start
    for name, entry in ordered.items():
        if entry.start != end:
            what = "a hole before it" if entry.start > end else "an overlap with the tensor before"
            raise CorruptFileError(
                f"{where}: tensor {name!a:.120} has {what}: it begins at byte {entry.start} instead of {end}."
            )
        end = entry.stop
    if end > size:
        raise CorruptFileError(
            f"{where} is short: it should have {end} bytes and has {size}. The first tensor that is not all there is "
            f"{_cut(ordered, size)!a:.120}."
        )
    if end < size:
        raise CorruptFileError(
            f"{where} has {size - end} bytes that belong to no tensor: it should have {end} bytes and has {size}."
        )
    return ordered


def _cut(entries: Mapping[str, Entry], size: int) -> str:
    """The first tensor that does not lie within `size` bytes."""
    return next(name for name, entry in entries.items() if entry.stop > size)


def build_header(tensors: Iterable[tuple[str, str, tuple[int, ...]]], alignment: int) -> bytes:
    """A header for (name, type, shape) tensors laid end to end; spaces make the data start at a multiple of it."""
    table: dict[str, object] = {}
    offset = 0
    for name, dtype, shape in tensors:
        size = math.prod(shape) * DTYPE_BITS[dtype] // 8
        table[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(table, separators=(",", ":"), ensure_ascii=True).encode("ascii")
    text = text.ljust(align(8 + len(text), alignment) - 8)
    return len(text).to_bytes(8, "little") + text
