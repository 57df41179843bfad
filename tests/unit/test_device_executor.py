"""The device executor on the simulated device: the native executor's bits, whatever is cached, filled or changed."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest

from engine.device.sim import SimDriver
from engine.experts.cache_tables import BrokenCacheError
from engine.experts.hybrid import Signals
from engine.experts.split import Branch, Split, Timing
from engine.files.codecs import CODECS
from engine.memory.blocks import ContextRoom
from engine.program.device.executor import DeviceExecutor
from engine.program.device.pinned import pinned_bytes
from tests.same_bits import assert_same_bits
from tests.unit.device_rig import MIB, Model, Talk, moe_model, sequence
from tests.unit.native_model import EXPERTS, TOP_K, VOCAB

ALL = (3 * EXPERTS, EXPERTS)  # slots that hold every expert of `moe_model`
SPLITS = {
    "all fill": Split.all_fill(),
    "all CPU": Split.all_cpu(),
    "carried": Split.carry(0.4),
    "nearest": Split.timed(0.5, Timing(Branch(1e-5, 1e-4), Branch(2e-5, 1e-4)), most=4),
    "usual": Split.of_fraction(0.75),
    "a table": Split("table", 0.3, (0, 1, 1, 0, 3)),
}
SLOTS = {"none": (0, 0), "fewer than a step's": (2, 1), "some": (9, 0), "all": ALL}


@pytest.fixture(scope="module")
def model() -> Model:
    return moe_model()


def worked(executor: DeviceExecutor) -> tuple[bool, bool, bool]:
    """Whether there were hits, fills and experts on the CPU."""
    counters = executor.counters()
    assert counters["hits"] + counters["fills"] + counters["cpu_experts"] == counters["distinct"] > 0
    assert counters["misses"] == counters["fills"] + counters["cpu_experts"]
    return counters["hits"] > 0, counters["fills"] > 0, counters["cpu_experts"] > 0


@pytest.mark.parametrize("signals", ["memory", "host"])
@pytest.mark.parametrize("slots", SLOTS)
@pytest.mark.parametrize("split", SPLITS)
def test_any_split_and_any_number_of_slots(model: Model, split: str, slots: str, signals: Signals) -> None:
    executor = model.device(SLOTS[slots], SPLITS[split], signals=signals)
    Talk(model.native(), executor).all_kinds()
    executor.check()
    fills = slots != "none" and split != "all CPU"
    spared = slots == "all" and split == "all fill"
    assert worked(executor) == (fills, fills, not spared)
    executor.close()


@pytest.mark.parametrize("codec", CODECS)
def test_every_codec(codec: str) -> None:
    model = moe_model(codec, layers=2)
    executor = model.device((5, 3), Split.carry(0.5))
    Talk(model.native(), executor).all_kinds()
    executor.check()
    assert worked(executor) == (True, True, True)


@pytest.mark.parametrize("seed", range(4))
def test_any_order_that_streams_and_events_allow(model: Model, seed: int) -> None:
    executor = model.device((6, 2), Split.carry(0.5), driver=SimDriver(256 * MIB, seed=seed))
    Talk(model.native(), executor, seed).all_kinds()
    assert worked(executor) == (True, True, True)


def test_experts_and_context_may_change_size_between_any_two_steps(model: Model) -> None:
    driver = SimDriver(256 * MIB, granularity=4096)
    executor = model.device((6, 0), Split.carry(0.5), driver=driver)
    native = model.native()
    talk = Talk(native, executor)
    for slots, pages in (((6, 0), 64), ((0, 0), 40), ((3, 8), 200), (ALL, 36), ((1, 1), 64), ((7, 3), 37)):
        executor.resize_experts(slots)
        assert executor.slots() == tuple(slots)
        for each in (native, executor):
            each.resize_context(ContextRoom(pages))
        for _ in range(3):
            talk.step(s0=1, s1=2)
        talk.step(s2=7)
        executor.check()
    assert worked(executor) == (True, True, True)


def test_a_resize_keeps_what_was_used_last(model: Model) -> None:
    executor = model.device(ALL)
    talk = Talk(model.native(), executor)
    talk.step(s0=40)
    executor.record_routing(True)
    talk.step(s0=1)
    last = {EXPERTS * layer + int(expert) for layer in range(3) for expert in executor.routing()[layer, 0]}
    assert last < resident(executor)
    executor.resize_experts((len(last), EXPERTS))
    assert resident(executor) == last


def test_two_slots_that_change_places_change_the_logits(model: Model) -> None:
    """Negative control: experts that differ, and a cache that is really read."""
    executor, native = model.device(ALL), model.native()
    talk = Talk(native, executor)
    talk.step(s0=40)
    batch = talk.batch(s0=1)
    expected = native.step(batch)
    assert_same_bits(executor.step(batch), expected)
    executor.record_routing(True)
    executor.step(batch)
    used = int(executor.routing()[0, 0, 0])
    other = next(record for record in resident(executor) if record >= EXPERTS)
    swap(executor, used, other)
    with pytest.raises(AssertionError, match="Arrays are not equal"):
        assert_same_bits(executor.step(batch), expected)
    with pytest.raises(BrokenCacheError, match="does not hold the bytes of record"):
        executor.check()


def resident(executor: DeviceExecutor) -> set[int]:
    """Records of the first bank that have slots."""
    return set(executor.caches[0].snapshot().owner.tolist()) - {-1}


def swap(executor: DeviceExecutor, one: int, other: int) -> None:
    """Let the tables of the first bank confuse the slots of two records."""
    tables = executor.caches[0].tables
    slot_of, owner = tables.read("slot_of"), tables.read("owner")
    slots = slot_of[[one, other]]
    assert (slots >= 0).all(), "both are resident"
    slot_of[[one, other]] = slots[::-1]
    owner[slots] = [other, one]
    tables.write("slot_of", slot_of)
    tables.write("owner", owner)


# --- pinning, routing, counters


def test_what_could_not_be_pinned_is_left_to_the_cpu(model: Model) -> None:
    record_bytes = model.banks[0].record_bytes
    limit = pinned_bytes(model.program, 64) + 12 * record_bytes
    driver = SimDriver(256 * MIB, granularity=4096, pin_limit=limit)
    executor = model.device((10, 0), Split.all_fill(), driver=driver)
    Talk(model.native(), executor).all_kinds()
    executor.check()
    assert worked(executor) == (True, True, True)
    assert 0 < executor.experts()[0].capacity < model.banks[0].count


def test_the_routing_of_a_step_is_recorded_and_can_be_forced(model: Model) -> None:
    native, executor = model.native(), model.device((6, 3), Split.carry(0.5))
    talk = Talk(native, executor)
    for each in (native, executor):
        each.record_routing(True)
    for count in (5, 40, 1):
        talk.step(s0=count)
        np.testing.assert_array_equal(executor.routing(), native.routing())
    random = np.random.default_rng(0)
    forced = np.array([[random.permutation(EXPERTS)[:TOP_K] for _ in range(6)] for _ in range(4)], np.int32)
    free = executor.step(talk.batch(s0=6))
    for each in (native, executor):
        each.force_routing(forced)
    batch = talk.batch(s0=6)
    logits = executor.step(batch)
    assert_same_bits(logits, native.step(batch))
    np.testing.assert_array_equal(executor.routing(), forced)
    with pytest.raises(ValueError, match="5 tokens under a routing of 6"):
        executor.step(talk.batch(s0=5))
    executor.force_routing(None)
    assert (executor.step(batch) != logits).any()
    assert free.shape == logits.shape


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda ids: ids[:3], "a routing of 4 layers"),
        (lambda ids: ids[..., :2], "3 experts a token"),
        (lambda ids: np.zeros((4, 0, 3), np.int32), "a routing of 0 tokens"),
        (lambda ids: ids + EXPERTS, "an expert that there is not"),
        (lambda ids: ids - 1, "an expert that there is not"),
        (lambda ids: ids * 0, "an expert twice"),
    ],
)
def test_a_routing_that_no_step_can_run_is_refused(
    model: Model, change: Callable[[npt.NDArray[np.int32]], npt.NDArray[np.int32]], message: str
) -> None:
    executor = model.device()
    ids = np.tile(np.arange(TOP_K, dtype=np.int32), (4, 2, 1))
    with pytest.raises(ValueError, match=message):
        executor.force_routing(change(ids))
    executor.step(sequence([1, 2, 3]))
    with pytest.raises(ValueError, match="was not recorded"):
        executor.routing()


def test_counts_of_layers_add_up_to_the_counters(model: Model) -> None:
    executor = model.device((4, 2), Split.carry(0.5))
    sums = np.zeros(5, np.int64)
    for count in (3, 1, 1, 40, 2):
        executor.step(sequence(np.arange(count) % VOCAB))
        counts = executor.layer_counts()
        assert counts.shape == (4, 5)
        assert (counts[:, 0] >= TOP_K).all()
        sums += counts.sum(axis=0)
    counters = executor.counters()
    names = ("distinct", "hits", "misses", "fills", "cpu_experts")
    assert [counters[name] for name in names] == sums.tolist()
    assert counters["plans"] == 4 * 5
    assert counters["steps"] == 5
    assert counters["experts_run"] == counters["distinct"]
    assert counters["step_seconds"] > 0
    sizes = [bank.record_bytes for bank in model.banks]
    assert min(sizes) * counters["distinct"] < counters["expert_bytes"] < max(sizes) * counters["distinct"]
