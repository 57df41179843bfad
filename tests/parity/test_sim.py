"""The simulated device against the native executor on models of every family: the same bits, and no less."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from engine.device.sim import SimDriver
from engine.experts.bank import HostBank
from engine.experts.split import Split
from engine.files.ftw.opening import Ftw
from engine.memory.blocks import ContextRoom
from engine.program.device.executor import DeviceExecutor
from engine.program.lowering.lower import lower
from engine.spec.schema import Spec

from .cases import CASES
from .check import batch, in_chunks, page_table, resumed, truth_of
from .conftest import Models, QuantisedModels
from .prepare import Prepared, native
from .test_native import assert_same_bits
from .test_quantised import EACH

MEMORY = 512 << 20
SPLIT = Split.carry(0.5)
FEW = (  # one a mixer, router, activation or form of experts
    "llama-odd-biased-tied",
    "qwen2_moe",
    "qwen3_moe-odd-mixed-layers",
    "olmoe-odd-normalised",
    "granitemoe-odd-tied",
    "deepseek_v2-groups-no-q-lora",
    "deepseek_v3-odd-biased",
    "deepseek_v3-groups-yarn",
    "gpt_oss-odd",
    "llama4-odd-wrapped",
    "qwen3_next-odd-mixed-layers",
    "qwen3_5_moe-odd-wrapped",
    "kimi_linear-odd-groups",
    "granitemoehybrid-odd-rope-limits",
    "lfm2_moe-odd-biased",
    "jamba-odd-biased",
    "nemotron_h-odd-groups",
    "bailing_hybrid-odd-unbounded",
)
RECURRENT = FEW[FEW.index("qwen3_next-odd-mixed-layers") :]
EVERY = [pytest.param(case.name, marks=() if case.name in FEW else pytest.mark.long) for case in CASES]
EVERY_CODEC = [
    pytest.param(family, codec, marks=() if family == "qwen3_moe" else pytest.mark.long) for family, codec in EACH
]
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


@contextmanager
def on_device(
    model: Prepared, slots: Slots = some_slots, split: Split = SPLIT, **settings: Any
) -> Iterator[DeviceExecutor]:
    """A device executor over a converted model, read from its files as a machine with a device reads them."""
    driver = SimDriver(MEMORY, granularity=4096)
    host = HostBank.load(model.ftw, driver, MEMORY)
    assert not host.notes
    program = lower(Spec.from_json(model.ftw.spec))
    settings = {"threads": 1, "kv_dtype": "f32", "max_tokens": 64, **settings}
    executor = DeviceExecutor(program, model.ftw, driver, host, slots=slots(model.ftw), split=split, **settings)
    try:
        yield executor
        executor.check()
    finally:
        executor.close()
        host.close()
    assert driver.memory()[0] == driver.memory()[1]


def assert_same_in_chunks(executor: DeviceExecutor, model: Prepared) -> None:
    prompt, yardstick = model.truth.prompt, native(model.ftw, threads=1)
    whole = in_chunks(yardstick, prompt, [len(prompt)])
    for sizes in ([len(prompt)], [1], [7, 1, 16, 5], [20]):
        assert_same_bits(in_chunks(executor, prompt, sizes), whole)


def assert_all_three_worked(executor: DeviceExecutor, model: Prepared) -> None:
    """Hits, fills and the CPU, where the model has experts that a device can run."""
    counters = executor.counters()
    cached = any(some_slots(model.ftw))
    assert [counters[name] > 0 for name in ("hits", "fills")] == [cached, cached]
    assert (counters["cpu_experts"] > 0) == bool(model.ftw.banks)


@pytest.mark.parametrize("name", EVERY)
def test_every_family_has_the_bits_of_the_native_executor(models: Models, name: str) -> None:
    model = models(name)
    with on_device(model) as executor:
        assert_same_in_chunks(executor, model)
        assert_all_three_worked(executor, model)
        states = truth_of(executor, model.truth).states
    for ours, theirs in zip(states, truth_of(native(model.ftw), model.truth).states, strict=True):
        assert_same_bits(ours, theirs)


@pytest.mark.parametrize(("family", "codec"), EVERY_CODEC)
def test_every_codec_and_every_order_of_columns(quantised_models: QuantisedModels, family: str, codec: str) -> None:
    model = quantised_models(family, codec)
    with on_device(model) as executor:
        assert_same_in_chunks(executor, model)
        assert_all_three_worked(executor, model)


@pytest.mark.parametrize("name", [name for name in FEW if name != "llama-odd-biased-tied"])
def test_a_cache_of_all_experts_and_none_at_all(models: Models, name: str) -> None:
    model = models(name)
    with on_device(model, all_slots, Split.all_fill()) as executor:
        assert_same_in_chunks(executor, model)
        assert executor.counters()["cpu_experts"] == 0
        assert executor.counters()["hits"] > 0
    with on_device(model, lambda ftw: [0] * len(ftw.banks), signals="host") as executor:
        assert_same_in_chunks(executor, model)
        assert executor.counters()["hits"] + executor.counters()["fills"] == 0


@pytest.mark.parametrize("name", RECURRENT)
def test_a_prompt_goes_on_from_a_state_that_was_saved_on_the_device(models: Models, name: str) -> None:
    model = models(name)
    prompt, yardstick = model.truth.prompt, native(model.ftw, threads=1)
    whole = in_chunks(yardstick, prompt, [len(prompt)])
    with on_device(model) as executor:
        for logits in resumed(executor, yardstick, prompt, 32):
            assert_same_bits(logits, whole[32:])


@pytest.mark.parametrize("name", RECURRENT)
def test_experts_and_context_that_change_size_on_the_way_change_no_bit(models: Models, name: str) -> None:
    model = models(name)
    prompt = model.truth.prompt
    whole = in_chunks(native(model.ftw, threads=1), prompt, [len(prompt)])
    with on_device(model) as executor:
        pages, found = page_table(executor, len(prompt)), []
        most = executor.room
        rooms = (most, ContextRoom(most.pages, most.windows, 1), ContextRoom(2 * most.pages, 2 * most.windows, 7))
        slots = (some_slots(model.ftw), [0] * len(model.ftw.banks), all_slots(model.ftw))
        for part, (room, each) in enumerate(zip(rooms, slots, strict=True)):
            executor.resize_context(room)
            executor.resize_experts(each)
            chunk = prompt[part * 15 : (part + 1) * 15]
            found.append(executor.step(batch(chunk, part * 15, pages, range(len(chunk)))))
        executor.check()
    assert_same_bits(np.concatenate(found), whole[:45])
