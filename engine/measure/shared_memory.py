"""Fills and experts at the same time: what each branch of a step takes while the other one runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from statistics import median
from threading import Barrier
from typing import Protocol

import numpy as np

from engine import _native
from engine.base.profile import LinkRate, Rate, SharedRun
from engine.device.driver import Driver, HostMemory
from engine.experts.cache import FILL_BLOCKS, FILL_THREADS
from engine.measure.native_meter import example_record
from engine.measure.probe import ExpertShape

MISSES = 8
_ALONE = (1, 2, 4, 8)
_SAMPLE_BYTES = 64 << 20  # of one sample: long beside a launch and the start of a thread
_ROUNDS = 5
_PAIRS = 1024  # records in turn, in the order of a table
_COUNTS = 8  # the device's counters of a layer; the third and the fourth are fills


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


class FillLoop:
    """The fill kernel, launched over and over on records in `source`, which is pinned.

    `largest` bytes are those of the largest record; `close` gives the device's memory back. Raises NoRoomError.
    """

    def __init__(self, driver: Driver, source: HostMemory, largest: int) -> None:
        self._driver = driver
        self._source = source
        self._random = np.random.default_rng(0)
        self._stream = driver.stream("probe")
        self._kernel = driver.kernel("fill")
        self._slots = driver.allocate(MISSES * largest)
        self._table = driver.allocate(8 + 8 * _PAIRS + 4 * _COUNTS)
        self._pairs = self._table.address + 8
        self._counts = self._pairs + 8 * _PAIRS
        driver.upload(self._table.address, np.array([source.address], np.uint64))

    @property
    def slots(self) -> int:
        """The device's address of the first of eight slots."""
        return self._slots.address

    def prepare(self, record_bytes: int, fills: int) -> None:
        """Choose records at random, and say that a launch fills so many: nothing of it belongs to the time of fills."""
        records = self._random.integers(0, self._records(record_bytes), _PAIRS, np.int32)
        slots = np.arange(_PAIRS, dtype=np.int32) % MISSES
        self._driver.upload(self._pairs, np.stack([records, slots], 1))
        self._driver.upload(self._counts, np.array([fills, 0, fills, fills, 0, 0, 0, 0], np.int32))

    def run(self, record_bytes: int, fills: int, repeats: int) -> None:
        """So many launches, one after the other; returns when the last has ended."""
        for repeat in range(repeats):
            first = self._pairs + 8 * (repeat * fills % (_PAIRS - fills))
            table = (self._table.address, self._records(record_bytes), record_bytes)
            args = (*table, first, self._counts, self._slots.address, record_bytes)
            self._driver.launch(self._stream, self._kernel, (FILL_BLOCKS, 1, 1), FILL_THREADS, args)
        self._driver.synchronise(self._stream)

    def close(self) -> None:
        """Give the device's memory back."""
        self._slots.free()
        self._table.free()

    def _records(self, record_bytes: int) -> int:
        return len(self._source.array) // record_bytes


class DeviceSharedMeter:
    """The fill kernel and the expert kernels on one buffer of pinned records; `close` gives the memory back.

    `sizes` are the other record sizes of which `link_rates` is asked. Raises NoRoomError.
    """

    def __init__(
        self,
        driver: Driver,
        shape: ExpertShape,
        threads: int,
        sizes: Iterable[int] = (),
        buffer_bytes: int = 512 << 20,
    ) -> None:
        self._random = np.random.default_rng(1)
        self._fields, record = example_record(shape, self._random)
        self.record_bytes = len(record)
        self._sizes = sorted({self.record_bytes, *sizes})
        self._count = max(2 * MISSES, self._sizes[-1] // self.record_bytes + 1, buffer_bytes // self.record_bytes)
        self._source = driver.host(self._count * self.record_bytes)
        self._source.array.reshape(self._count, self.record_bytes)[:] = record
        self._fills = FillLoop(driver, self._source, self._sizes[-1])
        self._probe = _native.Probe(threads, "")
        self._cpu = ThreadPoolExecutor(1)
        self._fills.prepare(self.record_bytes, 1)
        self._fills.run(self.record_bytes, 1, 1)  # what is only slow once

    def link_rates(self, rounds: int = _ROUNDS) -> tuple[LinkRate, ...]:
        """B_P of every record size: eight fills a launch, while nothing else runs."""
        rates: dict[int, list[float]] = {size: [] for size in self._sizes}
        for _ in range(rounds):
            for size, found in rates.items():
                repeats = _repeats(MISSES * size)
                self._fills.prepare(size, MISSES)
                began = time.perf_counter()
                self._fills.run(size, MISSES, repeats)
                found.append(repeats * MISSES * size / (time.perf_counter() - began) / 1e9)
        return tuple(LinkRate(size, Rate.of(found)) for size, found in rates.items())

    def run(self, misses: int, fills: int) -> tuple[float, float]:
        """As `SharedMeter` says: as many steps on end as make a sample, the branches started together."""
        repeats = _repeats(misses * self.record_bytes)
        experts = misses - fills
        order = self._random.integers(0, self._count, (repeats, max(experts, 1)), np.int32)
        if fills:
            self._fills.prepare(self.record_bytes, fills)
        start = Barrier(2 if fills and experts else 1)

        def compute() -> None:
            for chosen in order:
                self._probe.experts(self._fields, self.record_bytes, self._source.array, chosen)

        cpu = self._cpu.submit(_timed, start, compute) if experts else None
        # on this thread, which the device knows already
        fill = _timed(start, lambda: self._fills.run(self.record_bytes, fills, repeats)) if fills else 0.0
        return fill / repeats, (cpu.result() / repeats if cpu else 0.0)

    def close(self) -> None:
        """Give the memory back."""
        self._cpu.shutdown()
        self._fills.close()
        self._source.free()


def _repeats(step_bytes: int) -> int:
    return max(1, _SAMPLE_BYTES // step_bytes)


def _timed(start: Barrier, work: Callable[[], None]) -> float:
    start.wait()
    began = time.perf_counter()
    work()
    return time.perf_counter() - began
