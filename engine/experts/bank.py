"""The experts of a model in host memory, the source of truth from which a device fills its slots.

A machine with a device keeps its own copy instead of the mapping that the CPU runs from: the bytes come by direct reads
past the page cache, which a pool would fill with a second copy, and a device copies only from memory that is pinned. It
is pinned after it is filled, since pages that are not there yet would be fetched one by one.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from engine import _native
from engine.base.errors import CorruptFileError, FreetokenError
from engine.base.hardware import read_hardware
from engine.base.progress import Progress, silent
from engine.base.units import format_size
from engine.experts.pinning import HostRecords, PinnedBanks, Pins, Reach, pin_limit
from engine.files.ftw.manifest import BankInfo
from engine.files.ftw.opening import AGAIN, Bank, Ftw, load_manifest

_DAMAGED = (errno.ENOENT, errno.EIO, errno.EINVAL)


@dataclass(frozen=True)
class Loaded:
    """How a pool came into memory: bytes that were read, the seconds it took, and what the user is to know of it."""

    bytes: int = 0
    seconds: float = 0.0
    notes: tuple[str, ...] = ()


class HostBank:
    """All banks of a model: for the CPU records at addresses that stay, for the device what it reaches of them."""

    def __init__(self, banks: Sequence[Bank], pinned: PinnedBanks | None, loaded: Loaded) -> None:
        """`pinned` None: the banks are as the files are mapped, and no device reaches them. Takes over `pinned`."""
        self._banks = tuple(banks)
        self._pinned = pinned
        self.loaded = loaded

    @staticmethod
    def load(
        ftw: Ftw, driver: Pins, memory_available: int, progress: Progress = silent, node: int | None = None
    ) -> HostBank:
        """Read all experts of `ftw` into memory, then pin as much as the system lets us.

        Where they are more than `memory_available` bytes, they stay in their files, and the device gets none of them.
        `node`: the NUMA node that the device hangs on. Errors: CorruptFileError with the name of a file that is short,
        unreadable or absent. Whatever ends it, nothing stays behind.
        """
        began = time.monotonic()
        pool = sum(bank.record_bytes * bank.count for bank in ftw.banks)
        if pool > memory_available:
            return HostBank(ftw.banks, None, Loaded(notes=(_too_little(pool, memory_available),)))
        try:
            memory = [_native.host_memory(bank.record_bytes * bank.count) for bank in ftw.banks]
        except MemoryError:
            return HostBank(ftw.banks, None, Loaded(notes=(_too_little(pool, memory_available),)))
        done = 0
        banks, records = [], []
        for bank, info, room in zip(ftw.banks, ftw.manifest.banks, memory, strict=True):
            if node is not None:
                _native.prefer_node(room, node)
            _read(ftw, info, room, _part_of(progress, done, pool))
            done += room.size
            data = room.data.toreadonly()
            banks.append(replace(bank, shards=(data,), records_per_shard=bank.count))
            records.append(HostRecords(data, bank.record_bytes))
        if load_manifest(ftw.folder) != ftw.manifest:
            raise CorruptFileError(f"{ftw.folder} was replaced while it was being read.", "Load it again.")
        pinned = PinnedBanks(driver, records)
        notes = () if pinned.refusal is None else (_not_all(pinned, pool),)
        return HostBank(banks, pinned, Loaded(pool, time.monotonic() - began, notes))

    def __len__(self) -> int:
        return len(self._banks)

    def records(self, bank: int) -> Bank:
        """A bank as everything that runs experts on the CPU borrows it."""
        return self._banks[bank]

    @property
    def banks(self) -> tuple[Bank, ...]:
        """All of them, in the order of the model's."""
        return self._banks

    def fillable(self, bank: int) -> int:
        """Records, from the first on, that the device can copy."""
        return self._reach(bank).records

    def shard_addresses(self, bank: int) -> tuple[int, ...]:
        """Addresses of the device, each of the first of `records_per_shard` fillable records that lie end to end."""
        return self._reach(bank).addresses

    def records_per_shard(self, bank: int) -> int:
        """Records at each of `shard_addresses`; the last may have fewer."""
        return self._reach(bank).per_address

    @property
    def notes(self) -> tuple[str, ...]:
        """What the user is told, once."""
        return self.loaded.notes

    @property
    def seconds(self) -> float:
        """What loading took."""
        return self.loaded.seconds

    def close(self) -> None:
        """Unpin everything, when the device is done with it. The memory goes with its last borrower."""
        if self._pinned is not None:
            self._pinned.free()
        self._pinned = None

    def _reach(self, bank: int) -> Reach:
        assert 0 <= bank < len(self._banks), f"bank {bank} of {len(self._banks)}"
        return Reach() if self._pinned is None else self._pinned.reach(bank)


def _read(ftw: Ftw, info: BankInfo, room: NDArray[np.uint8], progress: Progress) -> None:
    """The shards of one bank, end to end."""
    parts = [(ftw.folder / shard.file, 0, shard.size) for shard in info.shards]
    try:
        _native.read_files(parts, room, progress)
    except OSError as error:
        code = error.errno or errno.EIO
        name = os.fspath(error.filename) if error.filename is not None else str(ftw.folder)
        message = f"{name} cannot be read: {error.strerror or os.strerror(code)}."
        if code in _DAMAGED:
            raise CorruptFileError(message, AGAIN) from None
        raise FreetokenError(message, "Try it again.") from None


def _part_of(progress: Progress, before: int, total: int) -> Progress:
    """The progress of one bank as that of all."""
    return lambda done, _: progress(before + done, total)


def _too_little(pool: int, available: int) -> str:
    return (
        f"The experts take {format_size(pool)}, {format_size(available)} of memory are free: they stay on disk, "
        "and the CPU runs all of them."
    )


def _not_all(pinned: PinnedBanks, pool: int) -> str:
    assert pinned.refusal is not None
    remedy = pinned.refusal.remedy or pin_limit(read_hardware().memlock).remedy
    return (
        f"{format_size(pinned.bytes)} of {format_size(pool)} of experts could be pinned; the CPU runs the others. "
        f"{pinned.refusal.message} {remedy}".rstrip()
    )
