"""How many slots each bank of experts gets on a device: the same share of every bank, and enough for a step or none.

All banks are cached or none is: a step goes through all layers, and the slowest decides. A bank needs `top_k` slots,
the experts of one token, since with fewer a step would push out what it is about to use. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from engine.base.errors import DoesNotFitError
from engine.base.units import ExpertRoom, format_size

Slots = tuple[int, ...]


@dataclass(frozen=True)
class BankSize:
    """A bank as the planner sees it. Of `records`, the first `fillable` can be copied to the device.

    0 fillable: a bank that is never cached, such as one whose experts have an order of columns.
    """

    record_bytes: int
    records: int
    fillable: int


@dataclass(frozen=True)
class SlotTable:
    """Every division of slots that makes sense for these banks, from none to all of them, by size.

    `chunk` is the unit in bytes in which the device maps memory.
    """

    banks: tuple[BankSize, ...]
    top_k: int
    chunk: int = 1

    @property
    def pool_bytes(self) -> int:
        """Bytes of all experts."""
        return sum(bank.record_bytes * bank.records for bank in self.banks)

    @property
    def none(self) -> Slots:
        """No cache."""
        return tuple(0 for _ in self.banks)

    @property
    def least(self) -> Slots:
        """The smallest cache."""
        return self._at(0)

    @property
    def most(self) -> Slots:
        """A slot for every record that can be copied; `none` where no bank can be cached."""
        return self._at(self._levels)

    def bytes_of(self, slots: Sequence[int]) -> int:
        """Device memory that the slots take."""
        sizes = (count * bank.record_bytes for count, bank in zip(slots, self.banks, strict=True))
        return sum(-(-size // self.chunk) * self.chunk for size in sizes)

    def record_bytes_of(self, slots: Sequence[int]) -> int:
        """Bytes of the records that the slots hold."""
        return sum(count * bank.record_bytes for count, bank in zip(slots, self.banks, strict=True))

    def within(self, size: int) -> Slots:
        """The most slots in `size` bytes; `none` when the smallest cache does not fit."""
        return self._largest(lambda slots: self.bytes_of(slots) <= size)

    def wanted(self, room: ExpertRoom) -> Slots:
        """The slots that `room` asks for, at most all there are.

        DoesNotFitError, with the nearest that works, for more than nothing and less than the smallest cache.
        """
        if room.nothing or not sum(self.most):
            return self.none
        if room.bytes:
            slots = self.within(room.bytes)
        elif room.share:
            slots = self._largest(lambda slots: sum(slots) <= self._share_of_records(room.share))
        else:
            slots = self._largest(lambda slots: sum(slots) <= room.slots)
        if not sum(slots):
            raise DoesNotFitError(
                f"--experts {room} is too little: the experts of one token in every bank take {sum(self.least)} slots "
                f"({format_size(self.bytes_of(self.least))}).",
                f"Give --experts {sum(self.least)} or more, or --experts 0 to cache none.",
            )
        return slots

    def exceeded_by(self, room: ExpertRoom) -> bool:
        """Whether `room` asks for more than all experts that can be copied."""
        if room.bytes:
            return room.bytes > self.pool_bytes
        if room.share:
            return self._share_of_records(room.share) > sum(self.most)
        return room.slots > sum(self.most)

    def _share_of_records(self, share: float) -> int:
        """Rounded down; the addend makes good that 0.29 is a little less than 29 %."""
        return sum(int(bank.records * share + 1e-9) for bank in self._cached)

    @property
    def _cached(self) -> tuple[BankSize, ...]:
        return tuple(bank for bank in self.banks if bank.fillable >= self.top_k)

    @property
    def _levels(self) -> int:
        return sum(bank.fillable for bank in self._cached)

    def _at(self, level: int) -> Slots:
        """The division of about `level` slots, which only rises with it: every bank's share, at least `top_k`."""
        return tuple(
            max(self.top_k, bank.fillable * level // self._levels) if bank.fillable >= self.top_k else 0
            for bank in self.banks
        )

    def _largest(self, fits: Callable[[Slots], bool]) -> Slots:
        """The largest division that fits; `fits` holds up to some level and not beyond."""
        if not self._levels or not fits(self.least):
            return self.none
        low, high = 0, self._levels
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if fits(self._at(middle)) else (low, middle - 1)
        return self._at(low)
