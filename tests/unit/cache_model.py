"""The expert cache of one bank as dicts and lists: what the kernel `plan` must do, without tricks.

It shares no code with the kernel nor with `engine.experts`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

CPU, PADDING, RETURNED = -1, -2, -3
COUNTS = ("distinct", "hits", "misses", "fills", "cpu")


@dataclass
class Rule:
    """How m misses that may be filled become q: `name` is table, carry, fill or cpu; fraction and carry are 16.16.

    An entry of -1 in the table leaves its number of misses to the rule that carries.
    """

    name: str
    fraction: int = 0
    table: tuple[int, ...] = ()
    carry: int = 0

    def fills(self, misses: int) -> int:
        if self.name == "fill":
            return misses
        if self.name == "cpu":
            return 0
        if self.name == "carry" or (self.name == "table" and self.table[misses : misses + 1] == (-1,)):
            self.carry += misses * self.fraction
            whole, self.carry = divmod(self.carry, 1 << 16)
            return whole
        if misses < len(self.table):
            return self.table[misses]
        beyond = misses - (len(self.table) - 1)
        return self.table[-1] + beyond * self.fraction // (1 << 16)


@dataclass
class Planned:
    """What one plan decided."""

    target: list[int]
    fills: list[tuple[int, int]]  # (record, slot)
    counts: dict[str, int]


@dataclass
class CacheModel:
    """`slots` slots for `records` records, of which those below `fillable` may be filled."""

    records: int
    slots: int
    fillable: int
    rule: Rule
    experts: int = 1 << 12  # of a layer: ids from there on are no experts'
    clock: int = 0
    held: dict[int, int] = field(default_factory=dict)  # slot -> record
    record_stamp: dict[int, int] = field(default_factory=dict)  # of records that were ever routed to
    slot_stamp: dict[int, int] = field(default_factory=dict)  # of slots that ever held anything
    totals: dict[str, int] = field(default_factory=lambda: dict.fromkeys((*COUNTS, "plans"), 0))

    def slot_of(self, record: int) -> int | None:
        return next((slot for slot, held in self.held.items() if held == record), None)

    def plan(self, tokens: Sequence[Sequence[int]], bucket: int, top_k: int, first_record: int) -> Planned:
        """`tokens` are the expert ids of the live tokens of a layer whose experts begin at `first_record`."""
        self.clock += 1
        wanted = sorted({first_record + expert for token in tokens for expert in token if expert < self.experts})
        hits = {record: slot for record in wanted if (slot := self.slot_of(record)) is not None}
        misses = [record for record in wanted if record not in hits]
        may_fill = [record for record in misses if record < self.fillable]

        wished = self.rule.fills(len(may_fill))
        q = max(0, min(wished, len(may_fill), self.slots - len(hits)))
        by_use = sorted(may_fill, key=lambda record: (-self.record_stamp.get(record, 0), record))
        filled = by_use[:q]
        spare = [slot for slot in range(self.slots) if slot not in hits.values()]
        by_age = sorted(spare, key=lambda slot: (self.slot_stamp.get(slot, 0), slot))
        fills = list(zip(filled, sorted(by_age[:q]), strict=True))

        for record, slot in fills:
            self.held[slot] = record
        for slot in (*hits.values(), *(slot for _, slot in fills)):
            self.slot_stamp[slot] = self.clock
        for record in wanted:
            self.record_stamp[record] = self.clock

        where = {record: 2 * slot for record, slot in hits.items()} | {record: 2 * slot + 1 for record, slot in fills}
        target = [
            where.get(first_record + expert, CPU) if expert < self.experts else RETURNED
            for token in tokens
            for expert in token
        ]
        target += [PADDING] * (bucket * top_k - len(target))
        numbers = (len(wanted), len(hits), len(misses), q, len(misses) - q)
        counts = dict(zip(COUNTS, numbers, strict=True))
        for name, number in counts.items():
            self.totals[name] += number
        self.totals["plans"] += 1
        return Planned(target, fills, counts)

    def resize(self, slots: int) -> int:
        """Keeps the records of the slots used last, the lower slot on a tie. Returns how many had to move.

        A record whose slot stays keeps its slot; the others go, in ascending order, to the lowest slots that are free.
        """
        hottest = sorted(self.held, key=lambda slot: (-self.slot_stamp[slot], slot))[:slots]
        movers = sorted(slot for slot in hottest if slot >= slots)
        free = [slot for slot in range(slots) if slot not in hottest]
        places = {slot: slot for slot in hottest if slot < slots} | dict(zip(movers, free, strict=False))
        self.held = {place: self.held[slot] for slot, place in places.items()}
        self.slot_stamp = {place: self.slot_stamp[slot] for slot, place in places.items()}
        self.slots = slots
        return len(movers)

    def halve(self) -> None:
        """Halves the clock and all stamps, upwards, so that what was used stays used."""
        self.clock = (self.clock + 1) // 2
        self.record_stamp = {record: (stamp + 1) // 2 for record, stamp in self.record_stamp.items()}
        self.slot_stamp = {slot: (stamp + 1) // 2 for slot, stamp in self.slot_stamp.items()}
