"""A device without arithmetic: the fake executor with a cache of experts whose hits a formula makes up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from engine.base.errors import NoRoomError
from engine.base.units import ExpertRoom, KvBudget
from engine.experts.balance import Balancer
from engine.experts.machines import machine_named
from engine.experts.split import DEFAULT_SPLIT, Split
from engine.memory.blocks import ContextRoom
from engine.memory.budget import ContextNeeds
from engine.memory.device_budget import DeviceNeeds, plan_device
from engine.memory.slots import BankSize, SlotTable
from engine.program.executor import Batch, Floats, Ints
from engine.worker.device_planner import DevicePlanner, budget_of, kept_free
from engine.worker.experts import CachedExperts, VirtualClock
from engine.worker.loaded import LoadedModel
from tests.unit.fake_executor import FakeExecutor, fake_model

LAYERS, EXPERTS, TOP_K, RECORD = 4, 16, 2, 1000
TOTAL = 500_000
NEEDS = DeviceNeeds(
    weights=10_000,
    buffers=5_000,
    kept=ContextNeeds(100),
    model_context=4096,
    table=SlotTable((BankSize(RECORD, LAYERS * EXPERTS, LAYERS * EXPERTS),), TOP_K),
)


@dataclass(frozen=True)
class BankRoom:
    slots: int
    capacity: int
    record_bytes: int


class FakeDevice(FakeExecutor):
    """Fulfils `engine.worker.experts.CachingExecutor`. `size` bytes may be taken by slots and pages together."""

    def __init__(self, room: ContextRoom, slots: Sequence[int], *, pace: float = 0.0, size: int = TOTAL) -> None:
        super().__init__(room, pace=pace)
        self.slots = tuple(slots)
        self.size = size
        self.splits: list[Split] = []
        self.moves: list[str] = []
        self.broken = 0  # steps that fail from now on
        self.is_streaming = False

    @property
    def taken(self) -> int:
        return NEEDS.fixed + self.room.pages * 1600 + sum(self.slots) * RECORD

    def experts(self) -> tuple[BankRoom, ...]:
        return tuple(BankRoom(slots, LAYERS * EXPERTS, RECORD) for slots in self.slots)

    def resize_experts(self, slots: Sequence[int]) -> None:
        self._check((sum(slots) - sum(self.slots)) * RECORD)
        self.moves.append(f"experts {self.slots[0]} {slots[0]}")
        self.slots = tuple(slots)

    def resize_context(self, room: ContextRoom) -> None:
        self._check((room.pages - self.room.pages) * 1600)
        self.moves.append(f"kv {self.room.pages} {room.pages}")
        super().resize_context(room)

    def _check(self, more: int) -> None:
        if self.taken + more > self.size:
            raise NoRoomError(f"The device lacks {self.taken + more - self.size} bytes.", "Give less.")

    def set_split(self, split: Split) -> None:
        self.splits.append(split)

    def step(self, batch: Batch) -> Floats:
        if self.broken:
            self.broken -= 1
            raise NoRoomError("The CPU did not finish its experts.", "Send the request again.")
        return super().step(batch)

    def layer_counts(self) -> Ints:
        """Of 4 experts a layer as many hit as slots allow; misses are halved."""
        hits = 4 * sum(self.slots) // (LAYERS * EXPERTS)
        misses = 4 - hits
        return np.array([[4, hits, misses, -(-misses // 2), misses // 2]] * LAYERS, np.int32)


def fake_device_model(
    kv: KvBudget | None = None, experts: ExpertRoom | None = None, *, size: int = TOTAL, pace: float = 0.0
) -> LoadedModel:
    """A loaded fake on a device of `size` bytes, and what no plan gives away besides."""
    plan = plan_device(NEEDS, size, kv=kv, experts=experts)
    device = FakeDevice(ContextRoom(plan.context.pages), plan.slots, pace=pace, size=size)
    clock = VirtualClock(machine_named("rtx4090-server"), [RECORD] * LAYERS)
    return replace(
        fake_model(),
        executor=device,
        context_limit=4096,
        budget=budget_of(plan),
        planner=DevicePlanner(NEEDS, 4096, None, size, lambda: device.size - device.taken + kept_free(size)),
        device="sim",
        device_text="simulated device",
        experts=CachedExperts(device, clock, Balancer(DEFAULT_SPLIT)),
    )
