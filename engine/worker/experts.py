"""The experts on a device while a worker serves: what happened to them in each step, and how misses are divided next.

The device says how many experts of each layer were hits, were filled and went to the CPU. How long both branches took
comes from a clock: on a simulated device that of a virtual machine, whose seconds are called virtual wherever they
show.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from engine.experts.balance import Balancer
from engine.experts.contention import VirtualMachine
from engine.experts.split import Split
from engine.program.executor import Executor, Ints
from engine.worker.protocol import COUNTED_EXPERTS, ExpertWork

if TYPE_CHECKING:  # a worker on the cpu starts without any of the device's
    from engine.experts.hybrid import BranchSeconds
    from engine.program.device.experts import ExpertRoom

DISTINCT, HITS, MISSES, FILLS, CPU = range(5)
"""Columns of `layer_counts`."""
_RECENT = 0.98  # what a step's hits still weigh in the hit rate of now when the next one has come


class CachingExecutor(Executor, Protocol):
    """An executor that keeps experts in the memory of a device. All calls come between two steps."""

    def experts(self) -> Sequence[ExpertRoom]:
        """The room of each bank."""
        ...

    def resize_experts(self, slots: Sequence[int]) -> None:
        """Give each bank so many slots, keeping the hottest records. NoRoomError, and nothing changes."""
        ...

    def set_split(self, split: Split) -> None:
        """Divide the misses of the next steps in this way."""
        ...

    def layer_counts(self) -> Ints:
        """What happened in the last step, [MoE layers, 5]: experts in all, hits, misses, fills, left to the CPU."""
        ...

    @property
    def is_streaming(self) -> bool:
        """Whether the last step brought whole layers of experts instead of what it routed to."""
        ...


@dataclass(frozen=True)
class BranchTimes:
    """What both branches of a step's misses moved, and how long they were busy, in bytes and seconds.

    `step_seconds` is the time of the whole step where the clock knows it, else 0.
    """

    link_bytes: int = 0
    link_seconds: float = 0.0
    host_bytes: int = 0
    host_seconds: float = 0.0
    step_seconds: float = 0.0


class BranchClock(Protocol):
    """Says how long the branches of the last step took."""

    @property
    def name(self) -> str:
        """Of the virtual machine whose seconds these are; "" for measured ones."""
        ...

    def times(self, counts: Ints) -> BranchTimes:
        """Those of a step with these `layer_counts`."""
        ...


class VirtualClock:
    """The clock of a virtual machine. `record_bytes` are those of each MoE layer's bank."""

    def __init__(self, machine: VirtualMachine, record_bytes: Sequence[int]) -> None:
        self.machine = machine
        self._record_bytes = tuple(record_bytes)
        self._known: dict[tuple[int, int, int], tuple[float, float]] = {}

    @property
    def name(self) -> str:
        return self.machine.name

    def times(self, counts: Ints) -> BranchTimes:
        """Layers follow each other, so their seconds add up; one that misses nothing still costs a launch.

        What hits and dense weights take is left out: it is the same however misses are divided.
        """
        link_bytes = host_bytes = 0
        link_seconds = host_seconds = 0.0
        seconds = len(counts) * self.machine.fill_latency
        for (_, _, misses, fills, _), size in zip(counts.tolist(), self._record_bytes, strict=True):
            link, host = self._layer(misses, fills, size)
            link_bytes += fills * size
            host_bytes += (misses - fills) * size
            link_seconds += link
            host_seconds += host
            seconds += max(link, host)
        return BranchTimes(link_bytes, link_seconds, host_bytes, host_seconds, seconds)

    def _layer(self, misses: int, fills: int, size: int) -> tuple[float, float]:
        key = (misses, fills, size)
        if key not in self._known:
            self._known[key] = self.machine.times(misses, fills, size)
        return self._known[key]


class TimedBranches(Protocol):
    """An executor that knows how long its branches took."""

    def take_seconds(self) -> BranchSeconds:
        """Since the last call."""
        ...


class StampClock:
    """The device's own timer, which stamps fills, and the worker's clock around what it computes."""

    name = ""

    def __init__(self, executor: TimedBranches, record_bytes: Sequence[int]) -> None:
        self._executor = executor
        self._record_bytes = np.asarray(record_bytes, np.int64)

    def times(self, counts: Ints) -> BranchTimes:
        """Layers follow each other, so their seconds add up; those of layers that filled nothing are left out."""
        taken = self._executor.take_seconds()
        fills, computed = counts[:, FILLS], counts[:, CPU]
        return BranchTimes(
            link_bytes=int(fills @ self._record_bytes),
            link_seconds=float(taken.fills[fills > 0].sum()),
            host_bytes=int(computed @ self._record_bytes),
            host_seconds=taken.host if computed.any() else 0.0,
        )


class CachedExperts:
    """Counts what happens to the experts of a device, and lets `balancer` divide the misses of the next steps."""

    def __init__(self, executor: CachingExecutor, clock: BranchClock, balancer: Balancer) -> None:
        self._executor = executor
        self._clock = clock
        self._balancer = balancer
        self._totals = dict.fromkeys(COUNTED_EXPERTS, 0.0)
        self._recent_hits = self._recent_experts = 0.0
        executor.set_split(balancer.split)

    @property
    def slots(self) -> tuple[int, ...]:
        return tuple(room.slots for room in self._executor.experts())

    def resize_experts(self, slots: Sequence[int]) -> None:
        self._executor.resize_experts(slots)

    @property
    def totals(self) -> Mapping[str, float]:
        """Of `COUNTED_EXPERTS`, since the start."""
        return self._totals

    def work(self) -> ExpertWork:
        """What happened since the start."""
        balancer = self._balancer
        return ExpertWork(dict(self._totals), balancer.split.fraction, balancer.why, self._clock.name)

    def after_step(self, tokens: int, seconds: float) -> None:
        """Take in the step of `tokens` tokens that has just ended, and divide the next one's misses.

        `seconds` is how long it took here; a virtual clock has seconds of its own.
        """
        counts = self._executor.layer_counts()
        times = self._clock.times(counts)
        if self._executor.is_streaming:
            self._count_moved(times)  # nobody missed anything, and nothing was divided
            return
        self._count(counts, times)
        if not times.link_seconds and not times.host_seconds:
            return  # nothing to balance by
        took = times.step_seconds if self._clock.name else seconds
        split = self._balancer.observe(counts.tolist(), times.link_seconds, times.host_seconds, took, tokens)
        if split is not None:
            self._executor.set_split(split)

    def _count(self, counts: Ints, times: BranchTimes) -> None:
        added = counts.sum(axis=0, dtype=np.int64)
        values = {
            "hits": added[HITS],
            "misses": added[MISSES],
            "fills": added[FILLS],
            "cpu_experts": added[CPU],
            "plans": len(counts),
        }
        for name, value in values.items():
            self._totals[name] += float(value)
        self._count_moved(times)
        self._recent_hits = self._recent_hits * _RECENT + float(added[HITS])
        self._recent_experts = self._recent_experts * _RECENT + float(added[HITS] + added[MISSES])

    def _count_moved(self, times: BranchTimes) -> None:
        self._totals["link_bytes"] += times.link_bytes
        self._totals["link_seconds"] += times.link_seconds
        self._totals["host_bytes"] += times.host_bytes
        self._totals["host_seconds"] += times.host_seconds

    def values(self) -> dict[str, float]:
        """What `Stats` tells of them; rates and shares that no step has shown yet are absent.

        The hit rate is that of now: a step counts for half of what one does that came 34 steps later.
        """
        totals = self._totals
        shares = {
            "hit_rate": (self._recent_hits, self._recent_experts),
            "misses_per_layer": (totals["misses"], totals["plans"]),
            "fills_per_layer": (totals["fills"], totals["plans"]),
            "cpu_share": (totals["cpu_experts"], totals["hits"] + totals["misses"]),
            "link_gbps": (totals["link_bytes"] / 1e9, totals["link_seconds"]),
            "host_gbps": (totals["host_bytes"] / 1e9, totals["host_seconds"]),
        }
        return {name: part / whole for name, (part, whole) in shares.items() if whole > 0}
