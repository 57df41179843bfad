"""Reading ftw.json, whoever wrote it: nothing in it is believed before it has been checked."""

from __future__ import annotations

import re

from engine.base.errors import CorruptFileError, UnsupportedError
from engine.files.codecs import CODECS
from engine.files.ftw.manifest import (
    DENSE_NAME,
    FORMAT,
    MANIFEST_NAME,
    RECORD_ALIGNMENT,
    VERSION,
    BankInfo,
    DenseInfo,
    Field,
    FileInfo,
    Manifest,
    Shape,
    Shard,
    record_size,
    sealed,
)
from engine.files.untrusted import Table, parse_object

_HASH_DIGITS = 32
_FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,200}")
_TENSOR_NAME = re.compile(r"[\x21-\x7e]{1,300}")
_HASHES = re.compile(r"(?:[0-9a-f]{32})+")
_MAX_DIMENSION = 1 << 31
_MAX_COUNT = 1 << 24


def read_manifest(text: bytes, where: str) -> Manifest:
    """The manifest in `text`, checked against itself; `where` is the file's name in errors.

    Errors: UnsupportedError for another version or an unknown codec, CorruptFileError for everything else.
    """
    table = Table(parse_object(text, where), where)
    if table.text("format") != FORMAT:
        raise CorruptFileError(
            f"{where} is not the manifest of an FTW folder: its format is {table.text('format')!a:.60}."
        )
    version = table.integer("version", 0, 1 << 31)
    if version != VERSION:
        raise UnsupportedError(
            f"{where} is of FTW version {version}; this release reads version {VERSION}.",
            "Update freetoken, or convert the model again.",
        )
    _check_seal(text, where)
    dense = table.table("dense")
    if dense.text("file") != DENSE_NAME:
        raise CorruptFileError(f"{where} names {dense.text('file')!a:.60} instead of {DENSE_NAME}.")
    manifest = Manifest(
        spec=table.table("spec").raw(),
        dense={_tensor_name(name, where): _dense_info(info) for name, info in dense.table("tensors").named_tables()},
        dense_bytes=dense.integer("bytes", 8, 1 << 50),
        banks=tuple(_bank_info(bank) for bank in table.tables("banks")),
        files={
            _file_name(name, where): FileInfo(info.integer("bytes", 0, 1 << 40), _hash(info))
            for name, info in table.table("files").named_tables()
        },
        provenance=table.table("provenance").raw(),
    )
    _check_names_differ(manifest, where)
    _check_layers(manifest, where)
    return manifest


def _check_seal(text: bytes, where: str) -> None:
    start = text.rfind(b'\n"hash": ') + 1
    if start == 0 or text != sealed(text[:start]):
        raise CorruptFileError(
            f"{where} was altered: its last line is not the hash of the lines before it.", "Convert the model again."
        )


def _check_names_differ(manifest: Manifest, where: str) -> None:
    names = [MANIFEST_NAME, DENSE_NAME, *manifest.files, *(s.file for bank in manifest.banks for s in bank.shards)]
    if len(set(names)) != len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise CorruptFileError(f"{where} names {twice} for two different contents.")


def _check_layers(manifest: Manifest, where: str) -> None:
    layers = sorted(layer for bank in manifest.banks for layer in bank.layers)
    if layers != list(range(len(layers))):
        raise CorruptFileError(f"{where}: the banks do not hold each MoE layer once.")


def _tensor_name(name: str, where: str) -> str:
    if not _TENSOR_NAME.fullmatch(name):
        raise CorruptFileError(f"{where} holds a tensor with the impossible name {name!a:.60}.")
    return name


def _file_name(name: str, where: str) -> str:
    if not _FILE_NAME.fullmatch(name):
        raise CorruptFileError(f"{where} names the file {name!a:.60}, which is no plain file name.")
    return name


def _hash(table: Table) -> str:
    digits = table.text("hash")
    if len(digits) != _HASH_DIGITS or not _HASHES.fullmatch(digits):
        raise CorruptFileError(f"{table.where}: hash is not {_HASH_DIGITS} hexadecimal digits.")
    return digits


def _shape(table: Table) -> Shape:
    if "length" in table:
        return Shape("f32", 1, table.integer("length", 1, _MAX_DIMENSION), vector=True)
    codec = table.text("codec")
    if codec not in CODECS:
        raise UnsupportedError(f"{table.where} is in the codec {codec!a:.60}, which this release does not know.")
    shape = Shape(codec, table.integer("rows", 1, _MAX_DIMENSION), table.integer("cols", 1, _MAX_DIMENSION))
    if not CODECS[codec].valid_cols(shape.cols):
        raise CorruptFileError(f"{table.where}: {shape.cols} columns are not whole blocks of {codec}.")
    return shape


def _dense_info(table: Table) -> DenseInfo:
    return DenseInfo(_shape(table), _hash(table))


def _bank_info(table: Table) -> BankInfo:
    fields = tuple(_fields(table))
    record_bytes = table.integer("record_bytes", RECORD_ALIGNMENT, 1 << 40)
    if record_bytes != record_size(fields):
        raise CorruptFileError(
            f"{table.where}: records have {record_bytes} bytes, but their fields need {record_size(fields)}."
        )
    layers = table.integers("layers", 0, _MAX_COUNT)
    if not layers or list(layers) != sorted(set(layers)):
        raise CorruptFileError(f"{table.where}: layers must ascend, and there must be one.")
    experts = table.integer("experts_per_layer", 1, _MAX_COUNT)
    shards = tuple(_shard(shard, record_bytes) for shard in table.tables("shards"))
    records = sum(len(shard.hashes) for shard in shards)
    if records != experts * len(layers):
        raise CorruptFileError(f"{table.where}: the shards hold {records} records instead of {experts * len(layers)}.")
    return BankInfo(fields, record_bytes, experts, layers, shards)


def _fields(table: Table) -> list[Field]:
    fields: list[Field] = []
    end = 0
    for entry in table.tables("fields"):
        field = Field(_tensor_name(entry.text("name"), entry.where), _shape(entry), entry.integer("offset", 0, 1 << 40))
        if field.offset != end:
            what = "leaves a hole before" if field.offset > end else "overlaps the field before"
            raise CorruptFileError(f"{entry.where}: {field.name} {what} byte {field.offset}; it should start at {end}.")
        end += field.stored_bytes
        fields.append(field)
    if not fields or len({field.name for field in fields}) != len(fields):
        raise CorruptFileError(f"{table.where}: fields must be there, each once.")
    return fields


def _shard(table: Table, record_bytes: int) -> Shard:
    digits = table.text("hashes")
    if not _HASHES.fullmatch(digits):
        raise CorruptFileError(f"{table.where}: hashes are not {_HASH_DIGITS} hexadecimal digits a record.")
    hashes = tuple(digits[i : i + _HASH_DIGITS] for i in range(0, len(digits), _HASH_DIGITS))
    size = table.integer("bytes", record_bytes, 1 << 50)
    if size != len(hashes) * record_bytes:
        raise CorruptFileError(f"{table.where}: {size} bytes are not {len(hashes)} records of {record_bytes}.")
    return Shard(_file_name(table.text("file"), table.where), size, hashes)
