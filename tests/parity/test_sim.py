"""The simulated device against the native executor on models of every family: the same bits, and no less."""

from __future__ import annotations

import numpy as np
import pytest

from engine.base.errors import UnsupportedError
from engine.experts.split import Split
from engine.memory.blocks import ContextRoom
from engine.program.device.executor import DeviceExecutor
from engine.program.lowering.lower import lower
from tests.same_bits import assert_same_bits

from .check import batch, in_chunks, page_table, resumed, truth_of
from .conftest import Models, QuantisedModels
from .device import all_slots, can_run, on_device, some_slots
from .prepare import Prepared, native
from .sample import EVERY_CASE, sample, specs
from .test_quantised import EACH

STATEFUL = [name for name in sorted(sample()) if lower(specs()[name]).states]
WITH_EXPERTS = [name for name in sorted(sample()) if specs()[name].moe_layers and can_run(specs()[name])]
ON_A_DEVICE = [case for case in EVERY_CASE if can_run(specs()[str(case.values[0])])]


def assert_same_in_chunks(executor: DeviceExecutor, model: Prepared) -> None:
    prompt, yardstick = model.truth.prompt, native(model.ftw, threads=1)
    whole = in_chunks(yardstick, prompt, [len(prompt)])
    for sizes in ([len(prompt)], [1], [7, 1, 16, 5]):
        assert_same_bits(in_chunks(executor, prompt, sizes), whole)


def assert_all_three_worked(executor: DeviceExecutor, model: Prepared) -> None:
    """Hits, fills and the CPU, where the model has experts that a device can run."""
    counters = executor.counters()
    cached = any(some_slots(model.ftw))
    assert [counters[name] > 0 for name in ("hits", "fills")] == [cached, cached]
    assert (counters["cpu_experts"] > 0) == bool(model.ftw.banks)


@pytest.mark.parametrize("name", ON_A_DEVICE)
def test_every_family_has_the_bits_of_the_native_executor(models: Models, name: str) -> None:
    model = models(name)
    with on_device(model.ftw) as executor:
        assert_same_in_chunks(executor, model)
        assert_all_three_worked(executor, model)
        states = truth_of(executor, model.truth).states
    for ours, theirs in zip(states, truth_of(native(model.ftw), model.truth).states, strict=True):
        assert_same_bits(ours, theirs)


@pytest.mark.parametrize("name", sorted(name for name, spec in specs().items() if not can_run(spec)))
def test_layers_that_choose_different_numbers_of_experts_are_refused(models: Models, name: str) -> None:
    refusal = pytest.raises(UnsupportedError, match="fewer experts than those of other layers")
    with refusal as caught, on_device(models(name).ftw):
        pass
    assert "--device cpu" in caught.value.remedy


@pytest.mark.parametrize(("family", "codec"), EACH)
def test_every_codec_and_every_order_of_columns(quantised_models: QuantisedModels, family: str, codec: str) -> None:
    model = quantised_models(family, codec)
    with on_device(model.ftw) as executor:
        assert_same_in_chunks(executor, model)
        assert_all_three_worked(executor, model)


@pytest.mark.parametrize("name", WITH_EXPERTS)
def test_a_cache_of_all_experts_and_none_at_all(models: Models, name: str) -> None:
    model = models(name)
    with on_device(model.ftw, all_slots, Split.all_fill()) as executor:
        assert_same_in_chunks(executor, model)
        assert executor.counters()["cpu_experts"] == 0
        assert executor.counters()["hits"] > 0
    with on_device(model.ftw, lambda ftw: [0] * len(ftw.banks), signals="host") as executor:
        assert_same_in_chunks(executor, model)
        assert executor.counters()["hits"] + executor.counters()["fills"] == 0


@pytest.mark.parametrize("name", STATEFUL)
def test_a_prompt_goes_on_from_a_state_that_was_saved_on_the_device(models: Models, name: str) -> None:
    model = models(name)
    prompt, yardstick = model.truth.prompt, native(model.ftw, threads=1)
    whole = in_chunks(yardstick, prompt, [len(prompt)])
    with on_device(model.ftw) as executor:
        for logits in resumed(executor, yardstick, prompt, 32):
            assert_same_bits(logits, whole[32:])


@pytest.mark.parametrize("name", STATEFUL)
def test_experts_and_context_that_change_size_on_the_way_change_no_bit(models: Models, name: str) -> None:
    model = models(name)
    prompt = model.truth.prompt
    whole = in_chunks(native(model.ftw, threads=1), prompt, [len(prompt)])
    with on_device(model.ftw) as executor:
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
