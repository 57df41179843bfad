"""ftw.json: what an FTW folder holds, and how it is written. The format is described in docs/ftw.md."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import xxhash

from engine.files.codecs import CODECS, align

MANIFEST_NAME = "ftw.json"
DENSE_NAME = "dense.safetensors"
FORMAT = "ftw"
VERSION = 2
RECORD_ALIGNMENT = 4096
FIELD_ALIGNMENT = 64
DENSE_ALIGNMENT = 4096
MAX_SHARD_BYTES = 8 << 30
GATE_UP = "gate_up"


@dataclass(frozen=True)
class Shape:
    """A packed matrix of a codec, or (`vector`) `cols` plain f32 values padded with zeros to 64 bytes.

    `rows` of a `gate_up` field is that of each of its two matrices, whose tiles take turns.
    """

    codec: str
    rows: int
    cols: int
    vector: bool = False

    def stored_bytes(self, copies: int = 1) -> int:
        """Bytes on disk of `copies` matrices of this shape."""
        if self.vector:
            return align(self.cols * 4, FIELD_ALIGNMENT)
        return copies * CODECS[self.codec].packed_bytes(self.rows, self.cols)


@dataclass(frozen=True)
class Field:
    """One tensor of a record and the byte at which it starts in it."""

    name: str
    shape: Shape
    offset: int

    @property
    def stored_bytes(self) -> int:
        return self.shape.stored_bytes(2 if self.name == GATE_UP else 1)


@dataclass(frozen=True)
class Shard:
    """One bank file. `hashes` are the xxh3-128 of its records, in order."""

    file: str
    size: int
    hashes: tuple[str, ...]


@dataclass(frozen=True)
class BankInfo:
    """Records of one layout: `experts_per_layer` for each of `layers` (indices among the MoE layers), in that order."""

    fields: tuple[Field, ...]
    record_bytes: int
    experts_per_layer: int
    layers: tuple[int, ...]
    shards: tuple[Shard, ...]


@dataclass(frozen=True)
class DenseInfo:
    """One tensor of dense.safetensors; `hash` covers its stored bytes."""

    shape: Shape
    hash: str


@dataclass(frozen=True)
class FileInfo:
    """Another file of the folder: tokenizer, chat template, generation config."""

    size: int
    hash: str


@dataclass(frozen=True)
class Manifest:
    """The content of ftw.json."""

    spec: Mapping[str, Any]
    dense: Mapping[str, DenseInfo]
    dense_bytes: int
    banks: tuple[BankInfo, ...]
    files: Mapping[str, FileInfo]
    provenance: Mapping[str, Any]


def record_size(fields: tuple[Field, ...]) -> int:
    """Bytes of a record that holds `fields`."""
    return align(max(field.offset + field.stored_bytes for field in fields), RECORD_ALIGNMENT)


def write_manifest(manifest: Manifest) -> bytes:
    """The bytes of ftw.json: the same manifest always gives the same bytes."""
    content = {
        "format": FORMAT,
        "version": VERSION,
        "spec": manifest.spec,
        "dense": {
            "file": DENSE_NAME,
            "bytes": manifest.dense_bytes,
            "tensors": {name: {**_shape_json(info.shape), "hash": info.hash} for name, info in manifest.dense.items()},
        },
        "banks": [_bank_json(bank) for bank in manifest.banks],
        "files": {name: {"bytes": info.size, "hash": info.hash} for name, info in manifest.files.items()},
        "provenance": manifest.provenance,
    }
    return seal({name: _canonical(value) for name, value in content.items()})


def seal(members: Mapping[str, str]) -> bytes:
    """A JSON object, one member a line, whose last line is the xxh3-128 of all bytes before it."""
    body = "{\n" + "".join(f"{_canonical(name)}: {text},\n" for name, text in members.items())
    return sealed(body.encode("ascii"))


def sealed(head: bytes) -> bytes:
    """`head`, the beginning of a JSON object, with the member `hash` that ends it."""
    return head + _seal_line(head)


def _seal_line(head: bytes) -> bytes:
    return f'"hash": "{xxhash.xxh3_128_hexdigest(head)}"\n}}\n'.encode("ascii")


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def _shape_json(shape: Shape) -> dict[str, Any]:
    if shape.vector:
        return {"length": shape.cols}
    return {"codec": shape.codec, "rows": shape.rows, "cols": shape.cols}


def _bank_json(bank: BankInfo) -> dict[str, Any]:
    return {
        "record_bytes": bank.record_bytes,
        "experts_per_layer": bank.experts_per_layer,
        "layers": list(bank.layers),
        "fields": [{"name": f.name, **_shape_json(f.shape), "offset": f.offset} for f in bank.fields],
        "shards": [{"file": s.file, "bytes": s.size, "hashes": "".join(s.hashes)} for s in bank.shards],
    }
