"""Memory of the simulated device: what there is at which address, and how much of it is taken."""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Callable
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from engine._native import AddressRange
from engine.base.errors import NoRoomError
from engine.base.units import format_size
from engine.device.driver import CannotPinError

PAGE = 4096
ALIGNMENT = 256
_LESS = "Close other programs, or ask for less: --experts, --kv"


class Region(Protocol):
    """Addresses that the device knows; the first `mapped` of them may be touched."""

    @property
    def address(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def mapped(self) -> int: ...


class AddressBook:
    """Every region there is."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._regions: dict[int, Region] = {}

    def add(self, region: Region) -> None:
        """AssertionError where it overlaps another."""
        place = bisect_right(self._starts, region.address)
        for neighbour in self._starts[max(0, place - 1) : place + 1]:
            other = self._regions[neighbour]
            apart = region.address >= other.address + other.size or other.address >= region.address + region.size
            assert apart, f"memory at {region.address:#x} is known already"
        insort(self._starts, region.address)
        self._regions[region.address] = region

    def remove(self, region: Region) -> None:
        self._starts.remove(region.address)
        del self._regions[region.address]

    def region(self, address: int) -> Region | None:
        """The region that an address lies in."""
        place = bisect_right(self._starts, address)
        if place == 0:
            return None
        region = self._regions[self._starts[place - 1]]
        return region if address < region.address + region.size else None

    def check(self, address: int, size: int) -> None:
        """AssertionError unless all these bytes are memory that the device may touch."""
        region = self.region(address)
        fits = region is not None and address + size <= region.address + region.mapped
        assert fits or size == 0, f"{size} bytes at {address:#x} are no memory of the device"


class Account:
    """How much memory of a kind there is."""

    def __init__(self, total: int, refuse: Callable[[int, int, int], Exception]) -> None:
        self.total = total
        self.used = 0
        self._refuse = refuse

    def change(self, size: int) -> None:
        """Take `size` bytes, or give them back where it is negative. Raises and changes nothing if there are fewer."""
        if size > 0 and self.used + size > self.total:
            raise self._refuse(size, self.total - self.used, self.total)
        self.used += size


def no_room(size: int, free: int, total: int) -> NoRoomError:
    return NoRoomError(
        f"The simulated device has {format_size(free)} of {format_size(total)} free, and {format_size(size)} are "
        "needed.",
        "Give experts or context less room.",
    )


def cannot_pin(size: int, free: int, total: int) -> CannotPinError:
    return CannotPinError(
        f"The simulated device may pin {format_size(total)} of the host's memory, {format_size(free)} of it are left, "
        f"and {format_size(size)} are needed.",
    )


def rounded_up(size: int, unit: int) -> int:
    return -(-size // unit) * unit


class Lease:
    """Memory of the device, or of the host for the device: mapped from its first byte to its last."""

    def __init__(self, size: int, account: Account, book: AddressBook, settle: Callable[[], None]) -> None:
        assert size > 0, "no memory of no bytes"
        self.size = self.mapped = size
        self._taken = rounded_up(size, ALIGNMENT)
        self._account, self._book, self._settle = account, book, settle
        account.change(self._taken)
        try:
            self._memory = AddressRange(rounded_up(size, PAGE))
            self._memory.map(self._memory.size)
        except MemoryError as error:
            account.change(-self._taken)
            raise NoRoomError(f"The system has no {format_size(size)} of memory to give.", _LESS) from error
        self.address = self._memory.address
        self._live = True
        book.add(self)

    @property
    def array(self) -> NDArray[np.uint8]:
        return self._memory.array()[: self.size]

    def free(self) -> None:
        if self._live:
            self._settle()
            self._live = False
            self._book.remove(self)
            self._account.change(-self._taken)
            self._memory.map(0)


class SlotRange:
    """Addresses of the device of which a prefix is mapped."""

    def __init__(
        self, size: int, granularity: int, account: Account, book: AddressBook, settle: Callable[[], None]
    ) -> None:
        assert size > 0, "no addresses for no bytes"
        self.granularity = granularity
        self.size = rounded_up(size, granularity)
        self._account, self._book, self._settle = account, book, settle
        self._memory = AddressRange(self.size)
        self.address = self._memory.address
        self._live = True
        book.add(self)

    @property
    def mapped(self) -> int:
        return self._memory.mapped

    def map(self, size: int) -> None:
        assert self._live, "the range was given back"
        assert 0 <= size <= self.size, f"{size} bytes of a range of {self.size}"
        self._settle()
        wanted = rounded_up(size, self.granularity)
        change = wanted - self.mapped
        self._account.change(change)
        try:
            self._memory.map(wanted)
        except MemoryError as error:
            self._account.change(-change)
            raise NoRoomError(f"The system has no {format_size(change)} of memory to give.", _LESS) from error

    def free(self) -> None:
        if self._live:
            self.map(0)
            self._live = False
            self._book.remove(self)


class PinnedMemory:
    """Memory of this process that the device reaches; borrowed, and kept alive."""

    def __init__(
        self, array: NDArray[np.uint8], account: Account, book: AddressBook, settle: Callable[[], None]
    ) -> None:
        self.size = self.mapped = array.size
        self.address = array.ctypes.data
        self._array: NDArray[np.uint8] | None = array
        self._account, self._book, self._settle = account, book, settle
        account.change(self.size)
        try:
            book.add(self)
        except AssertionError:
            account.change(-self.size)
            raise

    def free(self) -> None:
        if self._array is not None:
            self._settle()
            self._array = None
            self._book.remove(self)
            self._account.change(-self.size)
