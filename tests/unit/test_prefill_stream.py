"""Prompts whose layers are streamed through borrowed slots have the bits of the native operation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Any

import numpy as np
import pytest

from engine.device.driver import Event, Stream
from engine.device.sim import SimDriver
from engine.experts.cache_tables import BrokenCacheError
from engine.experts.split import Split
from tests.unit.hybrid_rig import BankKind
from tests.unit.native_model import EXPERTS
from tests.unit.prefill_rig import LONG, Prompt, Ring
from tests.unit.test_hybrid_experts import KINDS

PLAIN = BankKind("q8_0", layers=4)


@pytest.fixture
def prompts() -> Iterator[Callable[..., Prompt]]:
    """Makes prompts and closes them."""
    made: list[Prompt] = []

    def make(kinds: Sequence[BankKind], slots: Sequence[int], *args: Any, **settings: Any) -> Prompt:
        made.append(Prompt(kinds, slots, *args, **settings))
        return made[-1]

    yield make
    for prompt in made:
        prompt.rig.close()


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_record(prompts: Callable[..., Prompt], kind: str) -> None:
    prompt = prompts([KINDS[kind]], [5])
    prompt.step(LONG, more=LONG)
    prompt.step(LONG)
    assert prompt.stream.streamed_records > 0
    prompt.check_slots()


@pytest.mark.parametrize("buffers", [1, 2])
@pytest.mark.parametrize("ring", [2, 4, 6, 2 * EXPERTS])
def test_any_ring(prompts: Callable[..., Prompt], ring: int, buffers: int) -> None:
    """From two layers down to one record at a time; odd numbers of parts change the buffer that a chunk begins with."""
    prompt = prompts([PLAIN], [20], Ring(ring, buffers))
    for more in (LONG, LONG, 0):
        prompt.step(LONG, more)
    stay = 20 - ring  # of slots that held nothing
    assert prompt.stream.streamed_records == 4 * EXPERTS + 2 * (4 * EXPERTS - stay)
    prompt.check_slots()
    owner = prompt.rig.caches[0].snapshot().owner
    assert (owner[ring:20] != -1).all(), "a slot beyond the ring is still empty"
    assert (owner[:ring] != -1).any()


def test_too_few_slots_are_the_present_forms(prompts: Callable[..., Prompt]) -> None:
    prompt = prompts([PLAIN], [1])
    prompt.step(LONG, more=LONG)
    assert prompt.stream.streamed_records == 0
    prompt.check_slots()


def test_residents_are_used_in_place_and_stay(prompts: Callable[..., Prompt]) -> None:
    prompt = prompts([PLAIN], [16], Ring(6))
    for _ in range(6):
        prompt.step(2)  # on demand, into slots
    cache = prompt.rig.caches[0]
    prompt.rig.experts.settle()
    used = np.argsort(cache.snapshot().slot_used[:16], kind="stable")
    stay = {int(slot): int(cache.snapshot().owner[slot]) for slot in used[6:]}
    assert -1 not in stay.values()
    prompt.step(LONG, more=LONG)
    prompt.step(LONG)
    after = cache.snapshot()
    assert {slot: int(after.owner[slot]) for slot in stay} == stay
    assert prompt.stream.streamed_records == 2 * (cache.records - len(stay))
    prompt.check_slots()


def test_what_the_ring_holds_afterwards_is_cached_and_goes_first(prompts: Callable[..., Prompt]) -> None:
    prompt = prompts([PLAIN], [20], Ring(8))
    prompt.step(LONG)
    cache = prompt.rig.caches[0]
    snapshot = cache.snapshot()
    held = snapshot.owner != -1
    assert held.sum() >= 12, "the slots beyond the ring"
    assert (snapshot.slot_used == held).all(), "the oldest stamp that there is"
    last_layer = set(range(3 * EXPERTS, 4 * EXPERTS))
    assert last_layer <= set(snapshot.owner.tolist()), "the last layer's records were not kept"
    prompt.step(2)
    assert cache.layer_counts()[3].tolist()[1] > 0, "what the prompt left in slots was of no use"
    prompt.check_slots()


def test_a_step_that_was_expected_and_does_not_come(prompts: Callable[..., Prompt]) -> None:
    """The first parts of the next chunk are on their way when something else comes."""
    prompt = prompts([PLAIN], [16])
    for _ in range(3):
        prompt.step(LONG, more=LONG)
        assert prompt.stream.is_open
        prompt.step(1)
        assert not prompt.stream.is_open
        prompt.check_slots()


def test_slots_are_resized_while_a_chunk_is_expected(prompts: Callable[..., Prompt]) -> None:
    prompt = prompts([PLAIN], [16])
    for slots in (4, 0, 20, 32, 16):
        prompt.step(LONG, more=LONG)
        prompt.rig.experts.settle()
        prompt.rig.caches[0].resize(slots)
        prompt.check_slots()
        prompt.step(LONG, more=LONG)
        prompt.step(LONG)
        prompt.check_slots()


def test_banks_of_which_one_has_no_slots_and_one_is_not_all_within_reach(prompts: Callable[..., Prompt]) -> None:
    prompt = prompts([PLAIN, BankKind("bf16", layers=2), KINDS["scaled"]], [8, 0, 6])
    prompt.step(LONG, more=LONG)
    prompt.step(LONG)
    assert prompt.stream.streamed_records == 2 * (4 + 1) * EXPERTS
    partial = prompts([PLAIN], [8], fillable=EXPERTS + 3)
    partial.step(LONG)
    assert partial.stream.streamed_records == 0
    assert partial.rig.counts()[2] > 0, "the CPU has what the device cannot reach"


@pytest.mark.parametrize("seed", range(6))
def test_random_lives(prompts: Callable[..., Prompt], seed: int) -> None:
    """Prompts of several chunks among short steps, resizes and splits, in any order of the device."""
    random = Random(seed)
    kinds = [BankKind("q4_0", layers=3), KINDS[random.choice(list(KINDS))]]
    policy = Ring(buffers=random.choice([1, 2, 2]), slots=random.choice([None, 2, 3, 5, 6, 9]))
    prompt = prompts(kinds, [9, 4], policy, seed=seed, split=Split.carry(0.5))
    for _ in range(20):
        if random.random() < 0.2:
            prompt.rig.experts.settle()
            prompt.rig.caches[random.randrange(2)].resize(random.randrange(9))
        if random.random() < 0.2:
            for cache in prompt.rig.caches:
                cache.set_split(random.choice([Split.all_fill(), Split.all_cpu(), Split.carry(0.3)]))
        tokens = random.choice([1, 3, LONG, LONG - 7])
        prompt.step(tokens, more=random.choice([0, LONG, LONG]))
        if random.random() < 0.2:
            prompt.check_slots()
    assert prompt.stream.streamed_records > 0


# --- what happens where something is wrong


def test_a_record_in_the_slot_of_another_changes_bits(prompts: Callable[..., Prompt]) -> None:
    prompt = prompts([PLAIN], [16], Ring(4))
    prompt.step(LONG, more=LONG)
    turn = prompt.stream.turns[0]
    part = turn.parts[-1]
    swapped = np.stack([part.records[::-1], part.slots], axis=1).astype(np.int32)
    for each in prompt.stream.turns:
        prompt.rig.driver.upload(each.parts[-1].fills, np.ascontiguousarray(swapped))
    with pytest.raises(AssertionError, match="not equal"):
        prompt.step(LONG)


def test_a_slot_that_does_not_hold_what_the_ring_says_is_found(prompts: Callable[..., Prompt]) -> None:
    prompt = prompts([PLAIN], [16], Ring(4))
    prompt.step(LONG)
    held = np.flatnonzero(prompt.rig.caches[0].snapshot().owner != -1)
    arena = prompt.rig.arenas[0]
    prompt.rig.driver.upload(arena.address + int(held[0]) * arena.stride, np.full(64, 7, np.uint8))
    with pytest.raises(BrokenCacheError, match="does not hold"):
        prompt.check_slots()


def forgetting(label: str) -> type[SimDriver]:
    """A driver that leaves out every third wait of a stream for an event."""

    class Forgetful(SimDriver):
        waits = 0

        def wait_event(self, stream: Stream, event: Event) -> None:
            if stream.label == label:
                self.waits += 1
                if self.waits % 3 == 0:
                    return
            super().wait_event(stream, event)

    return Forgetful


@pytest.mark.parametrize("label", ["main", "link"])
def test_an_event_that_is_missing_changes_bits(prompts: Callable[..., Prompt], label: str) -> None:
    """A part that is read before it is filled, and one that is filled while the last one there is read."""
    prompt = prompts([PLAIN], [16], Ring(8), driver=forgetting(label))
    with pytest.raises(AssertionError, match="not equal"):
        prompt.chunks(10)


def test_a_failed_step_leaves_nothing_behind(prompts: Callable[..., Prompt]) -> None:
    prompt = prompts([PLAIN], [16])
    prompt.step(LONG, more=LONG)
    prompt.rig.experts.forget()
    for cache in prompt.rig.caches:
        cache.clear()
    prompt.check_slots()
    prompt.step(LONG)
    prompt.check_slots()
