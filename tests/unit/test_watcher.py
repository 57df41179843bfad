"""When experts give device memory back and take it again: never back and forth while other programs hold still."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.base.units import GIB, MIB
from engine.worker.watcher import Move, Observation, Watcher, WatchPolicy, Wish, memory_reader

TOTAL = 24 * GIB
POLICY = WatchPolicy(low=400 * MIB, aim=800 * MIB, high=1200 * MIB, step=GIB, grain=8 * MIB)
WISH = Wish(experts=16 * GIB, kv=4 * GIB, least=256 * MIB)
FIXED = TOTAL - WISH.experts - WISH.kv - POLICY.aim  # weights and buffers: the plan leaves the aim free
SLOT = 3 * MIB


@dataclass
class Device:
    """A device that moves what the watcher says, in whole slots, beside another program that takes `other` bytes."""

    watcher: Watcher = field(default_factory=lambda: Watcher(POLICY, WISH))
    experts: int = WISH.experts
    kv: int = WISH.kv
    other: int = 0
    kv_wanted: int = 0
    now: float = 0.0
    moves: list[tuple[float, Move]] = field(default_factory=list)
    refuses: bool = False  # moves fail, as when memory is taken between a decision and its execution

    @property
    def free(self) -> int:
        return TOTAL - FIXED - self.experts - self.kv - self.other

    def run(self, seconds: float, interval: float = 0.5) -> list[Move]:
        """The moves within so much time, and the state afterwards."""
        start, end = len(self.moves), self.now + seconds
        while self.now < end:
            self.now += interval
            seen = Observation(self.now, max(0, self.free), self.experts, self.kv, self.kv_wanted)
            move = self.watcher.observe(seen)
            if move is not None:
                self.moves.append((self.now, move))
                if not self.refuses:
                    self.experts, self.kv = move.experts // SLOT * SLOT, move.kv
        return [move for _, move in self.moves[start:]]


def test_nothing_moves_while_nothing_happens() -> None:
    assert Device().run(3600) == []


def test_experts_give_way_to_another_program_in_steps_and_come_back_when_it_ends() -> None:
    device = Device()
    device.run(10)
    device.other = 5 * GIB
    given_back = device.run(60)
    assert 5 <= len(given_back) <= 8
    assert all(move.kv == WISH.kv for move in given_back)
    sizes = [WISH.experts, *(move.experts for move in given_back)]
    assert all(0 < before - after <= POLICY.step + SLOT for before, after in pairwise(sizes))
    assert POLICY.low <= device.free <= POLICY.aim + SLOT
    assert device.run(3600) == []
    device.other = 0
    assert device.run(POLICY.take_after) == []
    device.run(600)
    assert device.experts >= WISH.experts - POLICY.grain
    assert device.free >= POLICY.aim
    assert device.run(3600) == []


def test_a_little_that_was_given_comes_back_too() -> None:
    device = Device(other=450 * MIB)  # less than lies between aim and high
    device.run(60)
    assert device.experts < WISH.experts
    device.other = 0
    device.run(60)
    assert device.experts >= WISH.experts - POLICY.grain


def test_a_short_dip_moves_nothing() -> None:
    device = Device(other=5 * GIB)
    assert device.run(1.5) == []
    device.other = 0
    assert device.run(60) == []


def test_experts_keep_enough_for_a_step() -> None:
    device = Device(other=TOTAL)
    device.run(600)
    assert WISH.least - SLOT <= device.experts <= WISH.least
    assert device.run(600) == []


def test_a_program_that_comes_and_goes_is_answered_less_and_less() -> None:
    device = Device()
    taken = []
    for _ in range(40):
        device.other = 3 * GIB
        device.run(40)
        before = device.experts
        device.other = 0
        device.run(40)
        taken.append(device.experts > before)
    assert taken[0]
    assert sum(taken) <= 4
    device.run(2 * POLICY.longest_wait)
    assert device.experts >= WISH.experts - POLICY.grain


def test_a_move_that_fails_is_tried_again_and_not_at_once() -> None:
    device = Device(other=5 * GIB, refuses=True)
    moves = device.run(60)
    assert 10 <= len(moves) <= 60 / POLICY.give_after
    device.refuses = False
    device.run(60)
    assert device.free >= POLICY.low


def test_growing_contexts_get_room_from_experts_and_give_it_back() -> None:
    device = Device(kv_wanted=7 * GIB)
    grown = device.run(120)
    assert "contexts need 7.00 GiB" in grown[0].why
    assert 7 * GIB <= device.kv <= 7 * GIB + 7 * GIB // 4
    assert device.free >= POLICY.aim - SLOT
    assert device.run(3600) == []
    device.kv_wanted = 6 * GIB  # not half of what they have: it stays
    assert device.run(3600) == []
    device.kv_wanted = GIB
    device.run(600)
    assert device.kv == WISH.kv
    assert device.experts >= WISH.experts - POLICY.grain
    assert device.run(3600) == []


def test_contexts_take_what_is_free_before_they_take_from_experts() -> None:
    before = WISH.experts - 2 * GIB
    for wanted, kv, from_experts in ((4.4, 5.5, 0.0), (5.0, 6.25, 0.25)):
        move = Device(experts=before, kv_wanted=int(wanted * GIB)).run(5)[0]
        assert move.kv == pytest.approx(kv * GIB)
        assert move.experts == pytest.approx(before - from_experts * GIB)


@given(
    st.lists(st.tuples(st.integers(0, 20 * GIB), st.integers(0, 12 * GIB), st.floats(0.5, 400)), max_size=12),
    st.sampled_from([0.1, 0.5, 3.0, 30.0]),
)
def test_while_all_else_holds_still_nothing_goes_back_and_forth(
    phases: Sequence[tuple[int, int, float]], interval: float
) -> None:
    device = Device()
    for other, kv_wanted, seconds in phases:
        device.other, device.kv_wanted = other, kv_wanted
        directions = _turns(device, seconds, interval)
        assert directions <= 2, "more than down for others and up for what that leaves"
    assert _turns(device, 4 * POLICY.longest_wait, interval) <= 2
    assert device.run(2 * POLICY.longest_wait, interval) == [], "it does not come to rest"


def _turns(device: Device, seconds: float, interval: float) -> int:
    """Runs the device; how often what moves experts changed its direction, and context memory its own."""
    sizes = [(device.experts, device.kv)]
    for move in device.run(seconds, interval):
        sizes.append((move.experts, move.kv))
    turns = 0
    for part in (0, 1):
        changes = [b[part] - a[part] for a, b in pairwise(sizes) if abs(b[part] - a[part]) > SLOT]
        turns += sum((a > 0) != (b > 0) for a, b in pairwise(changes))
    return turns


@given(st.integers(1, 200 * GIB), st.integers(0, 200 * GIB))
def test_a_policy_can_be_made_for_any_device(total: int, wish: int) -> None:
    policy = WatchPolicy.of_device(total, wish)
    assert policy.low < policy.aim < policy.high
    assert policy.aim <= total // 32 + 1


# --- readers


class NvmlError(Exception):
    pass


def fake_nvml(monkeypatch: pytest.MonkeyPatch, **calls: Callable[..., object]) -> None:
    known = {"nvmlInit": lambda: None, "nvmlDeviceGetHandleByUUID": lambda uuid: uuid, "NVMLError": NvmlError}
    monkeypatch.setitem(sys.modules, "pynvml", SimpleNamespace(**{**known, **calls}))


def own() -> tuple[int, int]:
    return 10, 4


def fail(*_: object) -> object:
    raise NvmlError("no such device")


def test_nvml_is_asked_for_the_device_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_nvml(monkeypatch, nvmlDeviceGetMemoryInfo=lambda handle: SimpleNamespace(total=len(handle), free=3))
    assert memory_reader("GPU-1234", own)() == (8, 3)


def test_without_nvml_or_a_card_that_it_knows_the_driver_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)  # an import that fails
    assert memory_reader("GPU-1", own)() == (10, 4)
    fake_nvml(monkeypatch, nvmlInit=fail)
    assert memory_reader("GPU-1", own)() == (10, 4)
    fake_nvml(monkeypatch, nvmlDeviceGetHandleByUUID=fail)
    assert memory_reader("GPU-1", own)() == (10, 4)


def test_an_nvml_that_fails_later_is_replaced_by_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [SimpleNamespace(total=8, free=3), SimpleNamespace(total=8, free=2)]
    fake_nvml(monkeypatch, nvmlDeviceGetMemoryInfo=lambda handle: answers.pop(0) if answers else fail())
    read = memory_reader("GPU-1", own)
    assert [read(), read()] == [(8, 2), (10, 4)]
