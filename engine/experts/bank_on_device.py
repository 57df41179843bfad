"""A bank in both places: in host memory, and what the device has of it."""

from __future__ import annotations

from dataclasses import dataclass

from engine.experts.arena import SlotArena
from engine.experts.cache import ExpertCache
from engine.files.ftw.opening import Bank


@dataclass(frozen=True)
class BankOnDevice:
    """A bank as the CPU reads it, and what the device has of it.

    `shards` is the address of a table of u64 addresses, each of `records_per_shard` records that `fill` copies from.
    """

    bank: Bank
    shards: int
    records_per_shard: int
    slots: SlotArena
    cache: ExpertCache
