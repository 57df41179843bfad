"""Loading on a simulated device: the same bits as on the cpu, sizes that fit, and memory that goes while one looks."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.base.errors import DoesNotFitError, NoRoomError, UnsupportedError
from engine.base.profile import ExpertRate, Profile, Rate, ReadRate, SharedRun, save_profile
from engine.base.units import MIB, KvBudget
from engine.device.sim import SimDriver
from engine.experts.split import Branch, Timing
from engine.files.ftw.opening import open_model
from engine.measure.random_model import RandomShape, write_random_model
from engine.measure.steps import OneSequence
from engine.program.device.pinned import pinned_bytes
from engine.program.ir import Program
from engine.program.lowering.lower import lower
from engine.program.step_bytes import WeightBytes
from engine.spec.schema import Spec
from engine.worker.device_loading import load_with
from engine.worker.device_needs import device_needs
from engine.worker.loaded import LoadedModel
from engine.worker.loading import load_model
from engine.worker.machine import this_machine
from engine.worker.protocol import WorkerConfig
from engine.worker.scheduler import POLICY

SHAPE = RandomShape(layers=3, experts=16, top_k=2, context=2048)
POOL = SHAPE.layers * SHAPE.experts


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("random") / "model"
    write_random_model(SHAPE, folder)
    return folder


def load(folder: Path, driver: SimDriver | None = None, **settings: Any) -> LoadedModel:
    config = WorkerConfig(str(folder), device="sim", threads=1, **{"kv": KvBudget(tokens=256), **settings})
    return load_with(driver or SimDriver(memory=64 * MIB), config)


def logits(model: LoadedModel) -> list[Any]:
    sequence = OneSequence(model.executor, 256)
    ids = np.random.default_rng(1).integers(SHAPE.vocab_size, size=40, dtype=np.int32)
    return [sequence.step(ids[:20], wanted=3), *(sequence.step(ids[i : i + 1]) for i in range(20, 40))]


def test_what_a_device_cannot_run_is_refused_before_experts_are_read(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(program: Program) -> None:
        raise UnsupportedError(f"{len(program.caches)} caches are too many.")

    monkeypatch.setattr("engine.worker.device_loading.HostBank.load", lambda *_: pytest.fail("experts were read"))
    with pytest.raises(UnsupportedError, match="3 caches are too many"):
        load_with(SimDriver(memory=64 * MIB), WorkerConfig(str(folder), device="sim", threads=1), check=refuse)


@pytest.mark.parametrize("experts", ["0", "2", "25%", "100%"])
def test_any_room_for_experts_gives_the_bits_of_the_cpu(folder: Path, experts: str) -> None:
    on_cpu = logits(load_model(WorkerConfig(str(folder), threads=1, kv=KvBudget(tokens=256))))
    model = load(folder, experts=experts)
    for ours, theirs in zip(logits(model), on_cpu, strict=True):
        assert np.array_equal(ours, theirs)
    counters = model.executor.counters()
    assert counters["misses"] > 0
    assert (counters["hits"] > 0) == (experts in ("25%", "100%"))
    assert (counters["fills"] > 0) == (experts != "0")


def test_a_limit_of_pinned_memory_leaves_the_executor_its_own_and_the_rest_to_the_cpu(folder: Path) -> None:
    program, record = lower(Spec.from_json(open_model(folder).spec)), open_model(folder).banks[0].record_bytes
    limit = pinned_bytes(program, POLICY.max_step_tokens) + 7 * record
    model = load(folder, SimDriver(memory=64 * MIB, pin_limit=limit))
    on_cpu = logits(load_model(WorkerConfig(str(folder), threads=1, kv=KvBudget(tokens=256))))
    for ours, theirs in zip(logits(model), on_cpu, strict=True):
        assert np.array_equal(ours, theirs)
    (note,) = (note for note in model.notes if "could be pinned" in note)
    assert "the CPU runs the others" in note
    counters = model.executor.counters()
    assert min(counters[name] for name in ("hits", "fills", "cpu_experts")) > 0


def test_a_cache_that_is_not_asked_for_takes_what_is_left(folder: Path) -> None:
    model = load(folder)
    cache = model.planner.cache(model.budget)
    assert cache is not None
    assert (cache.slots, cache.share) == (POOL, 1.0)
    assert (model.device, model.device_text) == ("sim", "simulated device, 64.0 MiB")


def test_needs_told_from_headers_are_near_those_measured_and_not_below(folder: Path) -> None:
    driver = SimDriver(memory=256 * MIB)
    model = load(folder, driver)
    manifest = open_model(folder).manifest
    told = device_needs(lower(Spec.from_json(manifest.spec)), WeightBytes.of(manifest), manifest.banks, 2048)
    measured = model.planner.needs  # type: ignore[attr-defined]
    assert told.weights == measured.weights
    assert measured.fixed <= told.fixed <= 3 * measured.fixed + 32 * MIB


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"experts": "1"}, r"--experts 1 slot is too little: .* Give --experts 2 or more, or --experts 0"),
        ({"experts": "2%"}, r"--experts 2% is too little"),
        ({"kv": KvBudget(bytes=900 * MIB)}, r"Context memory for .* more than the .* Give --kv \d+ or less"),
        ({"context": 4096}, r"--context 4096 is 2048 tokens more than the 2048 this model knows"),
    ],
)
def test_what_does_not_fit_is_told_before_a_pool_is_read(
    folder: Path, settings: dict[str, Any], sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_reading(*_: object) -> None:
        raise AssertionError("experts were read")

    monkeypatch.setattr("engine.worker.device_loading.HostBank.load", no_reading)
    with pytest.raises(DoesNotFitError, match=sentence) as caught:
        load(folder, **settings)
    assert caught.value.exit_code == 4


def test_a_card_that_is_too_small_is_told_by_its_parts(folder: Path) -> None:
    with pytest.raises(NoRoomError, match=r"The device lacks .*: weights take .*, buffers .* and .* are free\."):
        load(folder, SimDriver(memory=4 * MIB))


class Thieving(SimDriver):
    """A device of which another program takes `theft` bytes as soon as the model has reserved room for context."""

    def __init__(self, *, memory: int, theft: int) -> None:
        super().__init__(memory=memory)
        self._theft = theft
        self.stolen: Any = None

    def reserve(self, size: int) -> Any:
        if self.stolen is None:
            self.stolen = self.allocate(self._theft)
        return super().reserve(size)


def test_memory_that_goes_meanwhile_makes_the_cache_smaller(folder: Path) -> None:
    driver = Thieving(memory=64 * MIB, theft=20 * MIB)
    model = load(folder, driver)
    cache = model.planner.cache(model.budget)
    assert cache is not None
    assert driver.stolen
    assert cache.slots > 0
    logits(model)


def test_memory_that_goes_meanwhile_and_was_asked_for_is_a_sentence(folder: Path) -> None:
    driver = Thieving(memory=64 * MIB, theft=40 * MIB)
    with pytest.raises(NoRoomError, match=r"Context memory for 27296 tokens takes .* Give --kv \d+ or less"):
        load(folder, driver, experts="100%", kv=KvBudget(bytes=20 * MIB))
    assert driver.memory()[1] == 24 * MIB, "something stayed behind"


def profile(**changes: Any) -> Profile:
    rate = Rate.of([30.0])
    experts = (ExpertRate("q4_0", 2048, 768, 4096, 2, Rate.of([40.0]), Rate.of([0.9])),)
    base = Profile(this_machine(), "2026-01-02T03:04:05Z", (ReadRate(1, rate),), experts)
    return replace(base, **changes)


def notes_with(folder: Path, path: Path) -> str:
    return " ".join(load(folder, profile=str(path)).notes)


def test_without_a_profile_a_safe_default_holds_and_is_said_once(folder: Path, tmp_path: Path) -> None:
    said = notes_with(folder, tmp_path / "profile.json")
    assert said.count("has no profile yet") == 1
    assert "divided as is safe on any machine. Measure it: freetoken probe" in said


def test_a_profile_of_another_machine_is_refused_with_a_sentence(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    save_profile(profile(machine=replace(this_machine(), cpu="Another CPU 9000")), path)
    said = notes_with(folder, path)
    assert "was measured with cpu 'Another CPU 9000', here it is" in said
    assert "divided as is safe on any machine" in said


def test_a_profile_without_a_link_says_nothing_of_fills(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    save_profile(profile(), path)
    assert "says nothing of a link to a GPU" in notes_with(folder, path)


def test_a_profile_of_this_machine_divides_the_first_misses(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    save_profile(profile(link=Rate.of([10.0])), path)
    model = load(folder, profile=str(path))
    assert model.notes == ()
    assert model.experts is not None
    work = model.experts.work()
    assert work.fraction == pytest.approx(0.25)
    assert re.search("profile", work.why)


class MeasuredDriver(SimDriver):
    """A device whose seconds are those of a real clock, as far as the loader can see."""

    name = "measured"


def test_the_loop_begins_with_the_curve_of_the_profile_unless_its_clock_is_virtual(
    folder: Path, tmp_path: Path
) -> None:
    path, timing = tmp_path / "profile.json", Timing(Branch(1e-6, 60e-6), Branch(1e-6, 20e-6), 0.0, 0.3)
    points = [(1, 1), (8, 8), (1, 0), (8, 0), *((8, fills) for fills in range(1, 8))]
    runs = tuple(SharedRun(*point, *timing.times(*point)) for point in points)
    size = open_model(folder).banks[0].record_bytes
    device = {"device": "a device", "uuid": SimDriver().uuid, "record_bytes": 2 * size, "runs": runs}
    save_profile(profile(link=Rate.of([10.0]), **device), path)
    for driver, begins in (
        (MeasuredDriver(memory=64 * MIB), "alone a fill takes 30 us a record, the CPU 10 us"),
        (SimDriver(memory=64 * MIB), "p / (p + c) of the device's profile"),
    ):
        model = load(folder, driver, profile=str(path))
        assert model.experts is not None
        assert begins in model.experts.work().why
        assert model.experts.work().fraction == pytest.approx(timing.fraction, abs=0.01)
