"""The expert cache of one bank: slots on the device that the experts of all its layers share, least recently used out.

The kernel `plan` decides and changes the tables; the host only allocates them, reads them, and changes them at safe
points, when no launch that uses them is under way. docs/experts.md says what `plan` does, native/cuda/cache_state.h how
the tables lie.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import DTypeLike, NDArray

from engine.device.driver import Driver, Stream
from engine.experts.compaction import compaction_moves
from engine.experts.split import CARRY, CPU, FILL, TABLE, Split

MOST_EXPERTS = 4096  # of a layer: kMostLayerExperts
COUNTS = ("distinct", "hits", "misses", "fills", "cpu")
FILL_BLOCKS = 32  # enough requests to keep a link busy, few enough to leave the device to the experts that hit
FILL_THREADS = 256
CLOCK_LIMIT = 1 << 30  # stamps are halved beyond it; the kernel's own limit is 2^31

_RULES = {TABLE: 0, CARRY: 1, FILL: 2, CPU: 3}
_COUNT_WORDS = 8
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


class BrokenCacheError(AssertionError):
    """The tables contradict each other or the slots: a mistake of ours."""


class SlotRoom(Protocol):
    """The slots themselves: `SlotArena` of engine.experts.arena."""

    @property
    def address(self) -> int:
        """Of slot 0, for as long as the room exists."""

    @property
    def stride(self) -> int:
        """Bytes from slot to slot."""

    def map(self, slots: int) -> None:
        """Make exactly the first `slots` slots usable; those below stay. Raises NoRoomError, and changes nothing."""


@dataclass(frozen=True)
class Totals:
    """What all plans counted, in distinct experts."""

    distinct: int
    hits: int
    misses: int
    fills: int
    cpu: int
    plans: int


class _Tables:
    """Arrays of the device in one piece of memory, at aligned offsets."""

    def __init__(self, driver: Driver, sizes: dict[str, int]) -> None:
        self._offsets: dict[str, int] = {}
        end = 0
        for name, size in sizes.items():
            self._offsets[name] = end
            end += -(-size // _ALIGNMENT) * _ALIGNMENT
        self._driver = driver
        self._memory = driver.allocate(end)
        self.bytes = end

    def address(self, name: str) -> int:
        return self._memory.address + self._offsets[name]

    def write(self, name: str, data: NDArray[Any]) -> None:
        if data.nbytes:
            self._driver.upload(self.address(name), np.ascontiguousarray(data))

    def read(self, name: str, shape: int | tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
        data = np.zeros(shape, dtype)
        if data.nbytes:
            self._driver.download(self.address(name), data)
        return data

    def free(self) -> None:
        self._memory.free()


class ExpertCache:
    """Slots for the records of one bank: record = place of the layer in the bank * experts + expert.

    After a step that failed, `clear`: nobody knows which of its fills were done.
    """

    def __init__(
        self,
        driver: Driver,
        room: SlotRoom,
        *,
        layers: int,
        experts: int,
        record_bytes: int,
        fillable: int,
        capacity: int,
        slots: int,
        split: Split,
        top_k: int,
        max_tokens: int,
        threads: int | None = None,
    ) -> None:
        """`fillable`: records below it lie where the device can read them. `capacity`: the most slots ever.

        `threads`, of the block that plans, follow from the sizes unless given. Raises NoRoomError.
        """
        assert 0 < experts <= MOST_EXPERTS, f"{experts} experts in a layer"
        assert 0 <= fillable <= layers * experts, f"{fillable} of {layers * experts} records can be filled"
        assert 0 <= slots <= capacity, f"{slots} slots of {capacity}"
        assert record_bytes % 16 == 0, f"records of {record_bytes} bytes"
        self._driver = driver
        self._room = room
        self._stream = driver.stream("cache")
        self._plan = driver.kernel("plan")
        self._fill = driver.kernel("fill")
        self.layers, self.experts, self.records = layers, experts, layers * experts
        self.record_bytes, self.capacity, self._top_k = record_bytes, capacity, top_k
        self._threads = threads or plan_threads(capacity, experts)
        self._slots = 0
        sizes = table_bytes(layers, experts, capacity, top_k, max_tokens)
        self._tables = _Tables(driver, sizes)
        state = np.zeros(1, _STATE)
        state["fillable"] = fillable
        self._tables.write("state", state)
        self.clear()
        try:
            self.set_split(split)
            self.resize(slots)
        except BaseException:
            self._tables.free()
            raise

    # --- launches

    @property
    def target(self) -> int:
        """Address of i32 [bucket * top_k], of the last plan: 2 * slot of a hit, 2 * slot + 1 of a fill, -1 for the CPU,
        -2 for padding."""
        return self._tables.address("target")

    def launch_plan(self, stream: Stream, place: int, ids: int, rows: int, bucket: int) -> None:
        """Plan layer number `place` of the bank. Addresses: ids i32 [bucket][top_k], rows i32, the live tokens."""
        assert 0 <= place < self.layers, f"layer {place} of a bank of {self.layers}"
        table = self._tables.address
        state = [table(name) for name in ("state", "slot_of", "expert_used", "owner", "slot_used", "split_table")]
        args = [*state, ids, rows, bucket, self._top_k, self.experts, place * self.experts]
        out = [table("target"), table("fills"), self._counts_address(place), table("totals")]
        self._driver.launch(stream, self._plan, (1, 1, 1), self._threads, [*args, *out])

    def launch_fill(self, stream: Stream, place: int, shards: int, records_per_shard: int) -> None:
        """Copy what the last plan, of layer `place`, wants filled. Address: shards u64, where each shard begins."""
        planned = [self._tables.address("fills"), self._counts_address(place)]
        args = [shards, records_per_shard, self.record_bytes, *planned, self._room.address, self._room.stride]
        self._driver.launch(stream, self._fill, (FILL_BLOCKS, 1, 1), FILL_THREADS, args)

    def _counts_address(self, place: int) -> int:
        return self._tables.address("counts") + place * _COUNT_WORDS * 4

    # --- at safe points

    @property
    def slots(self) -> int:
        return self._slots

    @property
    def table_bytes(self) -> int:
        """Memory of the device beside the slots."""
        return self._tables.bytes

    def set_split(self, split: Split) -> None:
        """Put another split in force, from the next plan on. What a carried division left over is kept."""
        table = np.asarray(split.table[: MOST_EXPERTS + 1], np.int32)
        self._tables.write("split_table", table)
        state = self._read_state()
        state["rule"] = _RULES[split.rule]
        state["fraction"] = split.fixed
        state["table_length"] = len(table)
        self._tables.write("state", state)

    def resize(self, slots: int) -> int:
        """Change the number of slots and keep the records used last. Returns how many records moved.

        Raises NoRoomError where more slots find no memory: the old ones stand. Whatever fails, every slot goes on to
        hold what the tables say.
        """
        assert 0 <= slots <= self.capacity, f"{slots} slots of {self.capacity}"
        moved = 0
        if slots < self._slots:
            moved = self._compact(slots)
        else:
            self._room.map(slots)
        state = self._read_state()
        state["slots"] = slots
        self._tables.write("state", state)
        shrunk = slots < self._slots
        self._slots = slots
        if shrunk:
            self._room.map(slots)
        return moved

    def _compact(self, slots: int) -> int:
        slot_of, owner, slot_used = self._read_slot_of(), self._read_owner(), self._read_slot_used()
        compaction = compaction_moves(owner[: self._slots], slot_used[: self._slots], slots)

        # Forgotten before they are overwritten: a copy that fails must not leave a record in a slot of another.
        slot_of[owner[compaction.dropped]] = -1
        owner[compaction.dropped] = -1
        slot_used[compaction.dropped] = 0
        self._write_residency(slot_of, owner, slot_used)
        for source, target in compaction.moves:
            self._driver.copy(self._stream, self._slot_address(target), self._slot_address(source), self.record_bytes)
        self._driver.synchronise(self._stream)

        if compaction.moves:
            sources, targets = (np.asarray(side) for side in zip(*compaction.moves, strict=True))
            owner[targets], owner[sources] = owner[sources], -1
            slot_used[targets], slot_used[sources] = slot_used[sources], 0
            slot_of[owner[targets]] = targets
            self._write_residency(slot_of, owner, slot_used)
        return len(compaction.moves)

    def clear(self) -> None:
        """Forget what the slots hold, and nothing else."""
        empty = np.full(self.records, -1, np.int32), np.full(self.capacity, -1, np.int32)
        self._write_residency(*empty, np.zeros(self.capacity, np.uint32))

    def tend(self) -> bool:
        """Now and then, at least once in a billion plans: halve the clock and all stamps before they run over.

        Returns whether it did. Upwards, so that what was used stays used; the order stays but for new ties.
        """
        state = self._read_state()
        if state["clock"][0] <= CLOCK_LIMIT:
            return False
        state["clock"] = (state["clock"] + 1) // 2
        self._tables.write("expert_used", (self._read_expert_used() + 1) // 2)
        self._tables.write("slot_used", (self._read_slot_used() + 1) // 2)
        self._tables.write("state", state)
        return True

    def free(self) -> None:
        """Give the tables back; the room is its owner's."""
        self._tables.free()

    # --- reading

    def read_totals(self) -> Totals:
        """Counted since the cache was made."""
        totals = self._tables.read("totals", _COUNT_WORDS, np.uint64)
        return Totals(*(int(n) for n in totals[: len(COUNTS) + 1]))

    def layer_counts(self) -> NDArray[np.int32]:
        """int32 [layers][5], by COUNTS: what the last plan of each layer counted."""
        counts = self._tables.read("counts", (self.layers, _COUNT_WORDS), np.int32)
        return counts[:, : len(COUNTS)]

    def check(self, record: Callable[[int], NDArray[np.uint8]] | None = None) -> None:
        """Hold the tables to each other and, where `record` gives a record's bytes, the slots to what they should hold.

        Raises BrokenCacheError, which names the first contradiction.
        """
        state = self._read_state()[0]
        slot_of, owner, slot_used = self._read_slot_of(), self._read_owner(), self._read_slot_used()
        if state["slots"] != self._slots:
            _broken(f"the device counts {state['slots']} slots, the host {self._slots}")
        newest = max(int(self._read_expert_used().max(initial=0)), int(slot_used.max(initial=0)))
        if newest > state["clock"]:
            _broken(f"a stamp of {newest} at clock {state['clock']}")
        if state["carry"] >> 16:
            _broken(f"a carry of {state['carry']}")
        if (owner[self._slots :] != -1).any() or slot_used[self._slots :].any():
            _broken(f"slots beyond the {self._slots} in use hold something")
        resident = np.flatnonzero(slot_of != -1)
        slots = np.flatnonzero(owner != -1)
        if len(resident) != len(slots):
            _broken(f"{len(resident)} records say that they have slots, {len(slots)} slots that they hold records")
        for slot in slots.tolist():
            if not (0 <= owner[slot] < self.records and slot_of[owner[slot]] == slot):
                _broken(f"slot {slot} holds record {owner[slot]}, which does not know of it")
            if slot_used[slot] == 0:
                _broken(f"slot {slot} holds record {owner[slot]} and was never used")
            if record is not None and not np.array_equal(self._read_slot(slot), record(int(owner[slot]))):
                _broken(f"slot {slot} does not hold the bytes of record {owner[slot]}")

    def resident(self) -> NDArray[np.int32]:
        """The record that each slot in use holds, -1: none."""
        return self._read_owner()[: self._slots]

    def _slot_address(self, slot: int) -> int:
        return self._room.address + slot * self._room.stride

    def _read_slot(self, slot: int) -> NDArray[np.uint8]:
        data = np.zeros(self.record_bytes, np.uint8)
        self._driver.download(self._slot_address(slot), data)
        return data

    def _read_state(self) -> NDArray[np.void]:
        return self._tables.read("state", 1, _STATE)

    def _read_slot_of(self) -> NDArray[np.int32]:
        return self._tables.read("slot_of", self.records, np.int32)

    def _read_owner(self) -> NDArray[np.int32]:
        return self._tables.read("owner", self.capacity, np.int32)

    def _read_expert_used(self) -> NDArray[np.uint32]:
        return self._tables.read("expert_used", self.records, np.uint32)

    def _read_slot_used(self) -> NDArray[np.uint32]:
        return self._tables.read("slot_used", self.capacity, np.uint32)

    def _write_residency(
        self, slot_of: NDArray[np.int32], owner: NDArray[np.int32], slot_used: NDArray[np.uint32]
    ) -> None:
        self._tables.write("slot_of", slot_of)
        self._tables.write("owner", owner)
        self._tables.write("slot_used", slot_used)


def table_bytes(layers: int, experts: int, capacity: int, top_k: int, max_tokens: int) -> dict[str, int]:
    """Bytes of each table of a cache; they differ little from what it allocates."""
    padded = -(-capacity // 4) * 4  # stamps of slots are read four at a time
    most_fills = min(experts, max(capacity, 1))
    return {
        "state": _STATE.itemsize,
        "slot_of": 4 * layers * experts,
        "expert_used": 4 * layers * experts,
        "owner": 4 * padded,
        "slot_used": 4 * padded,
        "split_table": 4 * (MOST_EXPERTS + 1),
        "target": 4 * top_k * max_tokens,
        "fills": 8 * most_fills,
        "counts": 4 * _COUNT_WORDS * layers,
        "totals": 8 * _COUNT_WORDS,
    }


def plan_threads(capacity: int, experts: int) -> int:
    """Threads of the block that plans: enough to read all stamps, or look at all experts, in one go; 256 to 1024."""
    threads = 256
    while threads < 1024 and threads < max(capacity // 4, experts):
        threads *= 2
    return threads


def _broken(what: str) -> None:
    raise BrokenCacheError(f"the expert cache is broken: {what}")
