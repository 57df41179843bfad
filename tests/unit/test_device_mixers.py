"""Mixers of every kind on the simulated device: the native executor's bits, whatever is saved, copied or resized."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from engine.base.errors import NoRoomError
from engine.device.sim import SimDriver
from engine.experts.split import Split
from engine.memory.blocks import ContextRoom
from tests.same_bits import assert_same_bits
from tests.unit.device_rig import MIB, Model
from tests.unit.native_model import VOCAB
from tests.unit.recurrent_model import ROOM, Part, batch_of, hybrid_model

SLOTS = {"no cache": (0,), "a tiny cache": (3,)}


@pytest.fixture(scope="module")
def model() -> Model:
    return hybrid_model()


def both(model: Model, slots: tuple[int, ...] = (3,), **settings: Any) -> tuple[Any, Any]:
    return model.native(room=ROOM), model.device(slots, Split.carry(0.4), room=ROOM, **settings)


def tokens(count: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(0, VOCAB, count).tolist()


def same(native: Any, device: Any, *parts: Part) -> Any:
    """One step of both, whose logits must be the same bits."""
    batch = batch_of(*parts)
    logits = device.step(batch)
    assert_same_bits(logits, native.step(batch))
    return logits


@pytest.mark.parametrize("slots", SLOTS)
def test_steps_of_several_sequences_with_saves(model: Model, slots: str) -> None:
    native, device = both(model, SLOTS[slots])
    same(native, device, Part(0, tokens(40), saves=((16, 5), (32, 6))), Part(1, tokens(3, 1)))
    same(native, device, Part(1, tokens(1, 2), 3), Part(0, tokens(1, 3), 40), Part(2, tokens(17, 4), saves=((16, 7),)))
    same(native, device, Part(0, tokens(7, 5), 41, saves=((7, 8),)))
    for slot in (0, 1, 2, 5, 6, 7, 8):
        np.testing.assert_array_equal(device.read_block("state", slot), native.read_block("state", slot))


def test_a_resumed_sequence_has_the_bits_of_a_cold_one(model: Model) -> None:
    _, device = both(model)
    text = tokens(50)
    device.step(batch_of(Part(0, text[:40], saves=((32, 5),))))
    device.copy_block("state", 5, 3)
    for kind in ("page", "window"):
        for page in range(Part.PAGES):
            device.copy_block(kind, page, page + 3 * Part.PAGES)
    resumed = device.step(batch_of(Part(3, text[32:], 32), given_up=False))
    cold = device.step(batch_of(Part(1, text)))
    assert_same_bits(resumed, cold[32:])
    device.copy_block("state", 0, 3)  # that of another prefix
    assert (device.step(batch_of(Part(3, text[32:], 32), given_up=False)) != resumed).any()


def test_blocks_move_from_one_executor_to_another(model: Model) -> None:
    native, device = both(model)
    text = tokens(48)
    device.step(batch_of(Part(0, text[:32])))
    for kind in ("page", "window", "state"):
        assert device.block_bytes[kind] == native.block_bytes[kind] > 0
        for block in range(1 if kind == "state" else Part.PAGES):
            native.write_block(kind, block, device.read_block(kind, block))
    same(native, device, Part(0, text[32:], 32))


def test_context_may_change_size_between_any_two_steps(model: Model) -> None:
    driver = SimDriver(256 * MIB, granularity=4096)
    native, device = both(model, driver=driver)
    start = 0
    for room in (ROOM, ContextRoom(24, 36, 1), ContextRoom(48, 24, 9), ContextRoom(12, 12, 1)):
        for executor in (native, device):
            executor.resize_context(room)
            assert executor.room == room
        before = driver.memory()[1]
        same(native, device, Part(0, tokens(9, start), start))
        assert driver.memory()[1] == before
        start += 9


def test_a_device_fills_up_with_blocks_of_every_kind(model: Model) -> None:
    driver = SimDriver(64 * MIB, granularity=4096)
    device = model.device((3,), driver=driver, room=ContextRoom())
    for kind, room in (("page", ContextRoom(640)), ("window", ContextRoom(0, 640)), ("state", ContextRoom(0, 0, 640))):
        device.resize_context(ContextRoom())
        free = driver.memory()[1]
        device.resize_context(room)
        taken = free - driver.memory()[1]
        assert 640 * device.block_bytes[kind] <= taken < 640 * device.block_bytes[kind] + 4096
    with pytest.raises(NoRoomError, match="1000000 states"):
        device.resize_context(ContextRoom(1, 1, 1_000_000))
    assert device.room == ContextRoom(0, 0, 640)


WRONG = {
    "Window tables": (lambda b: replace(b, window_tables=()), "0 tables of window pages for 2 sequences"),
    "a page given up too early": (
        lambda b: replace(b, window_tables=(np.full(12, -1, np.int32), b.window_tables[1])),
        "window page of sequence 0 -1 of 48",
    ),
    "States": (lambda b: replace(b, states=np.zeros(1, np.int32)), "1 states for 2 sequences"),
    "a state beyond": (lambda b: replace(b, states=np.array([0, 10], np.int32)), "state 10 of 10"),
    "one state for two": (lambda b: replace(b, states=np.array([4, 4], np.int32)), "state 4 is used twice"),
    "a save over another's state": (lambda b: replace(b, saves=np.array([[1, 1]], np.int32)), "state 1 is used twice"),
    "a save beyond": (lambda b: replace(b, saves=np.array([[1, 10]], np.int32)), "save to state 10 of 10"),
    "a save behind the end": (lambda b: replace(b, saves=np.array([[5, 7]], np.int32)), "save after token 5 of 5"),
    "saves out of order": (
        lambda b: replace(b, saves=np.array([[2, 7], [1, 8]], np.int32)),
        "not in the order of their tokens",
    ),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_batch_that_does_not_fit_is_refused_by_both(model: Model, wrong: str) -> None:
    native, device = both(model)
    change, message = WRONG[wrong]
    good = batch_of(Part(0, tokens(3)), Part(1, tokens(2)))
    with pytest.raises(ValueError, match=message):
        device.step(change(good))
    with pytest.raises(ValueError, match=r"state|page|save"):
        native.step(change(good))
    assert_same_bits(device.step(good), native.step(good))
