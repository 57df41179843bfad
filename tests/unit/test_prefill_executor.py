"""Long prompts of a whole model on a device: the native executor's bits, whatever comes in which form."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from engine.device.sim import SimDriver
from engine.experts.split import Split
from engine.files.codecs import CODECS
from engine.program.device.executor import DeviceExecutor
from tests.same_bits import assert_same_bits
from tests.unit.device_rig import MIB, Model, Talk, moe_model
from tests.unit.prefill_rig import LONG, Ring


class Reading(Talk):
    """Says how much of a prompt is still to be read."""

    def read(self, more: int, **counts: int) -> None:
        batch = replace(self.batch(**counts), more=more)
        for name, count in counts.items():
            self._lengths[int(name[1:])] = self._lengths.get(int(name[1:]), 0) + count
        assert_same_bits(self.device.step(batch), self.native.step(batch))


def prompts(model: Model, executor: DeviceExecutor) -> None:
    """A prompt in chunks, tokens of it, another one with a stream beside it, a short end, and one that breaks off."""
    talk = Reading(model.native(), executor)
    talk.read(LONG, s0=LONG)
    talk.read(0, s0=LONG)
    assert executor.is_streaming
    for _ in range(3):
        talk.read(0, s0=1)
        assert not executor.is_streaming
    talk.read(5, s0=1, s1=LONG)
    talk.read(0, s1=5)
    talk.read(LONG, s2=LONG)
    talk.read(0, s0=1, s1=1)
    executor.check()
    assert executor.counters()["streamed"] > 0


USUAL = ("f32", "mxfp4", "q8_0")


@pytest.mark.parametrize("codec", [pytest.param(c, marks=() if c in USUAL else pytest.mark.long) for c in CODECS])
def test_every_codec(codec: str) -> None:
    model = moe_model(codec)
    executor = model.device((9, 3), Split.carry(0.5))
    prompts(model, executor)
    executor.close()


@pytest.mark.parametrize("slots", [(2, 2), (3, 8), (24, 0), (16, 4)])
@pytest.mark.parametrize("ring", [None, 4])
def test_any_number_of_slots(slots: tuple[int, int], ring: int | None) -> None:
    model = moe_model("q4_0")
    policy = {} if ring is None else {"prefill": Ring(ring)}
    executor = model.device(slots, Split.all_fill(), driver=SimDriver(256 * MIB, granularity=4096, seed=3), **policy)
    prompts(model, executor)
    executor.close()


def test_too_few_slots_and_all_cpu_are_the_present_form() -> None:
    model = moe_model("q4_0")
    for slots, split in (((1, 1), Split.all_fill()), ((16, 8), Split.all_cpu())):
        executor = model.device(slots, split)
        talk = Reading(model.native(), executor)
        talk.read(LONG, s0=LONG)
        assert not executor.is_streaming
        assert executor.counters()["streamed"] == 0
        executor.close()


def test_slots_are_resized_between_two_chunks() -> None:
    model = moe_model("q8_0")
    executor = model.device((16, 8), Split.all_fill())
    talk = Reading(model.native(), executor)
    for slots in ((4, 2), (0, 0), (24, 8), (6, 1)):
        talk.read(LONG, s0=20, s1=20)
        executor.resize_experts(slots)
        executor.check()
        if sum(talk._lengths.values()) > 300:
            break
    executor.close()


def test_a_prompt_counts_what_it_moves() -> None:
    model = moe_model("q4_0")
    executor = model.device((24, 8), Split.all_fill())
    Reading(model.native(), executor).read(0, s0=LONG)
    counters = executor.counters()
    sizes = [bank.record_bytes for bank in model.banks]
    assert counters["streamed"] == 24 + 8
    assert counters["streamed_bytes"] == 24 * sizes[0] + 8 * sizes[1]
    counts = executor.layer_counts()
    assert counts.tolist() == [[8, 0, 8, 8, 0]] * 4
    assert counters["hits"] + counters["fills"] + counters["cpu_experts"] == counters["distinct"]
    assert np.all(counts[:, 1:3].sum(axis=1) == counts[:, 0])
    executor.close()
