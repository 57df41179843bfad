"""Letting a device reach banks in host memory: in pieces, as far as the system allows, and what to do when it does not.

A device copies experts only from pinned memory. Systems limit how much of it there may be, and say so only when asked
for too much; so every bank is pinned from its first record on until one more record is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from engine.base.units import MIB, format_size
from engine.device.driver import CannotPinError, Pinned

# Large enough that a pool has hundreds of pieces and not more, small enough that Ctrl-C is heard between two.
PIECE_BYTES = 256 * MIB


class Pins(Protocol):
    """The one thing asked of a driver here."""

    def pin(self, view: memoryview, size: int) -> Pinned: ...


@dataclass(frozen=True)
class HostRecords:
    """Records of one bank, end to end in host memory."""

    data: memoryview
    record_bytes: int

    @property
    def count(self) -> int:
        return len(self.data) // self.record_bytes


@dataclass(frozen=True)
class Reach:
    """The first `records` records of a bank, as a device finds them.

    Record i lies at `addresses[i // per_address] + i % per_address * record_bytes` of the device.
    """

    addresses: tuple[int, ...] = ()
    per_address: int = 1
    records: int = 0


class PinnedBanks:
    """What could be pinned of some banks. `refusal` says what stopped it; None when all was pinned."""

    def __init__(self, driver: Pins, banks: Sequence[HostRecords], piece_bytes: int = PIECE_BYTES) -> None:
        """Pin all banks, evenly, as far as the system lets us. Nothing stays pinned if anything else goes wrong."""
        self._driver = driver
        self._banks = tuple(banks)
        self._per_piece = tuple(max(1, piece_bytes // bank.record_bytes) for bank in banks)
        self._pinned: tuple[list[Pinned], ...] = tuple([] for _ in banks)
        self._records = [0] * len(self._banks)
        self.refusal: CannotPinError | None = None
        try:
            self._pin_all()
        except BaseException:
            self.free()
            raise

    def reach(self, bank: int) -> Reach:
        """What the device reaches of a bank."""
        pins = self._pinned[bank]
        return Reach(tuple(pin.address for pin in pins), self._per_piece[bank], self._records[bank])

    @property
    def bytes(self) -> int:
        """Bytes that are pinned."""
        sizes = (count * bank.record_bytes for count, bank in zip(self._records, self._banks, strict=True))
        return sum(sizes)

    def free(self) -> None:
        """Let go of everything; the device must be done with it. A second time does nothing."""
        for pins in self._pinned:
            while pins:
                pins.pop().free()
        self._records = [0] * len(self._banks)

    def _pin_all(self) -> None:
        """A piece at a time of the bank of which the smallest part is pinned, so that a limit hits all alike."""
        growing = {number for number, bank in enumerate(self._banks) if bank.count}
        while growing:
            number = min(growing, key=lambda number: (self._records[number] / self._banks[number].count, number))
            bank, start = self._banks[number], self._records[number]
            wanted = min(self._per_piece[number], bank.count - start)
            if self._pin_most(number, start, wanted) < wanted or self._records[number] == bank.count:
                growing.remove(number)

    def _pin_most(self, number: int, start: int, wanted: int) -> int:
        """Pin the most records up to `wanted`; how many that is. Only a bank's last piece may be a short one."""
        pin, most = self._try(number, start, wanted), wanted
        if pin is None:
            most = self._most_below(number, start, wanted)
            pin = self._try(number, start, most) if most else None
        if pin is None:
            return 0
        self._pinned[number].append(pin)
        self._records[number] += most
        return most

    def _most_below(self, number: int, start: int, refused: int) -> int:
        """The most records below `refused` that could be pinned; whatever is tried is let go of again."""
        low, high = 0, refused - 1
        while low < high:
            middle = (low + high + 1) // 2
            pin = self._try(number, start, middle)
            if pin is None:
                high = middle - 1
            else:
                pin.free()
                low = middle
        return low

    def _try(self, number: int, start: int, count: int) -> Pinned | None:
        bank = self._banks[number]
        size = count * bank.record_bytes
        first = start * bank.record_bytes
        try:
            return self._driver.pin(bank.data[first : first + size], size)
        except CannotPinError as error:
            self.refusal = self.refusal or error
            return None


@dataclass(frozen=True)
class PinLimit:
    """What bounds pinned memory on this machine: `bytes` (None: not known), a sentence, and what to do about it."""

    bytes: int | None
    sentence: str
    remedy: str


def pin_limit(memlock: int, proc: Path = Path("/proc")) -> PinLimit:
    """The bound that this machine sets; `memlock` as in `engine.base.hardware`, -1 for unlimited."""
    if _is_wsl(proc):
        return PinLimit(
            None,
            "WSL lets programs pin a part of its memory, about half",
            "Give WSL more of the machine's: memory= in %UserProfile%\\.wslconfig, then wsl --shutdown.",
        )
    if memlock >= 0:
        return PinLimit(
            memlock,
            f"{format_size(memlock)} of memory may be locked (ulimit -l)",
            "Raise it before you start freetoken: ulimit -l unlimited, or memlock in /etc/security/limits.conf.",
        )
    return PinLimit(None, "memory may be locked without limit (ulimit -l)", "")


def _is_wsl(proc: Path) -> bool:
    try:
        return "microsoft" in (proc / "sys/kernel/osrelease").read_text(errors="replace").lower()
    except OSError:
        return False
