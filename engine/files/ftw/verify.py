"""Checking every byte of an FTW folder against the hashes in its manifest."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import xxhash

from engine.base.errors import CorruptFileError
from engine.base.progress import Progress
from engine.files.ftw.manifest import DENSE_NAME, Manifest
from engine.files.ftw.opening import open_model
from engine.files.safetensors_header import read_header
from engine.files.source_file import LocalFile
from engine.spec.schema import Spec

_CHUNK_BYTES = 4 << 20


@dataclass(frozen=True)
class Problem:
    """Bytes `start .. stop` of a file that are not what was written: what they are, and the hash they should have.

    `found` is the xxh3-128 that they have, "" where they could not be read, and `unreadable` then says why.
    """

    file: Path
    start: int
    stop: int
    what: str
    expected: str
    found: str = ""
    unreadable: str = ""

    def sentence(self) -> str:
        """For people."""
        place = f"{self.file}: {self.what} (bytes {self.start} to {self.stop})"
        if self.unreadable:
            return f"{place} cannot be checked: {self.unreadable}"
        return f"{place} was altered: its xxh3-128 should be {self.expected} and is {self.found}."


@dataclass(frozen=True)
class Report:
    """How many bytes were hashed, and each thing that is not what it was."""

    checked_bytes: int
    problems: tuple[Problem, ...]


@dataclass(frozen=True)
class _Range:
    """Bytes `start .. stop` of a file, what they are, and the hash they should have."""

    file: str
    start: int
    stop: int
    what: str
    hash: str


def verify(folder: Path, progress: Progress) -> Report:
    """Hashes every tensor, record and file of `folder`; `progress` gets the bytes done and the bytes there are.

    Raises as `open_model` does when the folder does not even fit together; altered bytes are listed in the report.
    """
    model = open_model(folder)
    Spec.from_json(model.spec)
    ranges = list(_ranges(folder, model.manifest))
    total = sum(item.stop - item.start for item in ranges)
    done = 0
    problems: list[Problem] = []
    files: dict[str, LocalFile] = {}
    buffer = np.empty(_CHUNK_BYTES, np.uint8)
    try:
        for item in ranges:
            if item.file not in files:
                files[item.file] = LocalFile(folder / item.file)
            hasher = xxhash.xxh3_128()
            try:
                for start in range(item.start, item.stop, _CHUNK_BYTES):
                    chunk = buffer[: min(_CHUNK_BYTES, item.stop - start)]
                    files[item.file].read(start, chunk)
                    hasher.update(chunk.data)
                    progress(done + start + len(chunk) - item.start, total)
            except CorruptFileError as error:
                problems.append(_problem(folder, item, unreadable=error.message))
            else:
                if hasher.hexdigest() != item.hash:
                    problems.append(_problem(folder, item, found=hasher.hexdigest()))
            done += item.stop - item.start
    finally:
        for file in files.values():
            file.close()
    return Report(total, tuple(problems))


def _problem(folder: Path, item: _Range, found: str = "", unreadable: str = "") -> Problem:
    return Problem(folder / item.file, item.start, item.stop, item.what, item.hash, found, unreadable)


def _ranges(folder: Path, manifest: Manifest) -> Iterator[_Range]:
    """Everything that has a hash, in the order in which it lies on disk."""
    dense = LocalFile(folder / DENSE_NAME)
    try:
        entries = read_header(dense.read_bytes, dense.size, str(dense.path), "Convert the model again.")
    finally:
        dense.close()
    for name, entry in entries.items():
        yield _Range(DENSE_NAME, entry.start, entry.stop, f"the tensor {name}", manifest.dense[name].hash)
    for bank in manifest.banks:
        index = 0
        for shard in bank.shards:
            for place, digest in enumerate(shard.hashes):
                start = place * bank.record_bytes
                layer, expert = bank.layers[index // bank.experts_per_layer], index % bank.experts_per_layer
                what = f"the record of expert {expert} of MoE layer {layer}"
                yield _Range(shard.file, start, start + bank.record_bytes, what, digest)
                index += 1
    for name, info in manifest.files.items():
        yield _Range(name, 0, info.size, "the file", info.hash)
