"""The header of a GGUF file: metadata and the list of tensors. The format is ggml's, version 2 and 3, little endian.

Every length is checked against what is left of the file, and against what a header may have, before anything is read:
a damaged or hostile file costs no more, of memory and of the network where it comes from there, than a large header.
"""

from __future__ import annotations

import io
import itertools
import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from engine.base.errors import CorruptFileError, UnsupportedError
from engine.base.units import format_size
from engine.files.codecs import CODECS, FORMS, align
from engine.files.source_file import SourceFile

MAGIC = b"GGUF"
DEFAULT_ALIGNMENT = 32

_STRING, _ARRAY = 8, 9
_SCALARS = {
    0: "<u1",
    1: "<i1",
    2: "<u2",
    3: "<i2",
    4: "<u4",
    5: "<i4",
    6: "<f4",
    7: "?",
    10: "<u8",
    11: "<i8",
    12: "<f8",
}
# ggml's names of its tensor types
TYPE_NAMES = {
    0: "f32", 1: "f16", 2: "q4_0", 3: "q4_1", 6: "q5_0", 7: "q5_1", 8: "q8_0", 9: "q8_1", 10: "q2_k", 11: "q3_k",
    12: "q4_k", 13: "q5_k", 14: "q6_k", 15: "q8_k", 16: "iq2_xxs", 17: "iq2_xs", 18: "iq3_xxs", 19: "iq1_s",
    20: "iq4_nl", 21: "iq3_s", 22: "iq2_s", 23: "iq4_xs", 24: "i8", 25: "i16", 26: "i32", 27: "i64", 28: "f64",
    29: "iq1_m", 30: "bf16", 34: "tq1_0", 35: "tq2_0", 39: "mxfp4", 40: "nvfp4", 41: "q1_0",
}  # fmt: skip
# Those that are forms of ours, under the same name; ggml's nvfp4 is another than the one of that name.
READ_TYPES = (
    "f32", "f16", "bf16", "q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q2_k", "q3_k", "q4_k", "q5_k", "q6_k", "iq4_nl",
    "iq4_xs", "mxfp4",
)  # fmt: skip
_MAX_DIMENSIONS = 4
_READ_BYTES = 1 << 20
_MAX_HEADER_BYTES = 256 << 20  # ten times what the largest vocabularies take
_SMALLEST_PAIR = 13  # bytes: key length, type, one byte of value
_SMALLEST_TENSOR = 24  # bytes: name length, dimensions, type, offset


@dataclass(frozen=True)
class GgufTensor:
    """A tensor: `shape` is row-major (the reverse of what the file lists), `start` its first byte in the file.

    `form` is ggml's name of its type, whether or not it is among READ_TYPES.
    """

    name: str
    form: str
    shape: tuple[int, ...]
    start: int


@dataclass(frozen=True)
class GgufHeader:
    """Metadata by key, and the tensors in file order."""

    metadata: dict[str, Any]
    tensors: tuple[GgufTensor, ...]


def read_gguf_header(source: SourceFile) -> GgufHeader:
    """Reads the header of a GGUF file, which need not be all there: no more than the header is read, and a little.

    Errors: CorruptFileError for a file that is cut or contradicts itself, UnsupportedError for another version or byte
    order; both name the file. A tensor of a type that conversion does not know keeps ggml's name of it as its form.
    """
    path = source.path
    cursor = _Cursor(io.BufferedReader(_Front(source), buffer_size=_READ_BYTES), source.size, path)
    if cursor.take(4) != MAGIC:
        raise CorruptFileError(f"{path} is not a GGUF file.")
    _check_version(cursor)
    tensor_count = cursor.count("tensors", _SMALLEST_TENSOR)
    pair_count = cursor.count("metadata entries", _SMALLEST_PAIR)
    metadata: dict[str, Any] = {}
    for _ in range(pair_count):
        key = cursor.string()
        if key in metadata:
            raise CorruptFileError(f"{path} holds the metadata {key!a:.120} twice.")
        metadata[key] = cursor.value(cursor.unsigned(4))
    listed = [_read_tensor(cursor) for _ in range(tensor_count)]
    data_start = align(cursor.position, _alignment(metadata, path))
    return GgufHeader(metadata, _placed(listed, data_start, cursor))


class _Front(io.RawIOBase):
    """The bytes of a source from the first on, as a stream."""

    def __init__(self, source: SourceFile) -> None:
        self._source = source
        self._position = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        out = np.frombuffer(buffer, np.uint8)[: self._source.size - self._position]
        self._source.read(self._position, out)
        self._position += len(out)
        return len(out)


class _Cursor:
    """A position in the file; nothing is read past its end."""

    def __init__(self, file: BinaryIO, size: int, path: Path) -> None:
        self._file = file
        self.size = size
        self.path = path
        self.position = 0

    def take(self, count: int) -> bytes:
        if count > self.size - self.position:
            raise CorruptFileError(
                f"{self.path} is short: byte {self.position + count} is needed, it ends at {self.size}."
            )
        self._require_header(self.position + count)
        data = self._file.read(count)
        if len(data) != count:
            raise CorruptFileError(f"{self.path} became short while it was read.")
        self.position += count
        return data

    def _require_header(self, stop: int) -> None:
        """Raises CorruptFileError when a header that goes on to byte `stop` is longer than any."""
        if stop > _MAX_HEADER_BYTES:
            raise CorruptFileError(
                f"{self.path} has a header of more than {format_size(_MAX_HEADER_BYTES)}, which makes no sense.",
                "Fetch it again, or take another copy of the model.",
            )

    def unsigned(self, width: int) -> int:
        return int.from_bytes(self.take(width), "little")

    def count(self, what: str, smallest: int) -> int:
        """A count of things that take at least `smallest` bytes each."""
        count = self.unsigned(8)
        if count * smallest > self.size - self.position:
            raise CorruptFileError(f"{self.path} claims {count} {what}, more than {self.size} bytes can hold.")
        return count

    def string(self) -> str:
        data = self.take(self.count("characters of a string", 1))
        try:
            return data.decode()
        except UnicodeDecodeError:
            raise CorruptFileError(f"{self.path} holds text that is not UTF-8: {data[:60]!r}.") from None

    def _strings(self, count: int) -> list[str]:
        """As `string`, many times over: a vocabulary has hundreds of thousands."""
        read, size, position = self._file.read, self.size, self.position
        strings = []
        try:
            for _ in range(count):
                length = int.from_bytes(read(8), "little")
                position += 8 + length
                if position > size:
                    raise CorruptFileError(f"{self.path} is short: byte {position} is needed, it ends at {size}.")
                self._require_header(position)
                strings.append(read(length).decode())
        except UnicodeDecodeError as error:
            raise CorruptFileError(f"{self.path} holds text that is not UTF-8: {error.object[:60]!r}.") from None
        self.position = position
        return strings

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.string()
        if kind == _ARRAY:
            return self._array()
        return self._scalars(kind, 1)[0]

    def _array(self) -> list[Any]:
        kind = self.unsigned(4)
        if kind == _STRING:
            return self._strings(self.count("strings", 8))
        if kind == _ARRAY:
            raise UnsupportedError(f"{self.path} holds an array of arrays in its metadata.")
        return self._scalars(kind, self.count("numbers", self._scalar_bytes(kind)))

    def _scalar_bytes(self, kind: int) -> int:
        if kind not in _SCALARS:
            raise CorruptFileError(f"{self.path} holds metadata of the unknown type {kind}.")
        return np.dtype(_SCALARS[kind]).itemsize

    def _scalars(self, kind: int, count: int) -> list[Any]:
        data = self.take(self._scalar_bytes(kind) * count)
        numbers: list[Any] = np.frombuffer(data, _SCALARS[kind]).tolist()
        return numbers


def _check_version(cursor: _Cursor) -> None:
    raw = cursor.take(4)
    version = struct.unpack("<I", raw)[0]
    if version & 0xFFFF == 0 and version:
        raise UnsupportedError(f"{cursor.path} is a big-endian GGUF file.", "Use the little-endian file.")
    if version not in (2, 3):
        raise UnsupportedError(f"{cursor.path} is of GGUF version {version}; versions 2 and 3 can be read.")


def _alignment(metadata: dict[str, Any], path: Path) -> int:
    value = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    if type(value) is not int or value < 1 or value & (value - 1) or value > 1 << 20:
        raise CorruptFileError(f"{path} asks for an alignment of {value!a:.40}, which is no power of two.")
    return value


def _read_tensor(cursor: _Cursor) -> GgufTensor:
    """One entry of the list; `start` is still relative to the data."""
    name = cursor.string()
    dimensions = cursor.unsigned(4)
    if not 1 <= dimensions <= _MAX_DIMENSIONS:
        raise CorruptFileError(f"{cursor.path}: tensor {name!a:.120} has {dimensions} dimensions.")
    shape = tuple(reversed([cursor.unsigned(8) for _ in range(dimensions)]))
    kind = cursor.unsigned(4)
    return GgufTensor(name, TYPE_NAMES.get(kind, f"ggml type {kind}"), shape, cursor.unsigned(8))


def _placed(listed: list[GgufTensor], data_start: int, cursor: _Cursor) -> tuple[GgufTensor, ...]:
    """The tensors with absolute starts, each checked to lie in the file and apart from the others."""
    placed: dict[str, GgufTensor] = {}
    spans = []
    for tensor in listed:
        if tensor.name in placed:
            raise CorruptFileError(f"{cursor.path} holds the tensor {tensor.name!a:.120} twice.")
        start = data_start + tensor.start
        size = _tensor_bytes(tensor, cursor.path)
        if start + size > cursor.size:
            raise CorruptFileError(
                f"{cursor.path} is short: tensor {tensor.name!a:.120} ends at byte {start + size} of {cursor.size}.",
                "Fetch it again.",
            )
        placed[tensor.name] = GgufTensor(tensor.name, tensor.form, tensor.shape, start)
        spans.append((start, start + size, tensor.name))
    spans.sort()
    for (_, end, first), (start, _, second) in itertools.pairwise(spans):
        if start < end:
            raise CorruptFileError(f"{cursor.path}: the tensors {first!a:.120} and {second!a:.120} overlap.")
    return tuple(placed.values())


def _tensor_bytes(tensor: GgufTensor, path: Path) -> int:
    """Bytes of a tensor; 0 for a type whose size is not known here."""
    if 0 in tensor.shape:
        raise CorruptFileError(f"{path}: tensor {tensor.name!a:.120} is empty.")
    if tensor.form not in READ_TYPES:
        return 0
    cols = tensor.shape[-1]
    form = FORMS[tensor.form]
    if not CODECS[form.codec].valid_cols(cols):
        raise CorruptFileError(f"{path}: tensor {tensor.name!a:.120} has rows of no whole blocks of {tensor.form}.")
    return math.prod(tensor.shape[:-1]) * form.row_bytes(cols)
