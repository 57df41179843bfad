"""The tables of an expert cache as they lie on the device: native/cuda/cache_state.h says what each holds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from engine.device.driver import Driver

MOST_EXPERTS = 4096  # of a layer: kMostLayerExperts
COUNT_WORDS = 8

_ALIGNMENT = 256
_STATE = np.dtype(
    [
        ("slots", "<i4"),
        ("clock", "<u4"),
        ("fillable", "<i4"),
        ("rule", "<i4"),
        ("fraction", "<u4"),
        ("carry", "<u4"),
        ("table_length", "<i4"),
        ("reserved", "<i4", (9,)),
    ]
)
_TYPES: dict[str, DTypeLike] = {
    "state": _STATE,
    "slot_of": np.int32,
    "expert_used": np.uint32,
    "owner": np.int32,
    "slot_used": np.uint32,
    "split_table": np.int32,
    "target": np.int32,
    "fills": np.int32,
    "counts": np.int32,
    "totals": np.uint64,
}


class BrokenCacheError(AssertionError):
    """The tables contradict each other, or the slots contradict them: a mistake of ours."""


def table_lengths(layers: int, experts: int, capacity: int, top_k: int, max_tokens: int) -> dict[str, int]:
    """Values in each table."""
    padded = -(-capacity // 4) * 4  # stamps of slots are read four at a time
    return {
        "state": 1,
        "slot_of": layers * experts,
        "expert_used": layers * experts,
        "owner": padded,
        "slot_used": padded,
        "split_table": MOST_EXPERTS + 1,
        "target": top_k * max_tokens,
        "fills": 2 * min(experts, padded),
        "counts": COUNT_WORDS * layers,
        "totals": COUNT_WORDS,
    }


def _aligned_bytes(lengths: dict[str, int]) -> dict[str, int]:
    return {
        name: -(-length * np.dtype(_TYPES[name]).itemsize // _ALIGNMENT) * _ALIGNMENT
        for name, length in lengths.items()
    }


class CacheTables:
    """All tables in one piece of the device's memory, each at an aligned offset."""

    def __init__(self, driver: Driver, lengths: dict[str, int]) -> None:
        """Zeroed. Raises NoRoomError."""
        self._driver = driver
        self.lengths = lengths
        self._offsets: dict[str, int] = {}
        self.bytes = 0
        for name, size in _aligned_bytes(lengths).items():
            self._offsets[name] = self.bytes
            self.bytes += size
        self._memory = driver.allocate(self.bytes)

    def address(self, name: str) -> int:
        return self._memory.address + self._offsets[name]

    def write(self, name: str, values: NDArray[Any]) -> None:
        """The first values of a table."""
        assert len(values) <= self.lengths[name], f"{len(values)} values into {name}"
        if len(values):
            self._driver.upload(self.address(name), np.ascontiguousarray(values, _TYPES[name]))

    def read(self, name: str) -> NDArray[Any]:
        """A whole table."""
        values = np.zeros(self.lengths[name], _TYPES[name])
        if len(values):
            self._driver.download(self.address(name), values)
        return values

    def read_state(self) -> dict[str, int]:
        state = self.read("state")[0]
        return {name: int(state[name]) for name in _STATE.names or () if name != "reserved"}

    def write_state(self, **changes: int) -> None:
        """Change some fields of the state and leave the others as they are."""
        state = self.read("state")
        for name, value in changes.items():
            state[name] = value
        self.write("state", state)

    def free(self) -> None:
        self._memory.free()


@dataclass(frozen=True)
class Snapshot:
    """What the device knows of a cache at one moment; owner and slot_used of the whole capacity."""

    slots: int
    clock: int
    carry: int
    slot_of: NDArray[np.int32]
    expert_used: NDArray[np.uint32]
    owner: NDArray[np.int32]
    slot_used: NDArray[np.uint32]

    @staticmethod
    def of(tables: CacheTables) -> Snapshot:
        state = tables.read_state()
        names = ("slot_of", "expert_used", "owner", "slot_used")
        return Snapshot(state["slots"], state["clock"], state["carry"], *(tables.read(name) for name in names))

    def check(self) -> None:
        """Hold the tables to each other. Raises BrokenCacheError, which names a contradiction."""
        newest = max(int(self.expert_used.max(initial=0)), int(self.slot_used.max(initial=0)))
        _claim(newest <= self.clock, f"a stamp of {newest} at clock {self.clock}")
        _claim(self.carry < 1 << 16, f"a carry of {self.carry}")
        unused = slice(self.slots, None)
        empty = (self.owner[unused] == -1).all() and not self.slot_used[unused].any()
        _claim(bool(empty), f"slots beyond the {self.slots} in use hold something")

        slots = np.flatnonzero(self.owner != -1)
        records = self.owner[slots]
        inside = (records >= 0) & (records < len(self.slot_of))
        _claim(bool(inside.all()), f"slots hold records that do not exist: {records[~inside]}")
        astray = slots[self.slot_of[records] != slots]
        _claim(not len(astray), f"slots {astray} hold records {self.owner[astray]}, which do not know of it")
        resident = np.count_nonzero(self.slot_of != -1)
        _claim(resident == len(slots), f"{resident} records say that they have slots, {len(slots)} slots hold records")
        unstamped = slots[(self.slot_used[slots] == 0) | (self.expert_used[records] == 0)]
        _claim(not len(unstamped), f"slots {unstamped} hold records and were never used")


def _claim(holds: bool, otherwise: str) -> None:
    if not holds:
        raise BrokenCacheError(f"the expert cache is broken: {otherwise}")
