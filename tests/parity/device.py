"""A model on the simulated device, read from its files as a machine with a device reads them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

from engine.device.sim import SimDriver
from engine.experts.bank import HostBank
from engine.experts.split import Split
from engine.files.ftw.opening import Ftw
from engine.program.device.executor import DeviceExecutor
from engine.program.lowering.lower import lower
from engine.spec.feed_forward import Moe
from engine.spec.schema import Spec

MEMORY = 512 << 20
SPLIT = Split.carry(0.5)
Slots = Callable[[Ftw], list[int]]


def some_slots(ftw: Ftw) -> list[int]:
    """A few of each bank, fewer than a layer has experts."""
    return [0 if ordered(ftw, bank) else 4 for bank in range(len(ftw.banks))]


def all_slots(ftw: Ftw) -> list[int]:
    """One for every expert."""
    return [0 if ordered(ftw, number) else bank.count for number, bank in enumerate(ftw.banks)]


def ordered(ftw: Ftw, bank: int) -> bool:
    """Whether experts of a bank read their input in orders of their own, and are the CPU's."""
    return any(field.name.endswith(".order") for field in ftw.banks[bank].fields)


def can_run(spec: Spec) -> bool:
    """Whether a device runs such a model, whose layers may not choose different numbers of experts."""
    return len({layer.ffn.router.top_k for layer in spec.layers if isinstance(layer.ffn, Moe)}) < 2


@contextmanager
def on_device(ftw: Ftw, slots: Slots = some_slots, split: Split = SPLIT, **settings: Any) -> Iterator[DeviceExecutor]:
    """A device executor over a converted model."""
    driver = SimDriver(MEMORY, granularity=4096)
    with closing(HostBank.load(ftw, driver, MEMORY)) as host:
        assert not host.notes
        program = lower(Spec.from_json(ftw.spec))
        settings = {"threads": 1, "kv_dtype": "f32", "max_tokens": 64, **settings}
        with closing(DeviceExecutor(program, ftw, driver, host, slots=slots(ftw), split=split, **settings)) as executor:
            yield executor
            executor.check()
    assert driver.memory()[0] == driver.memory()[1]
