"""Opening an FTW folder: everything is mapped, nothing is copied. The format is described in docs/ftw.md."""

from __future__ import annotations

import mmap
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.base.errors import CorruptFileError, NotFoundError
from engine.files.ftw.manifest import (
    DENSE_NAME,
    FIELD_ALIGNMENT,
    MANIFEST_NAME,
    BankInfo,
    Field,
    Manifest,
)
from engine.files.ftw.manifest_reader import read_manifest
from engine.files.safetensors_header import read_header
from engine.files.untrusted import open_regular, read_small_file, resource_error

AGAIN = "Convert or pull it again: freetoken pull, or convert, with --force."


@dataclass(frozen=True)
class Tensor:
    """A dense tensor: a matrix [rows, cols] packed in `codec`, or (`vector`) `cols` plain f32 values.

    `data` is a read-only view of the mapped file, 64-byte aligned. A vector's data is padded with zeros to a multiple
    of 16 values.
    """

    codec: str
    rows: int
    cols: int
    data: memoryview
    vector: bool = False


@dataclass(frozen=True)
class Bank:
    """Expert records of one layout, `experts_per_layer` for each of `layers`, in that order.

    `layers` are indices among the model's MoE layers. `shards` are the mapped files; each but the last holds
    `records_per_shard` records of `record_bytes` bytes.
    """

    fields: tuple[Field, ...]
    record_bytes: int
    experts_per_layer: int
    layers: tuple[int, ...]
    shards: tuple[memoryview, ...]
    records_per_shard: int

    @property
    def count(self) -> int:
        """Records in the bank."""
        return self.experts_per_layer * len(self.layers)

    def record(self, index: int) -> memoryview:
        """The bytes of one record; `index` is that of its layer in `layers`, times experts a layer, plus the expert."""
        if not 0 <= index < self.count:
            raise IndexError(f"record {index} of {self.count}")
        shard, place = divmod(index, self.records_per_shard)
        return self.shards[shard][place * self.record_bytes : (place + 1) * self.record_bytes]


@dataclass(frozen=True)
class Ftw:
    """An open model. The views stay valid as long as anybody holds them."""

    folder: Path
    manifest: Manifest
    dense: Mapping[str, Tensor]
    banks: tuple[Bank, ...]

    @property
    def spec(self) -> Mapping[str, Any]:
        """The normalised spec, as `engine.spec` wrote it."""
        return self.manifest.spec


def load_manifest(folder: Path) -> Manifest:
    """The checked manifest of an FTW folder. Errors: NotFoundError, CorruptFileError, UnsupportedError."""
    path = folder / MANIFEST_NAME
    try:
        return read_manifest(read_small_file(path), str(path))
    except NotFoundError:
        raise NotFoundError(
            f"{folder} is not an FTW folder: it has no {MANIFEST_NAME}.", "Convert a checkpoint with: freetoken convert"
        ) from None
    except CorruptFileError as error:
        raise CorruptFileError(error.message, error.remedy or AGAIN) from None


def open_model(folder: Path) -> Ftw:
    """Opens and checks an FTW folder: names, sizes and offsets, not hashes (`engine.files.ftw.verify` checks those).

    Errors: NotFoundError when there is none, UnsupportedError for an unknown version or codec, CorruptFileError with
    the file's name for everything that does not fit together.
    """
    manifest = load_manifest(folder)
    for name, info in manifest.files.items():
        _check_size(folder / name, info.size)
    return Ftw(
        folder=folder,
        manifest=manifest,
        dense=_open_dense(folder / DENSE_NAME, manifest),
        banks=tuple(_open_bank(folder, bank) for bank in manifest.banks),
    )


def _map(path: Path, size: int) -> memoryview:
    """The whole of a file of exactly `size` bytes, read-only."""
    descriptor = _open_part(path)
    try:
        _check_descriptor_size(descriptor, path, size)
        return memoryview(mmap.mmap(descriptor, size, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ))
    except OSError as error:
        if lack := resource_error(error, f"{path} cannot be mapped"):
            raise lack from None
        raise CorruptFileError(f"{path} cannot be mapped: {error.strerror}.", AGAIN) from None
    finally:
        os.close(descriptor)


def _open_part(path: Path) -> int:
    """As `open_regular`, but a file that the manifest names and that is absent makes the folder corrupt."""
    try:
        return open_regular(path)
    except NotFoundError:
        raise CorruptFileError(f"{path} is missing.", AGAIN) from None
    except CorruptFileError as error:
        raise CorruptFileError(error.message, error.remedy or AGAIN) from None


def _check_size(path: Path, size: int) -> None:
    descriptor = _open_part(path)
    try:
        _check_descriptor_size(descriptor, path, size)
    finally:
        os.close(descriptor)


def _check_descriptor_size(descriptor: int, path: Path, size: int) -> None:
    actual = os.fstat(descriptor).st_size
    if actual != size:
        what = "short" if actual < size else "too long"
        raise CorruptFileError(f"{path} is {what}: {actual} bytes instead of {size}.", AGAIN)


def _open_dense(path: Path, manifest: Manifest) -> dict[str, Tensor]:
    data = _map(path, manifest.dense_bytes)
    entries = read_header(lambda start, stop: data[start:stop], len(data), str(path), AGAIN)
    if entries.keys() != manifest.dense.keys():
        odd = min(entries.keys() ^ manifest.dense.keys())
        raise CorruptFileError(f"{path} and {MANIFEST_NAME} disagree about the tensor {odd!a:.120}.", AGAIN)
    tensors = {}
    for name, info in manifest.dense.items():
        entry, shape = entries[name], info.shape
        expected = ("F32", (shape.stored_bytes() // 4,)) if shape.vector else ("U8", (shape.stored_bytes(),))
        if (entry.dtype, entry.shape) != expected:
            found = f"{entry.dtype} {list(entry.shape)}"
            raise CorruptFileError(
                f"{path}: tensor {name} is {found} instead of {expected[0]} {list(expected[1])}.", AGAIN
            )
        if entry.start % FIELD_ALIGNMENT:
            raise CorruptFileError(
                f"{path}: tensor {name} starts at byte {entry.start}, not at a multiple of 64.", AGAIN
            )
        tensors[name] = Tensor(shape.codec, shape.rows, shape.cols, data[entry.start : entry.stop], shape.vector)
    return tensors


def _open_bank(folder: Path, info: BankInfo) -> Bank:
    per_shard = len(info.shards[0].hashes)
    for shard in info.shards[:-1]:
        if len(shard.hashes) != per_shard:
            raise CorruptFileError(
                f"{folder / shard.file} holds {len(shard.hashes)} records instead of {per_shard}.", AGAIN
            )
    return Bank(
        fields=info.fields,
        record_bytes=info.record_bytes,
        experts_per_layer=info.experts_per_layer,
        layers=info.layers,
        shards=tuple(_map(folder / shard.file, shard.size) for shard in info.shards),
        records_per_shard=per_shard,
    )
