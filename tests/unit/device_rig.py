"""Device executors over models in memory, on the simulated device, beside native executors of the same models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from engine.device.sim import SimDriver
from engine.experts.bank import HostBank, Loaded
from engine.experts.pinning import HostRecords, PinnedBanks
from engine.experts.split import Split
from engine.files.ftw.manifest import Manifest
from engine.files.ftw.opening import Bank, Ftw, Tensor
from engine.program.device.executor import DeviceExecutor
from engine.program.executor import Batch
from engine.program.ir import Program
from engine.program.native import NativeExecutor

Floats = npt.NDArray[np.float32]
MIB = 1 << 20


@dataclass(frozen=True)
class Model:
    """What both executors are made from."""

    program: Program
    dense: Mapping[str, Tensor]
    banks: Sequence[Bank]

    def native(self, **settings: Any) -> NativeExecutor:
        settings = {"threads": 1, "kv_pages": 64, **settings}
        return NativeExecutor(self.program, self.dense, self.banks, **settings)

    def device(
        self,
        slots: int | Sequence[int] = 0,
        split: Split | None = None,
        *,
        driver: SimDriver | None = None,
        fillable: int | None = None,
        **settings: Any,
    ) -> DeviceExecutor:
        """`slots` of each bank; `fillable`: how many records of the first bank can be pinned."""
        driver = driver or SimDriver(256 * MIB, granularity=4096)
        settings = {"threads": 1, "kv_pages": 64, "max_tokens": 64, **settings}
        each = [slots] * len(self.banks) if isinstance(slots, int) else slots
        ftw = Ftw(Path("in-memory"), Manifest({}, {}, 0, (), {}, {}), self.dense, tuple(self.banks))
        host = host_bank(driver, self.banks)
        return DeviceExecutor(self.program, ftw, driver, host, slots=each, split=split or Split.all_fill(), **settings)


def host_bank(driver: SimDriver, banks: Sequence[Bank]) -> HostBank:
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


def assert_same_bits(ours: Floats, theirs: Floats) -> None:
    np.testing.assert_array_equal(ours.view(np.uint32), theirs.view(np.uint32))
