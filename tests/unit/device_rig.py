"""Device executors over models in memory, on the simulated device, beside native executors of the same models."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from engine.device.driver import Driver
from engine.device.sim import SimDriver
from engine.experts.bank import HostBank, Loaded
from engine.experts.pinning import HostRecords, PinnedBanks
from engine.experts.split import Split
from engine.files.ftw.manifest import Manifest
from engine.files.ftw.opening import Bank, Ftw, Tensor
from engine.memory.blocks import ContextRoom
from engine.program.device.executor import DeviceExecutor
from engine.program.device.pinned import pinned_bytes
from engine.program.executor import Batch
from engine.program.ir import Program
from engine.program.native import NativeExecutor
from tests.same_bits import assert_same_bits
from tests.unit.native_model import EXPERTS, VOCAB, RandomModel

Floats = npt.NDArray[np.float32]
MIB = 1 << 20


@dataclass(frozen=True)
class Model:
    """What both executors are made from."""

    program: Program
    dense: Mapping[str, Tensor]
    banks: Sequence[Bank]

    def native(self, **settings: Any) -> NativeExecutor:
        settings = {"threads": 1, "room": ContextRoom(64), **settings}
        return NativeExecutor(self.program, self.dense, self.banks, **settings)

    def device(
        self,
        slots: int | Sequence[int] = 0,
        split: Split | None = None,
        *,
        driver: Driver | None = None,
        make: Callable[..., DeviceExecutor] = DeviceExecutor,
        **settings: Any,
    ) -> DeviceExecutor:
        """`slots` of every bank, or of each."""
        driver = driver or SimDriver(256 * MIB, granularity=4096)
        settings = {"threads": 1, "room": ContextRoom(64), "max_tokens": 64, **settings}
        each = [slots] * len(self.banks) if isinstance(slots, int) else slots
        ftw = Ftw(Path("in-memory"), Manifest({}, {}, 0, (), {}, {}), self.dense, tuple(self.banks))
        spared = driver.host(pinned_bytes(self.program, settings["max_tokens"]))
        host = host_bank(driver, self.banks)
        spared.free()
        return make(self.program, ftw, driver, host, slots=each, split=split or Split.all_fill(), **settings)


def moe_model(codec: str = "f32", layers: int = 3, seed: int = 0) -> Model:
    """Attention and MoE layers in turn: all experts of different weights, in one bank of gate_up records.

    A last MoE layer, in a bank of its own, has gate and up apart, biases and another activation.
    """
    random = RandomModel(codec, seed)
    for layer in range(layers):
        random.attention(window=9 if layer % 2 else 0)
        random.moe()
    random.moe(biases=True, fused=False, activation="clamped_silu", scoring="softmax_topk", normalize=False)
    program = random.program()
    return Model(program, random.dense, (one_bank(random.banks[:layers]), random.banks[layers]))


def one_bank(banks: Sequence[Bank]) -> Bank:
    """Banks of one layout, a layer each, as one bank of several layers."""
    shards = tuple(shard for bank in banks for shard in bank.shards)
    records = memoryview(np.concatenate([np.frombuffer(shard, np.uint8) for shard in shards]))
    layers = tuple(layer for bank in banks for layer in bank.layers)
    return replace(banks[0], layers=layers, shards=(records,), records_per_shard=len(layers) * EXPERTS)


def host_bank(driver: Driver, banks: Sequence[Bank]) -> HostBank:
    """Banks in one piece of host memory each, as loading leaves them."""
    joined, records = [], []
    for bank in banks:
        data = memoryview(np.concatenate([np.frombuffer(shard, np.uint8) for shard in bank.shards]))
        joined.append(replace(bank, shards=(data,), records_per_shard=bank.count))
        records.append(HostRecords(data, bank.record_bytes))
    return HostBank(joined, PinnedBanks(driver, records), Loaded())


def sequence(
    tokens: Sequence[int], start: int = 0, pages: Sequence[int] = (), rows: Sequence[int] | None = None
) -> Batch:
    """Tokens of one sequence from position `start` on; all logits are wanted unless `rows` says which."""
    return several([(tokens, start, pages)], rows)


def several(parts: Sequence[tuple[Sequence[int], int, Sequence[int]]], rows: Sequence[int] | None = None) -> Batch:
    """Several sequences, each as (tokens, position of the first, pages)."""
    counts = [len(tokens) for tokens, _, _ in parts]
    tables = [
        np.asarray(pages or range(-(-(start + len(tokens)) // 16)), np.int32)[::-1].copy()
        for tokens, start, pages in parts
    ]
    total = sum(counts)
    return Batch(
        tokens=np.concatenate([np.asarray(tokens, np.int32) for tokens, _, _ in parts]),
        positions=np.concatenate(
            [np.arange(s, s + n, dtype=np.int32) for (_, s, _), n in zip(parts, counts, strict=True)]
        ),
        seq_starts=np.cumsum([0, *counts]).astype(np.int32),
        page_tables=tuple(tables),
        rows=np.asarray(range(total) if rows is None else rows, np.int32),
    )


class Talk:
    """The same steps of growing sequences on a native and on a device executor, whose logits must be the same bits."""

    PAGES = 12  # of a sequence

    def __init__(self, native: NativeExecutor, device: DeviceExecutor, seed: int = 0) -> None:
        self.native, self.device = native, device
        self._random = np.random.default_rng(seed)
        self._lengths: dict[int, int] = {}

    def batch(self, **counts: int) -> Batch:
        """So many new tokens of each sequence; `s3=5` are five of sequence 3. Nothing is kept in mind of it."""
        parts = []
        for name, count in counts.items():
            number = int(name[1:])
            tokens = self._random.integers(0, VOCAB, count).tolist()
            first = number * self.PAGES
            parts.append((tokens, self._lengths.get(number, 0), range(first, first + self.PAGES)))
        return several(parts)

    def step(self, **counts: int) -> Floats:
        """One step, kept in mind, and its logits."""
        batch = self.batch(**counts)
        for name, count in counts.items():
            self._lengths[int(name[1:])] = self._lengths.get(int(name[1:]), 0) + count
        logits = self.device.step(batch)
        assert_same_bits(logits, self.native.step(batch))
        return logits

    def all_kinds(self) -> None:
        """Prompts whole and in chunks, single tokens, several sequences, and steps too long for a graph."""
        self.step(s0=20)
        self.step(s0=1)
        self.step(s0=1, s1=7)
        self.step(s1=3, s0=1, s2=16)
        self.step(s0=33, s2=5)
        for _ in range(3):
            self.step(s0=1, s1=1, s2=1)
