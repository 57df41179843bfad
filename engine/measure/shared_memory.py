"""Fills and experts at the same time: what each branch of a step takes while the other one runs."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from statistics import median
from threading import Barrier
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from engine import _native
from engine.base.profile import SharedRun
from engine.device.driver import Driver
from engine.experts.cache import FILL_BLOCKS, FILL_THREADS
from engine.measure.native_meter import example_record
from engine.measure.probe import ExpertShape

MISSES = 8
_ALONE = (1, 2, 4, 8)
_SAMPLE_BYTES = 64 << 20  # of one sample: long beside a launch and the start of a thread
_ROUNDS = 5


class SharedMeter(Protocol):
    """Times the two branches of a step of `misses` misses of which `fills` are filled; 0 s for an empty branch."""

    def run(self, misses: int, fills: int) -> tuple[float, float]: ...


def measure_sharing(meter: SharedMeter, rounds: int = _ROUNDS) -> tuple[SharedRun, ...]:
    """Each branch alone, and both together over all q of eight misses, in turns; medians."""
    points = [(n, n) for n in _ALONE] + [(n, 0) for n in _ALONE] + [(MISSES, q) for q in range(1, MISSES)]
    found: dict[tuple[int, int], list[tuple[float, float]]] = {point: [] for point in points}
    for _ in range(rounds):
        for point in points:
            found[point].append(meter.run(*point))
    return tuple(
        SharedRun(misses, fills, median(fill for fill, _ in times), median(cpu for _, cpu in times))
        for (misses, fills), times in found.items()
    )


class DeviceSharedMeter:
    """The fill kernel and the expert kernels on one buffer of pinned records; `close` gives the memory back.

    Raises NoRoomError, CannotPinError.
    """

    def __init__(self, driver: Driver, shape: ExpertShape, threads: int, buffer_bytes: int = 128 << 20) -> None:
        self._random = np.random.default_rng(0)
        self._fields, record = example_record(shape, self._random)
        self.record_bytes = len(record)
        count = max(2 * MISSES, buffer_bytes // self.record_bytes)
        self._records: NDArray[np.uint8] = np.tile(record, count)
        self._count = count
        self._driver = driver
        self._stream = driver.stream("probe")
        self._kernel = driver.kernel("fill")
        self._probe = _native.Probe(threads, "")
        self._pinned = driver.pin(self._records, self._records.nbytes)
        self._slots = driver.allocate(MISSES * self.record_bytes)
        self._tables = driver.allocate(8 + 8 * count + 32)
        driver.upload(self._tables.address, np.array([self._pinned.address], np.uint64))
        self._threads = ThreadPoolExecutor(2)

    def run(self, misses: int, fills: int) -> tuple[float, float]:
        repeats = max(1, _SAMPLE_BYTES // (misses * self.record_bytes))
        start = Barrier(2)
        fill = self._threads.submit(_timed, start, lambda: self._fill(fills, repeats) if fills else None)
        left = misses - fills
        cpu = self._threads.submit(_timed, start, lambda: self._compute(left, repeats) if left else None)
        return (fill.result() / repeats if fills else 0.0), (cpu.result() / repeats if left else 0.0)

    def close(self) -> None:
        """Give the memory back."""
        self._threads.shutdown()
        for part in (self._slots, self._tables):
            part.free()
        self._pinned.free()

    def _fill(self, fills: int, repeats: int) -> None:
        table = self._tables.address
        counts = table + 8 + 8 * self._count
        records = self._random.permutation(self._count).astype(np.int32)
        pairs = np.stack([records, np.arange(self._count, dtype=np.int32) % MISSES], 1)
        self._driver.upload(table + 8, pairs)
        self._driver.upload(counts, np.array([fills, 0, fills, fills, 0, 0, 0, 0], np.int32))
        for repeat in range(repeats):
            first = table + 8 + 8 * (repeat * fills % (self._count - fills))
            sizes = (self._count, self.record_bytes, first, counts, self._slots.address, self.record_bytes)
            self._driver.launch(self._stream, self._kernel, (FILL_BLOCKS, 1, 1), FILL_THREADS, (table, *sizes))
        self._driver.synchronise(self._stream)

    def _compute(self, experts: int, repeats: int) -> None:
        order = np.random.default_rng(1).permutation(self._count).astype(np.int32)
        for repeat in range(repeats):
            first = repeat * experts % (self._count - experts)
            chosen = order[first : first + experts]
            self._probe.experts(self._fields, self.record_bytes, self._records, chosen)


def _timed(start: Barrier, work: Callable[[], None]) -> float:
    start.wait()
    began = time.perf_counter()
    work()
    return time.perf_counter() - began
