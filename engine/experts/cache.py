"""The expert cache of one bank: slots on the device that the experts of all its layers share, least recently used out.

The kernel `plan` decides and changes the tables; the host allocates them, reads them, and changes them at safe points,
when no launch that uses them is under way. docs/experts.md says what `plan` does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from engine.device.driver import Driver, Stream
from engine.experts.cache_tables import (
    COUNT_WORDS,
    MOST_EXPERTS,
    BrokenCacheError,
    CacheTables,
    Snapshot,
    table_lengths,
)
from engine.experts.compaction import compaction_moves
from engine.experts.split import CARRY, CPU, FILL, TABLE, Split

COUNTS = ("distinct", "hits", "misses", "fills", "cpu")
FILL_BLOCKS = 32  # enough requests to keep a link busy, few enough to leave the device to the experts that hit
FILL_THREADS = 256
CLOCK_LIMIT = 1 << 30  # stamps are halved beyond it; the kernel's own limit is 2^31

_COLDEST = 1  # the oldest stamp of what was ever used

_RULES = {TABLE: 0, CARRY: 1, FILL: 2, CPU: 3}  # SplitRule of native/cuda/cache_state.h


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
    """What all plans of a cache counted, in distinct experts, and how many there were."""

    distinct: int
    hits: int
    misses: int
    fills: int
    cpu: int
    plans: int


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
        assert 0 < record_bytes <= room.stride, f"records of {record_bytes} bytes in slots of {room.stride}"
        assert record_bytes % 16 == 0, f"records of {record_bytes} bytes"
        self.layers, self.experts, self.records = layers, experts, layers * experts
        self.record_bytes, self.fillable, self.capacity = record_bytes, fillable, capacity
        self._driver = driver
        self._room = room
        self._stream = driver.stream("cache")
        self._plan, self._fill = driver.kernel("plan"), driver.kernel("fill")
        self._top_k, self._max_tokens = top_k, max_tokens
        self._threads = threads or plan_threads(capacity, experts)
        self._slots = 0
        self._lent = np.zeros(0, np.int32)
        self.tables = CacheTables(driver, table_lengths(layers, experts, capacity, top_k, max_tokens))
        try:
            self.tables.write_state(fillable=fillable)
            self.clear()
            self.set_split(split)
            self.resize(slots)
        except BaseException:
            self.free()
            raise

    # --- launches

    @property
    def target(self) -> int:
        """Address of i32 [bucket * top_k], of the last plan: 2 * slot of a hit, 2 * slot + 1 of a fill, -1 for the CPU,
        -2 for padding."""
        return self.tables.address("target")

    def launch_plan(self, stream: Stream, place: int, ids: int, rows: int, bucket: int) -> None:
        """Plan layer number `place` of the bank. Addresses: ids i32 [bucket][top_k], rows i32, the live tokens."""
        assert 0 <= place < self.layers, f"layer {place} of a bank of {self.layers}"
        assert 0 < bucket <= self._max_tokens, f"{bucket} tokens"
        table = self.tables.address
        kept = [table(name) for name in ("state", "slot_of", "expert_used", "owner", "slot_used", "split_table")]
        asked = [ids, rows, bucket, self._top_k, self.experts, place * self.experts]
        found = [table("target"), table("fills"), self._counts_address(place), table("totals")]
        self._driver.launch(stream, self._plan, (1, 1, 1), self._threads, [*kept, *asked, *found])

    def launch_fill(self, stream: Stream, place: int, shards: int, records_per_shard: int) -> None:
        """Copy what the last plan, of layer `place`, wants filled. Address: shards u64, where each shard begins."""
        self.launch_fill_list(
            stream, shards, records_per_shard, self.tables.address("fills"), self._counts_address(place)
        )

    def launch_fill_list(self, stream: Stream, shards: int, records_per_shard: int, fills: int, counts: int) -> None:
        """Copy what a list says. Addresses: fills i32 [n][2], (record, slot); counts i32 [8], by Count, n of fills."""
        slots = (self._room.address, self._room.stride)
        args = [shards, records_per_shard, self.record_bytes, fills, counts, *slots]
        self._driver.launch(stream, self._fill, (FILL_BLOCKS, 1, 1), FILL_THREADS, args)

    def _counts_address(self, place: int) -> int:
        return self.tables.address("counts") + place * COUNT_WORDS * 4

    # --- at safe points

    @property
    def slots(self) -> int:
        """In use."""
        return self._slots

    @property
    def split(self) -> Split:
        """In force."""
        return self._split

    def set_split(self, split: Split) -> None:
        """Put another split in force, from the next plan on. What a carried division left over is kept."""
        self._split = split
        table = np.asarray(split.table[: MOST_EXPERTS + 1], np.int32)
        self.tables.write("split_table", table)
        self.tables.write_state(rule=_RULES[split.rule], fraction=split.fixed, table_length=len(table))

    def resize(self, slots: int) -> int:
        """Change the number of slots and keep the records used last. Returns how many records moved.

        Raises NoRoomError where more slots find no memory: the old ones stand. Whatever fails, every slot goes on
        holding what the tables say.
        """
        assert 0 <= slots <= self.capacity, f"{slots} slots of {self.capacity}"
        assert not len(self._lent), "slots are lent"
        moved = 0
        shrinks = slots < self._slots
        if shrinks:
            moved = self._compact(slots)
        else:
            self._room.map(slots)
        self.tables.write_state(slots=slots)
        self._slots = slots
        if shrinks:
            self._room.map(slots)
        return moved

    def _compact(self, slots: int) -> int:
        slot_of, owner, slot_used = (self.tables.read(name) for name in ("slot_of", "owner", "slot_used"))
        compaction = compaction_moves(owner[: self._slots], slot_used[: self._slots], slots)

        # Forgotten before they are overwritten: a copy that fails must not leave a record in the slot of another.
        slot_of[owner[compaction.dropped]] = -1
        owner[compaction.dropped] = -1
        slot_used[compaction.dropped] = 0
        self._write_residency(slot_of, owner, slot_used)
        if len(compaction.moves):
            self._driver.move_blocks(self._stream, self._room.address, self._room.stride, compaction.moves)
            self._driver.synchronise(self._stream)
            sources, targets = compaction.moves.T
            owner[targets], owner[sources] = owner[sources], -1
            slot_used[targets], slot_used[sources] = slot_used[sources], 0
            slot_of[owner[targets]] = targets
            self._write_residency(slot_of, owner, slot_used)
        return len(compaction.moves)

    def lend(self, count: int) -> NDArray[np.int32]:
        """Take the `count` slots used longest ago out of use, ascending; the cache forgets what they hold.

        No plan may run until they are given back.
        """
        assert 0 < count <= self._slots, f"{count} slots of {self._slots}"
        assert not len(self._lent), "slots are lent already"
        slot_of, owner, slot_used = (self.tables.read(name) for name in ("slot_of", "owner", "slot_used"))
        coldest = np.argsort(slot_used[: self._slots], kind="stable")[:count]
        self._lent = np.sort(coldest).astype(np.int32)
        held = owner[self._lent]
        slot_of[held[held >= 0]] = -1
        owner[self._lent] = -1
        slot_used[self._lent] = 0
        self._write_residency(slot_of, owner, slot_used)
        return self._lent

    def take_back(self, slots: NDArray[np.int32], records: NDArray[np.int32]) -> None:
        """All that was lent comes back. `slots[i]` of it holds `records[i]`, which the next fills replace first."""
        assert np.isin(slots, self._lent).all(), "slots that were not lent"
        names = ("slot_of", "owner", "slot_used", "expert_used")
        slot_of, owner, slot_used, expert_used = (self.tables.read(name) for name in names)
        assert (slot_of[records] == -1).all(), "records that have slots"
        self._lent = self._lent[:0]
        if not len(slots):
            return
        slot_of[records], owner[slots] = slots, records
        slot_used[slots] = _COLDEST
        expert_used[records] = np.maximum(expert_used[records], _COLDEST)
        self.tables.write_state(clock=max(self.tables.read_state()["clock"], _COLDEST))
        self.tables.write("expert_used", expert_used)
        self._write_residency(slot_of, owner, slot_used)

    def count(self, hits: NDArray[np.int32], fills: NDArray[np.int32]) -> None:
        """Note what a step used that had no plans: of each layer the experts that were there, and those copied."""
        counts, totals = self._read_counts(), self.tables.read("totals")
        counts[:, : len(COUNTS)] = np.stack([hits + fills, hits, fills, fills, np.zeros_like(fills)], axis=1)
        totals[: len(COUNTS)] += counts[:, : len(COUNTS)].sum(axis=0, dtype=np.uint64)
        totals[len(COUNTS)] += self.layers
        self.tables.write("counts", counts.reshape(-1))
        self.tables.write("totals", totals)

    def clear(self) -> None:
        """Forget what the slots hold, and nothing else. What was lent is back."""
        self._lent = np.zeros(0, np.int32)
        lengths = self.tables.lengths
        slot_of, owner = (np.full(lengths[name], -1, np.int32) for name in ("slot_of", "owner"))
        self._write_residency(slot_of, owner, np.zeros(lengths["slot_used"], np.uint32))

    def tend(self) -> bool:
        """Now and then, at least once in a billion plans: halve the clock and all stamps before they run over.

        Returns whether it did. Upwards, so that what was used stays used; the order stays, but for new ties.
        """
        clock = self.tables.read_state()["clock"]
        if clock <= CLOCK_LIMIT:
            return False
        for name in ("expert_used", "slot_used"):
            self.tables.write(name, (self.tables.read(name) + 1) // 2)
        self.tables.write_state(clock=(clock + 1) // 2)
        return True

    def free(self) -> None:
        """Give the tables back; the room is its owner's."""
        self.tables.free()

    # --- reading, at safe points too

    def read_totals(self) -> Totals:
        """Counted since the cache was made."""
        return Totals(*(int(n) for n in self.tables.read("totals")[: len(COUNTS) + 1]))

    def layer_counts(self) -> NDArray[np.int32]:
        """int32 [layers][5], by COUNTS: what the last plan of each layer counted."""
        return self._read_counts()[:, : len(COUNTS)]

    def _read_counts(self) -> NDArray[np.int32]:
        return self.tables.read("counts").reshape(self.layers, COUNT_WORDS)

    def snapshot(self) -> Snapshot:
        """All that the device knows of this cache."""
        return Snapshot.of(self.tables)

    def check(self, record: Callable[[int], NDArray[np.uint8]] | None = None) -> None:
        """Hold the tables to each other and, where `record` gives a record's bytes, the slots to what they should hold.

        Raises BrokenCacheError, which names a contradiction.
        """
        snapshot = self.snapshot()
        snapshot.check()
        if snapshot.slots != self._slots:
            raise BrokenCacheError(f"the device counts {snapshot.slots} slots, the host {self._slots}")
        if record is None:
            return
        held = np.zeros(self.record_bytes, np.uint8)
        for slot in np.flatnonzero(snapshot.owner != -1).tolist():
            self._driver.download(self._slot_address(slot), held)
            if not np.array_equal(held, record(int(snapshot.owner[slot]))):
                raise BrokenCacheError(f"slot {slot} does not hold the bytes of record {snapshot.owner[slot]}")

    def _slot_address(self, slot: int) -> int:
        return self._room.address + slot * self._room.stride

    def _write_residency(
        self, slot_of: NDArray[np.int32], owner: NDArray[np.int32], slot_used: NDArray[np.uint32]
    ) -> None:
        self.tables.write("slot_of", slot_of)
        self.tables.write("owner", owner)
        self.tables.write("slot_used", slot_used)


def plan_threads(capacity: int, experts: int) -> int:
    """Threads of the block that plans: enough to read all stamps, or look at all experts, in one go; 256 to 1024."""
    threads = 256
    while threads < 1024 and threads < max(capacity // 4, experts):
        threads *= 2
    return threads
