"""The meter of the probe: the executor's own thread pool and kernels, over memory that no cache holds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from engine import _native
from engine.base.errors import DoesNotFitError
from engine.files.codecs import CODECS, align
from engine.files.ftw.manifest import FIELD_ALIGNMENT, GATE_UP, Field, Shape, record_size
from engine.measure.example_rows import random_rows
from engine.measure.probe import ExpertShape

_LOOP_SECONDS = 0.05  # one sample: long beside a wake-up of the pool, short enough for many rounds
_MEMORY_SHARE = 8  # the buffer takes at most this part of the memory that is free
_LEAST_BYTES = 16 << 20


@dataclass(frozen=True)
class _Records:
    """Records of one shape that fill the buffer."""

    fields: tuple[Field, ...]
    record_bytes: int
    count: int


class NativeMeter:
    """Fulfils `engine.measure.probe.Meter` with one buffer of up to `buffer_bytes`, an eighth of `memory_available`.

    Raises DoesNotFitError where not even 16 MiB are free. All records of a shape hold the same weights, each at its own
    address: memory traffic is what counts. They are laid into the buffer when their shape is first measured.
    """

    def __init__(self, memory_available: int, isa: str = "", buffer_bytes: int = 512 << 20) -> None:
        size = min(buffer_bytes, memory_available // _MEMORY_SHARE)
        if size < _LEAST_BYTES:
            raise DoesNotFitError(
                f"The probe needs {_LEAST_BYTES * _MEMORY_SHARE >> 20} MiB of free memory "
                f"and found {memory_available >> 20}.",
                "Close other programs and try again.",
            )
        self._isa = isa
        self._buffer = np.ones(align(size, 1 << 18), np.uint8)
        self._held: ExpertShape | None = None
        self._records: dict[ExpertShape, _Records] = {}
        self._probes: dict[int, _native.Probe] = {}
        self._random = np.random.default_rng(0)

    def read_bandwidth(self, threads: int) -> float:
        """Plain reads of the whole buffer, GB/s."""
        probe = self._probe(threads)
        return _rate(lambda: probe.read(self._buffer))

    def expert_bandwidth(self, shape: ExpertShape, threads: int) -> float:
        """Records of random experts of that shape, run on one token, GB/s."""
        records = self._laid_out(shape)
        order = self._random.permutation(records.count).astype(np.int32)
        probe = self._probe(threads)
        return _rate(lambda: probe.experts(records.fields, records.record_bytes, self._buffer, order))

    def record_bytes(self, shape: ExpertShape) -> int:
        """Size of one expert's record, as a converted model has it."""
        return record_size(_fields(shape))

    def _probe(self, threads: int) -> _native.Probe:
        if threads not in self._probes:
            self._probes[threads] = _native.Probe(threads, self._isa)
        return self._probes[threads]

    def _laid_out(self, shape: ExpertShape) -> _Records:
        if shape not in self._records:
            fields = _fields(shape)
            size = record_size(fields)
            self._records[shape] = _Records(fields, size, len(self._buffer) // size)
        records = self._records[shape]
        if records.count < 1:
            raise DoesNotFitError(
                f"An expert of {records.record_bytes >> 20} MiB does not fit into the probe's buffer."
            )
        if self._held != shape:
            filled = self._buffer[: records.count * records.record_bytes].reshape(records.count, records.record_bytes)
            filled[:] = example_record(shape, self._random)[1]
            self._held = shape
        return records


def _rate(loop: Callable[[], tuple[int, float]]) -> float:
    """GB/s of a loop that is run again until enough time has gone into it."""
    moved, spent = 0, 0.0
    while spent < _LOOP_SECONDS:
        size, seconds = loop()
        moved, spent = moved + size, spent + seconds
    return moved / spent / 1e9


def _fields(shape: ExpertShape) -> tuple[Field, ...]:
    inner = Shape(shape.codec, shape.intermediate_size, shape.hidden_size)
    gate_up = Field(GATE_UP, inner, 0)
    down = Shape(shape.codec, shape.hidden_size, shape.intermediate_size)
    return gate_up, Field("down", down, align(gate_up.stored_bytes, FIELD_ALIGNMENT))


def example_record(shape: ExpertShape, random: np.random.Generator) -> tuple[tuple[Field, ...], NDArray[np.uint8]]:
    """The fields of one expert's record, and its bytes: random weights of ordinary size."""
    fields = _fields(shape)
    record = np.zeros(record_size(fields), np.uint8)
    for field in fields:
        raw = random_rows(field.shape, random)
        tile = CODECS[field.shape.codec].tile_bytes(field.shape.cols)
        stored = record[field.offset : field.offset + field.stored_bytes]
        turns = 2 if field.name == GATE_UP else 1
        for turn in range(turns):
            _native.pack_rows(field.shape.codec, raw, field.shape.cols, stored[turn * tile :], turns * tile)
    return fields, record
