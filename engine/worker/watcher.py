"""Watching the memory of a device while a model serves: when to give experts' room back, and when to take it again.

Other programs come and go, and contexts grow. The decision is pure and slow on purpose. Its two marks and what it aims
at in between keep it from going back and forth: it gives only below the low mark, never takes below the aim, and the
aim lies above the mark; so while others hold still it never gives what it took. Memory that is taken away again
soon after makes it wait twice as long before it takes the next time.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass

from engine.base.units import format_size

MemoryReader = Callable[[], tuple[int, int]]
"""Bytes of the device in all, and those that are free, whoever holds the others."""


@dataclass(frozen=True)
class WatchPolicy:
    """When something moves, and how much. Sizes in bytes, times in seconds."""

    low: int  # free memory below this is given to others
    aim: int  # what is free after that, and what stays free when experts take room
    high: int  # free memory above this is taken, unless less restores all that was given
    step: int  # the most that moves at once
    grain: int  # experts take nothing smaller than this: what whole slots and chunks of memory round away
    give_after: float = 2.0  # low for so long, or contexts short of memory
    take_after: float = 20.0  # high for so long, or contexts with much to spare
    longest_wait: float = 640.0  # what `take_after` grows to beside a program that comes and goes

    def __post_init__(self) -> None:
        assert 0 <= self.low < self.aim < self.high
        assert 0 <= self.grain < self.aim - self.low
        assert self.step > 0
        assert 0 < self.give_after <= self.take_after <= self.longest_wait

    @staticmethod
    def of_device(total: int, wish: int) -> WatchPolicy:
        """For a device of `total` bytes whose experts were given `wish`; the plan should leave `aim` free."""
        low = total // 64
        band = max(total // 64, 1)
        return WatchPolicy(low, low + band, low + 2 * band, step=max(wish // 8, 1), grain=(band - 1) // 4)


@dataclass(frozen=True)
class Wish:
    """What a plan gave: bytes of experts and of context memory. `least`: experts do not go below this."""

    experts: int
    kv: int
    least: int = 0


@dataclass(frozen=True)
class Observation:
    """The device at one moment. `now` in seconds, the others in bytes.

    `kv_wanted` is the context memory that live and waiting requests need together.
    """

    now: float
    free: int
    experts: int
    kv: int
    kv_wanted: int


@dataclass(frozen=True)
class Move:
    """Bytes that experts and context memory should have, and the sentence for the log."""

    experts: int
    kv: int
    why: str


class Lasting:
    """For how long something has been so without a break."""

    def __init__(self) -> None:
        self._since: float | None = None

    def seconds(self, holds: bool, now: float) -> float:
        """So far; negative when it is not so."""
        if not holds:
            self._since = None
        elif self._since is None:
            self._since = now
        return -1.0 if self._since is None else now - self._since

    def restart(self) -> None:
        self._since = None


class Watcher:
    """Decides at safe points. Tell it of every change of the wish, which starts it anew."""

    def __init__(self, policy: WatchPolicy, wish: Wish) -> None:
        self._policy = policy
        self._wish = wish
        self._wait = policy.take_after
        self._taken: float | None = None  # when experts last took room
        self._short, self._low, self._roomy, self._high = Lasting(), Lasting(), Lasting(), Lasting()

    def observe(self, seen: Observation) -> Move | None:
        """What should move now; None: nothing. The caller moves it, or fails to, before it observes again."""
        policy, now = self._policy, seen.now
        short = self._short.seconds(seen.kv_wanted > seen.kv, now)
        low = self._low.seconds(seen.free < policy.low, now)
        roomy = self._roomy.seconds(seen.kv > self._kv_kept(2 * seen.kv_wanted), now)
        high = self._high.seconds(self._takeable(seen) > 0, now)
        move = None
        if low >= policy.give_after:
            move = self._give(seen)
        elif short >= policy.give_after:
            move = self._grow_context(seen)
        elif roomy >= policy.take_after:
            move = self._shrink_context(seen)
        elif high >= self._wait:
            move = self._take(seen)
        if move is not None:
            for lasting in (self._short, self._low, self._roomy, self._high):
                lasting.restart()
        return move

    def _give(self, seen: Observation) -> Move | None:
        size = min(self._policy.step, self._policy.aim - seen.free, seen.experts - self._wish.least)
        if size <= 0:
            return None
        if self._taken is not None:
            soon = seen.now - self._taken < 4 * self._wait
            self._wait = min(2 * self._wait, self._policy.longest_wait) if soon else self._policy.take_after
            self._taken = None
        why = f"{format_size(seen.free)} of the device are free: experts give back {format_size(size)}"
        return Move(seen.experts - size, seen.kv, why)

    def _grow_context(self, seen: Observation) -> Move | None:
        """Room for what is wanted and a quarter more, from what is free and then from experts."""
        lacking = seen.kv_wanted + seen.kv_wanted // 4 - seen.kv
        unused = max(0, seen.free - self._policy.aim)
        from_experts = max(0, min(lacking - unused, self._policy.step, seen.experts - self._wish.least))
        size = min(lacking, unused + from_experts)
        if size <= 0:
            return None
        why = f"contexts need {format_size(seen.kv_wanted)}: they get {format_size(size)} more"
        return Move(seen.experts - from_experts, seen.kv + size, why)

    def _shrink_context(self, seen: Observation) -> Move:
        size = min(seen.kv - self._kv_kept(seen.kv_wanted + seen.kv_wanted // 4), self._policy.step)
        to_experts = max(0, min(size, self._wish.experts - seen.experts))
        why = f"contexts need {format_size(seen.kv_wanted)}: they give back {format_size(size)}"
        return Move(seen.experts + to_experts, seen.kv - size, why)

    def _take(self, seen: Observation) -> Move:
        size = min(self._takeable(seen), self._policy.step)
        self._taken = seen.now
        why = f"{format_size(seen.free)} of the device are free: experts take {format_size(size)}"
        return Move(seen.experts + size, seen.kv, why)

    def _takeable(self, seen: Observation) -> int:
        """Bytes that experts may take: 0 unless the high mark is passed, or all that was given can be had again."""
        missing = max(0, self._wish.experts - seen.experts)
        unused = seen.free - self._policy.aim
        size = min(missing, unused)
        if size <= self._policy.grain or unused < min(missing, self._policy.high - self._policy.aim):
            return 0
        return size

    def _kv_kept(self, wanted: int) -> int:
        """Context memory that is not given back: what was planned is never touched."""
        return max(self._wish.kv, wanted)


def memory_reader(uuid: str, own: MemoryReader) -> MemoryReader:
    """Asks NVML, which sees all programs on a card; `own`, the driver's word, where it does not know `uuid`."""
    try:
        nvml = importlib.import_module("pynvml")
    except ImportError:
        return own
    try:
        nvml.nvmlInit()
        handle = nvml.nvmlDeviceGetHandleByUUID(uuid)
        nvml.nvmlDeviceGetMemoryInfo(handle)
    except nvml.NVMLError:
        return own

    def read() -> tuple[int, int]:
        try:
            info = nvml.nvmlDeviceGetMemoryInfo(handle)
        except nvml.NVMLError:  # its driver was replaced under it, or the card is gone
            return own()
        return int(info.total), int(info.free)

    return read
