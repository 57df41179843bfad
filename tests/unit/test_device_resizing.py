"""A live worker on the simulated device: requests go on through any number of resizes, bit for bit."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.base.units import MIB, KvBudget
from engine.device.sim import SimDriver
from engine.experts.split import Split
from engine.measure.random_model import RandomShape, write_random_model
from engine.worker.device_loading import load_with
from engine.worker.engine import Engine
from engine.worker.loading import load_model
from engine.worker.protocol import Failed, Resize, Resized, Sampling, WorkerConfig
from tests.unit.engine_rig import Front

SHAPE = RandomShape(layers=3, experts=16, top_k=2, context=2048)
POOL = SHAPE.layers * SHAPE.experts
PROMPTS = {1: [5, 6, 7] * 9, 2: [250], 3: [90, 91] * 20}
TOKENS = 24
SAMPLINGS = {1: Sampling(temperature=0), 2: Sampling(temperature=0.9, seed=3), 3: Sampling(temperature=0.7, seed=4)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("random") / "model"
    write_random_model(SHAPE, folder)
    return folder


@pytest.fixture(scope="module")
def undisturbed(folder: Path) -> dict[int, list[int]]:
    """What the cpu answers."""
    front = Front(Engine(load_model(WorkerConfig(str(folder), threads=1, kv=KvBudget(tokens=512)))))
    ask(front)
    front.run()
    return front.tokens


def ask(front: Front) -> None:
    for number, prompt in PROMPTS.items():
        front.generate(number, prompt, TOKENS, SAMPLINGS[number])


def on_device(folder: Path, **settings: object) -> Front:
    config = WorkerConfig(str(folder), device="sim", threads=1, **settings)  # type: ignore[arg-type]
    return Front(Engine(load_with(SimDriver(memory=64 * MIB), config)))


def resize(front: Front, kv: KvBudget | None, experts: str | None) -> Resized | Failed:
    (message,) = front.engine.handle(Resize(5, kv, experts))
    assert isinstance(message, Resized | Failed)
    return message


def test_many_resizes_up_and_down_lose_no_request_and_change_no_bit(
    folder: Path, undisturbed: dict[int, list[int]]
) -> None:
    front = on_device(folder, kv=KvBudget(tokens=512), experts="50%")
    ask(front)
    sizes = [("2", 400), ("100%", 512), ("0", 336), ("9", 1024), ("3M", 512), ("25%", 352)]
    moved = 0
    while front.engine.busy:
        front.engine._executor.set_split(Split.carry(0.5))  # type: ignore[attr-defined]
        front.hear(front.engine.step())
        experts, tokens = sizes[moved % len(sizes)]
        done = resize(front, KvBudget(tokens=tokens), experts)
        assert isinstance(done, Resized), done
        moved += 1
    assert moved >= TOKENS
    assert front.tokens == undisturbed
    assert set(front.done) == set(PROMPTS)
    counters = front.engine._executor.counters()
    assert min(counters[name] for name in ("hits", "fills", "cpu_experts")) > 0
    assert front.engine._scheduler.memory.room == front.engine._executor.room


def test_a_resize_that_does_not_fit_leaves_what_there_was_and_requests_go_on(
    folder: Path, undisturbed: dict[int, list[int]]
) -> None:
    front = on_device(folder, kv=KvBudget(tokens=512), experts="12")
    ask(front)
    front.hear(front.engine.step())
    failed = resize(front, KvBudget(bytes=900 * MIB), None)
    assert isinstance(failed, Failed)
    assert failed.error == "NoRoomError"
    short = resize(front, KvBudget(tokens=32), None)
    assert isinstance(short, Failed)
    assert short.error == "DoesNotFitError"
    assert "A live request has" in short.message or "Live requests hold" in short.message
    few = resize(front, None, "1")
    assert isinstance(few, Failed)
    assert few.remedy == "Give --experts 2 or more, or --experts 0 to cache none."
    ready = front.engine.ready()
    assert ready.cache is not None
    assert (ready.cache.slots, ready.kv_tokens) == (12, 512)
    front.run()
    assert front.tokens == undisturbed


def test_memory_that_others_took_fails_a_resize_cleanly(folder: Path, undisturbed: dict[int, list[int]]) -> None:
    driver = SimDriver(memory=64 * MIB)
    config = WorkerConfig(str(folder), device="sim", threads=1, kv=KvBudget(tokens=512), experts="2")
    front = Front(Engine(load_with(driver, config)))
    ask(front)
    front.hear(front.engine.step())
    thief = driver.allocate(driver.memory()[1])
    front.engine._planner.__dict__["free"] = lambda: 60 * MIB  # it went after the planner had looked
    failed = resize(front, KvBudget(bytes=30 * MIB), None)
    assert isinstance(failed, Failed)
    assert failed.error == "NoRoomError"
    assert front.engine.ready().kv_tokens == 512
    front.run()
    assert front.tokens == undisturbed
    thief.free()


def test_experts_give_way_to_a_share_of_context(folder: Path) -> None:
    front = on_device(folder, kv=KvBudget(tokens=512))
    done = resize(front, KvBudget(share=0.5), None)
    assert isinstance(done, Resized)
    assert done.kv_after > 512
    assert done.cache_after is not None
    back = resize(front, KvBudget(tokens=512), "100%")
    assert isinstance(back, Resized)
    assert back.cache_after is not None
    assert (back.kv_after, back.cache_after.slots) == (512, POOL)
