"""`freetoken probe`: how fast this machine reads memory, and how much of that the expert kernels turn into work (B_H).

All measurements take turns within the time given, because a shared machine changes its speed from one second to the
next: a round does each of them once, and a codec's expert loop stands between two plain read loops over as many bytes.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from engine.base.errors import UsageError
from engine.base.profile import ExpertRate, Machine, Profile, Rate, ReadRate
from engine.base.progress import Progress, silent
from engine.files.codecs import CODECS
from engine.files.ftw.opening import Ftw

_FEWEST_ROUNDS = 3


@dataclass(frozen=True)
class ExpertShape:
    """One expert: gate and up are [intermediate_size, hidden_size], down is [hidden_size, intermediate_size]."""

    codec: str
    hidden_size: int
    intermediate_size: int


CANONICAL_SHAPES = tuple(ExpertShape(codec, 2048, 768) for codec in CODECS)
"""Experts the size of Qwen3-30B-A3B's in every codec, for what no model of this machine is in yet.

All of them take about three seconds a round.
"""

NO_LINK = "B_P, the bandwidth of fills over PCIe, is not measured: there is no GPU here that freetoken can use."


class Meter(Protocol):
    """Times one loop at a time. Rates are GB/s, 1e9 bytes a second."""

    def read_bandwidth(self, threads: int) -> float:
        """Plain reads of memory that no cache holds, by so many threads."""
        ...

    def expert_bandwidth(self, shape: ExpertShape, threads: int) -> float:
        """Bytes of records a second while random experts of that shape run on one token, by so many threads."""
        ...

    def record_bytes(self, shape: ExpertShape) -> int:
        """Size of one expert's record."""
        ...


def shapes_of(ftw: Ftw) -> tuple[ExpertShape, ...]:
    """The expert shapes of a model, one for each of its banks, without repetition."""
    found: dict[ExpertShape, None] = {}
    for bank in ftw.banks:
        down = next(field.shape for field in bank.fields if field.name == "down")
        found[ExpertShape(down.codec, down.rows, down.cols)] = None
    return tuple(found)


def thread_counts(usable_cores: int) -> tuple[int, ...]:
    """1, 2, 4, ... and all of the cores: enough points for the curve of a large machine."""
    if usable_cores < 1:
        raise UsageError(f"threads must be at least 1, not {usable_cores}.", "Example: --threads 4")
    powers = [1 << power for power in range(usable_cores.bit_length()) if 1 << power < usable_cores]
    return (*powers, usable_cores)


def probe(
    meter: Meter,
    machine: Machine,
    measured_at: str,
    threads: int,
    shapes: Sequence[ExpertShape] = CANONICAL_SHAPES,
    seconds: float = 10.0,
    progress: Progress = silent,
) -> Profile:
    """Measure for about `seconds`, at least three rounds. `progress` hears the hundredths of the time gone."""
    counts = thread_counts(threads)
    reads: dict[int, list[float]] = {count: [] for count in counts}
    rates: dict[ExpertShape, list[float]] = {shape: [] for shape in shapes}
    shares: dict[ExpertShape, list[float]] = {shape: [] for shape in shapes}
    for share in _rounds(seconds):
        progress(round(share * 100), 100)
        for count in counts:
            reads[count].append(meter.read_bandwidth(count))
        before = reads[threads][-1]
        for shape in shapes:
            rate = meter.expert_bandwidth(shape, threads)
            after = meter.read_bandwidth(threads)
            rates[shape].append(rate)
            shares[shape].append(rate / ((before + after) / 2))
            reads[threads].append(after)
            before = after
    return Profile(
        machine=machine,
        measured_at=measured_at,
        reads=tuple(ReadRate(count, Rate.of(samples)) for count, samples in reads.items()),
        experts=tuple(
            ExpertRate(
                codec=shape.codec,
                hidden_size=shape.hidden_size,
                intermediate_size=shape.intermediate_size,
                record_bytes=meter.record_bytes(shape),
                threads=threads,
                rate=Rate.of(rates[shape]),
                share=Rate.of(shares[shape]),
            )
            for shape in shapes
        ),
    )


def _rounds(seconds: float) -> Iterator[float]:
    """The share of the time gone at the start of each round; ends when the next round would end too late."""
    started = time.monotonic()
    done = 0
    while True:
        gone = time.monotonic() - started
        if done >= _FEWEST_ROUNDS and gone + gone / done > seconds:
            return
        yield min(1.0, gone / seconds)
        done += 1
