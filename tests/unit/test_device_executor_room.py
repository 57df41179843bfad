"""What the device executor refuses: memory that is not there, batches that do not fit, operations it does not know."""

from __future__ import annotations

from dataclasses import replace

import pytest

from engine.base.errors import NoRoomError, UnsupportedError
from engine.device.sim import SimDriver
from engine.memory.blocks import ContextRoom
from engine.program.executor import Batch
from tests.same_bits import assert_same_bits
from tests.unit.device_rig import MIB, Floats, Model, Talk, moe_model, sequence
from tests.unit.native_model import EXPERTS

ALL = (3 * EXPERTS, EXPERTS)  # slots that hold every expert of `moe_model`


@pytest.fixture(scope="module")
def model() -> Model:
    return moe_model()


def test_more_slots_than_there_is_memory_for_change_nothing(model: Model) -> None:
    size = model.banks[0].record_bytes
    driver = SimDriver(24 * size + 6 * MIB, granularity=4096)
    executor = model.device((4, 8), driver=driver, room=ContextRoom(36))
    talk = Talk(model.native(), executor)
    talk.step(s0=20)
    driver.allocate(driver.memory()[1] - 10 * size)
    for slots in ((24, 8), (24, 4)):
        with pytest.raises(NoRoomError):
            executor.resize_experts(slots)
        assert executor.slots() == (4, 8)
        executor.check()
        talk.step(s0=1)
    with pytest.raises(NoRoomError):
        executor.resize_context(ContextRoom(100_000))
    assert executor.room.pages == 36
    talk.step(s0=1)
    executor.resize_experts((10, 2))
    talk.step(s0=1)
    executor.check()


def test_a_device_without_room_for_a_model_is_left_as_it_was(model: Model) -> None:
    whole = SimDriver(256 * MIB, granularity=4096)
    executor = model.device(ALL, driver=whole)
    taken = whole.memory()[0] - whole.memory()[1]
    executor.close()
    assert whole.memory()[0] == whole.memory()[1]
    for share in (0.1, 0.3, 0.5, 0.7, 0.9, 0.99):
        driver = SimDriver(int(taken * share), granularity=4096)
        with pytest.raises(NoRoomError):
            model.device(ALL, driver=driver)
        assert driver.memory()[0] == driver.memory()[1], share


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (sequence(range(65)), "room for 64 tokens"),
        (sequence([99]), "token 99 of 37"),
        (sequence([1, 2], rows=[2]), "wanted row 2 of 2"),
        (sequence([1, 2], start=-1), "starts at position -1"),
        (sequence([1], start=20, pages=[3]), "needs 2 pages and has 1"),
        (sequence([1], pages=[64]), "page of sequence 0 64 of 64"),
        (sequence([1], pages=[-1]), "page of sequence 0 -1 of 64"),
    ],
)
def test_a_batch_that_does_not_fit_is_refused_before_anything_is_done(model: Model, batch: Batch, message: str) -> None:
    executor = model.device((6, 3))
    before = executor.counters()
    with pytest.raises(ValueError, match=message):
        executor.step(batch)
    assert executor.counters() == before
    assert_same_bits(executor.step(sequence([1, 2])), model.native().step(sequence([1, 2])))


def test_steps_without_tokens_or_without_rows(model: Model) -> None:
    executor = model.device((6, 3))
    assert executor.step(sequence([])).shape == (0, 37)
    assert [state.shape for state in executor.trace(sequence([]))] == [(0, 64)]
    assert executor.step(sequence([1, 2], rows=[])).shape == (0, 37)
    assert_same_bits(executor.step(sequence([3], start=2)), _after_two(model))


def _after_two(model: Model) -> Floats:
    native = model.native()
    native.step(sequence([1, 2]))
    return native.step(sequence([3], start=2))


def test_an_operation_that_no_device_knows_is_named(model: Model) -> None:
    ops = tuple(replace(op, kind="wavelet") if op.kind == "add" else op for op in model.program.ops)
    with pytest.raises(UnsupportedError, match="the operation wavelet of layer 0: there is no such operation"):
        replace(model, program=replace(model.program, ops=ops)).device()
