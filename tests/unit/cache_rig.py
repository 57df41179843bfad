"""An expert cache on the simulated device, with real bytes in its records, beside the model of what it must do."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from engine.device.driver import Driver
from engine.device.sim import SimDriver
from engine.experts.arena import SlotArena
from engine.experts.cache import ExpertCache, Totals
from engine.experts.split import CARRIED, Split
from tests.unit.cache_model import CacheModel, Planned, Rule

RECORD_BYTES = 4096
RECORDS_A_SHARD = 7


@dataclass(frozen=True)
class Geometry:
    """Of a bank and its cache."""

    layers: int = 2
    experts: int = 8
    slots: int = 6
    top_k: int = 2
    max_tokens: int = 4
    fillable: int | None = None  # all
    threads: int = 32

    @property
    def records(self) -> int:
        return self.layers * self.experts


def rule_of(split: Split) -> Rule:
    return Rule(split.rule, split.fixed, split.table)


class HostRecords:
    """Records that differ, in shards that the device reaches, and the table of the shards' addresses."""

    def __init__(self, driver: Driver, records: int) -> None:
        self.bytes = np.random.default_rng(records).integers(0, 256, (records, RECORD_BYTES), np.uint8)
        shards = [self.bytes[first : first + RECORDS_A_SHARD] for first in range(0, records, RECORDS_A_SHARD)]
        self._pinned = [driver.pin(shard, shard.nbytes) for shard in shards]
        self._table = driver.allocate(8 * len(shards))
        driver.upload(self._table.address, np.array([pinned.address for pinned in self._pinned], np.uint64))

    def free(self) -> None:
        for part in (*self._pinned, self._table):
            part.free()

    @property
    def shards(self) -> int:
        return self._table.address

    def record(self, number: int) -> NDArray[np.uint8]:
        return self.bytes[number]


class CacheRig:
    """`step` does one on both; `compare` holds one to the other."""

    def __init__(self, geometry: Geometry, split: Split, *, driver: SimDriver | None = None, seed: int = 0) -> None:
        self.geometry = geometry
        self.driver = driver or SimDriver(memory=64 << 20, seed=seed, granularity=4096)
        fillable = geometry.records if geometry.fillable is None else geometry.fillable
        self.records = HostRecords(self.driver, geometry.records)
        self.arena = SlotArena(self.driver, RECORD_BYTES, geometry.records)
        self.cache = ExpertCache(
            self.driver,
            self.arena,
            layers=geometry.layers,
            experts=geometry.experts,
            record_bytes=RECORD_BYTES,
            fillable=fillable,
            capacity=geometry.records,
            slots=geometry.slots,
            split=split,
            top_k=geometry.top_k,
            max_tokens=geometry.max_tokens,
            threads=geometry.threads,
        )
        self.model = CacheModel(geometry.records, geometry.slots, fillable, rule_of(split), geometry.experts)
        self.stream = self.driver.stream("main")
        self._ids = self.driver.allocate(4 * geometry.max_tokens * geometry.top_k)
        self._rows = self.driver.allocate(4)

    def issue(self, tokens: Sequence[Sequence[int]], bucket: int, layer: int) -> Planned:
        """One plan and its fills; what the device decided."""
        top_k = self.geometry.top_k
        ids = np.full(bucket * top_k, 10**6, np.int32)  # padding holds anything
        ids[: len(tokens) * top_k] = [expert for token in tokens for expert in token]
        self.driver.upload(self._ids.address, ids)
        self.driver.upload(self._rows.address, np.array([len(tokens)], np.int32))
        self.cache.launch_plan(self.stream, layer, self._ids.address, self._rows.address, bucket)
        self.cache.launch_fill(self.stream, layer, self.records.shards, RECORDS_A_SHARD)
        self.driver.synchronise(self.stream)
        target = np.zeros(bucket * top_k, np.int32)
        self.driver.download(self.cache.target, target)
        names = ("distinct", "hits", "misses", "fills", "cpu")
        counts = dict(zip(names, self.cache.layer_counts()[layer].tolist(), strict=True))
        fills = self.cache.tables.read("fills").reshape(-1, 2)[: counts["fills"]]
        return Planned(target.tolist(), [(record, slot) for record, slot in fills.tolist()], counts)

    def step(self, tokens: Sequence[Sequence[int]], bucket: int, layer: int) -> Planned:
        """One plan on both, which must agree; what they decided."""
        found = self.issue(tokens, bucket, layer)
        wanted = self.model.plan(tokens, bucket, self.geometry.top_k, layer * self.geometry.experts)
        assert found.target == wanted.target
        assert found.counts == wanted.counts
        assert found.fills == wanted.fills
        return found

    def compare(self) -> None:
        """The whole state, and the bytes in every slot."""
        cache, model = self.cache.snapshot(), self.model
        assert (cache.slots, cache.clock) == (model.slots, model.clock)
        assert cache.carry == model.rule.carry
        assert {slot: record for slot, record in enumerate(cache.owner.tolist()) if record >= 0} == model.held
        assert {slot: stamp for slot, stamp in enumerate(cache.slot_used.tolist()) if stamp} == model.slot_stamp
        stamps = {record: stamp for record, stamp in enumerate(cache.expert_used.tolist()) if stamp}
        assert stamps == model.record_stamp
        assert self.cache.read_totals() == Totals(**model.totals)
        self.cache.check(self.records.record)

    def resize(self, slots: int) -> None:
        moved = self.cache.resize(slots)
        assert moved == self.model.resize(slots)

    def age(self, plans: int) -> None:
        """As if so many plans had passed: the clock and all stamps but 0 are that much larger."""
        tables = self.cache.tables
        tables.write_state(clock=tables.read_state()["clock"] + plans)
        for name in ("expert_used", "slot_used"):
            used = tables.read(name)
            tables.write(name, np.where(used, used + np.uint32(plans), used))
        self.model.clock += plans
        for stamps in (self.model.record_stamp, self.model.slot_stamp):
            stamps.update({key: stamp + plans for key, stamp in stamps.items()})

    def free(self) -> None:
        for part in (self.cache, self._ids, self._rows, self.records):
            part.free()
        self.arena.close()

    def set_split(self, split: Split) -> None:
        self.cache.set_split(split)
        carry = self.model.rule.carry
        self.model.rule = rule_of(split)
        self.model.rule.carry = carry


def random_tokens(rng: random.Random, experts: int, top_k: int, rows: int) -> list[list[int]]:
    """Distinct experts a token, as routers choose them; tokens often choose alike, and some experts are favourites."""
    favourites = range(min(experts, top_k + 2))
    tokens: list[list[int]] = []
    for _ in range(rows):
        if tokens and rng.random() < 0.3:
            tokens.append(tokens[-1])
        elif rng.random() < 0.5:
            tokens.append(rng.sample(favourites, top_k))
        else:
            tokens.append(rng.sample(range(experts), top_k))
    return tokens


def random_split(rng: random.Random) -> Split:
    kind = rng.randrange(6)
    if kind == 0:
        return Split.all_fill()
    if kind == 1:
        return Split.all_cpu()
    if kind < 4:
        return Split.carry(rng.choice([0.0, 1.0, 0.25, rng.random(), rng.random()]))
    length = rng.randrange(1, 8)
    fills = [rng.randrange(m + 1) for m in range(length)]
    carried = [CARRIED if rng.random() < 0.2 else q for q in fills[:-1]]
    return Split("table", rng.random(), (*carried, fills[-1]))
