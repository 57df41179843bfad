"""The experts of a model on a device: slots, caches and the hybrid step of every bank, from what is in host memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from engine.base.errors import NoRoomError
from engine.device.driver import Driver, Stream
from engine.experts.arena import SlotArena
from engine.experts.bank import HostBank
from engine.experts.bank_on_device import BankOnDevice
from engine.experts.cache import COUNTS, ExpertCache
from engine.experts.hybrid import PREFILL, BranchSeconds, HybridExperts, Signals
from engine.experts.prefill import PrefillPolicy
from engine.experts.split import Split
from engine.files.ftw.opening import Bank
from engine.program.device.launching import cannot_run
from engine.program.executor import Ints
from engine.program.ir import Program
from engine.spec.layout import ORDER


@dataclass(frozen=True)
class ExpertRoom:
    """Slots of one bank: how many there are, may be, and what one takes of the device."""

    slots: int
    capacity: int
    record_bytes: int


class DeviceExperts:
    """The banks of a model on a device. A program without experts has none.

    `slots` are those of each bank to begin with. Raises NoRoomError, and leaves nothing behind.
    """

    def __init__(
        self,
        driver: Driver,
        program: Program,
        host: HostBank,
        stream: Stream,
        *,
        slots: Sequence[int],
        split: Split,
        max_tokens: int,
        threads: int | None,
        isa: str,
        patience: float,
        signals: Signals,
        prefill: PrefillPolicy = PREFILL,
    ) -> None:
        assert len(slots) == len(host), f"slots of {len(slots)} banks for {len(host)}"
        ops = [op for op in program.ops if op.kind == "experts"]
        self._layers = tuple(int(op.attrs["layer"]) for op in ops)
        self._banks = host.banks
        self._arenas: list[SlotArena] = []
        self._caches: list[ExpertCache] = []
        self.hybrid: HybridExperts | None = None
        top_k = max((program.buffers[op.reads[1]].width for op in ops), default=0)
        for op in ops:
            if program.buffers[op.reads[1]].width != top_k:
                raise cannot_run(op, "its tokens go to fewer experts than those of other layers")
        with ExitStack() as made:
            on_device = []
            for index, bank in enumerate(self._banks):
                capacity = slot_capacity(bank, host.fillable(index))
                arena = SlotArena(driver, bank.record_bytes, capacity)
                made.callback(arena.close)
                cache = ExpertCache(
                    driver,
                    arena,
                    layers=len(bank.layers),
                    experts=bank.experts_per_layer,
                    record_bytes=bank.record_bytes,
                    fillable=host.fillable(index),
                    capacity=capacity,
                    slots=slots[index],
                    split=split,
                    top_k=top_k,
                    max_tokens=max_tokens,
                )
                made.callback(cache.free)
                shards = np.asarray(host.shard_addresses(index) or (0,), np.uint64)
                table = driver.allocate(shards.nbytes)
                made.callback(table.free)
                driver.upload(table.address, shards)
                self._arenas.append(arena)
                self._caches.append(cache)
                on_device.append(BankOnDevice(bank, table.address, host.records_per_shard(index), arena, cache))
            if ops:
                self.hybrid = HybridExperts(
                    driver,
                    ops,
                    on_device,
                    top_k=top_k,
                    max_tokens=max_tokens,
                    main=stream,
                    threads=threads,
                    isa=isa,
                    patience=patience,
                    signals=signals,
                    prefill=prefill,
                )
                made.callback(self.hybrid.close)
            self._made = made.pop_all()

    # --- steps

    @property
    def shape(self) -> tuple[bool, ...]:
        """What the launches of a step depend on, and on nothing else that may change."""
        return self.hybrid.shape if self.hybrid is not None else ()

    def begin_step(self) -> None:
        """Before anything of a step is issued. BusyError while the CPU is still stuck in an older one."""
        if self.hybrid is not None:
            self.hybrid.begin_step()

    def plan_step(self, tokens: int, more: int) -> None:
        """Then: it has so many tokens, and one of `more` is due after it; 0 for what streams no layers."""
        if self.hybrid is not None:
            self.hybrid.plan_step(tokens, more)

    def end_step(self) -> None:
        """When the device is done with a step. FreetokenError where the CPU's share failed."""
        if self.hybrid is not None:
            self.hybrid.end_step()

    def step_done(self) -> None:
        """After `end_step`, where all went well."""
        if self.hybrid is not None:
            self.hybrid.step_done()

    @property
    def is_streaming(self) -> bool:
        """Whether whole layers were streamed in the last step."""
        return self.hybrid is not None and self.hybrid.is_streaming

    # --- between two steps

    def settle(self) -> None:
        """Wait for what is on its way into slots, and write down what they hold."""
        if self.hybrid is not None:
            self.hybrid.settle()

    def rooms(self) -> tuple[ExpertRoom, ...]:
        """Each bank's."""
        banks = zip(self._banks, self._arenas, self._caches, strict=True)
        return tuple(ExpertRoom(cache.slots, arena.capacity, bank.record_bytes) for bank, arena, cache in banks)

    def resize(self, slots: Sequence[int]) -> None:
        """What shrinks goes first, so that its room is there for what grows. NoRoomError, and the old slots stand."""
        assert len(slots) == len(self._caches), f"slots of {len(slots)} banks for {len(self._caches)}"
        self.settle()
        before = [cache.slots for cache in self._caches]
        order = sorted(range(len(slots)), key=lambda bank: slots[bank] - before[bank])
        try:
            for bank in order:
                self._caches[bank].resize(slots[bank])
        except NoRoomError:
            for bank in sorted(order, key=lambda bank: before[bank] - self._caches[bank].slots):
                self._caches[bank].resize(before[bank])
            raise

    def set_split(self, split: Split) -> None:
        """Divide misses in this way from the next step on."""
        for cache in self._caches:
            cache.set_split(split)

    def tend(self) -> None:
        """Now and then: what clocks and stamps need before they run over."""
        self.settle()
        for cache in self._caches:
            cache.tend()

    def forget(self) -> None:
        """After a step that failed: nobody knows which of its fills were done."""
        try:
            if self.hybrid is not None:
                self.hybrid.forget()
        finally:
            for cache in self._caches:
                cache.clear()

    @property
    def caches(self) -> tuple[ExpertCache, ...]:
        """Each bank's, with nothing on its way into them."""
        self.settle()
        return tuple(self._caches)

    def check(self) -> None:
        """AssertionError unless every slot holds the record that the tables say."""
        self.settle()
        for bank, cache in zip(self._banks, self._caches, strict=True):
            cache.check(partial(_bytes_of, bank))

    # --- what happened

    def layer_counts(self) -> Ints:
        """int32 [MoE layers, 5] of the last step, by COUNTS, in the order of the program."""
        of_layer = {
            layer: counts
            for bank, cache in zip(self._banks, self._caches, strict=True)
            for layer, counts in zip(bank.layers, cache.layer_counts(), strict=True)
        }
        return np.array([of_layer[layer] for layer in self._layers], np.int32).reshape(-1, len(COUNTS))

    def take_seconds(self) -> BranchSeconds:
        """Of both branches since the last call; layers in the order of the program."""
        if self.hybrid is None:
            return BranchSeconds(np.zeros(0), 0.0)
        taken = self.hybrid.take_seconds()
        return BranchSeconds(taken.fills[list(self._layers)], taken.host)

    def counters(self) -> Mapping[str, float]:
        """Totals since the start, in distinct experts of a layer and step."""
        totals = [cache.read_totals() for cache in self._caches]
        stream = self.hybrid.stream if self.hybrid is not None else None
        sizes = [bank.record_bytes for bank in self._banks]
        return {
            "experts_run": sum(total.distinct for total in totals),
            "expert_bytes": sum(total.distinct * size for total, size in zip(totals, sizes, strict=True)),
            "distinct": sum(total.distinct for total in totals),
            "hits": sum(total.hits for total in totals),
            "misses": sum(total.misses for total in totals),
            "fills": sum(total.fills for total in totals),
            "cpu_experts": sum(total.cpu for total in totals),
            "plans": sum(total.plans for total in totals),
            "streamed": stream.streamed_records if stream is not None else 0,
            "streamed_bytes": stream.streamed_bytes if stream is not None else 0,
        }

    def free(self) -> None:
        """End the worker and give all memory back."""
        self._made.close()


def _bytes_of(bank: Bank, record: int) -> NDArray[np.uint8]:
    return np.frombuffer(bank.record(record), np.uint8)


def slot_capacity(bank: Bank, fillable: int) -> int:
    """The most slots of use to a bank: one a record that can be filled.

    None where experts read their input in orders of their own, which is the CPU's alone to do.
    """
    ordered = any(field.name.endswith(ORDER) for field in bank.fields)
    return 0 if ordered else fillable
