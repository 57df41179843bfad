"""Workers of tiny hybrid models: on the simulated device they say what they say on the cpu, while sizes change."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine.base.units import KvBudget
from engine.device.sim import SimDriver
from engine.worker.device_loading import load_with
from engine.worker.engine import Engine
from engine.worker.loading import load_model
from engine.worker.protocol import (
    ContextLoaded,
    ContextSaved,
    LoadContext,
    Message,
    Resize,
    Resized,
    SaveContext,
    WorkerConfig,
)
from tests.unit.engine_rig import Front

from .conftest import Models
from .prepare import Prepared
from .test_sim import STATEFUL

MEMORY = 256 << 20
KV = KvBudget(tokens=512)
ALL_WINDOWS = ("mistral-window", "mixtral-odd-window")  # whose pages hold nothing
NAMES = (*STATEFUL, "gpt_oss-odd", *ALL_WINDOWS)  # the last three have window pages and no states


def config(model: Prepared, device: str, **settings: Any) -> WorkerConfig:
    return WorkerConfig(str(model.ftw.folder), device=device, threads=1, **{"kv": KV, **settings})


@pytest.mark.parametrize("name", NAMES)
def test_a_device_says_what_the_cpu_says_while_sizes_change(models: Models, name: str) -> None:
    model = models(name)
    prompts = [model.truth.prompt, [*model.truth.prompt[:33], 5, 6, 7]]
    cpu = Front(Engine(load_model(config(model, "cpu"))))
    driver = SimDriver(memory=MEMORY, granularity=4096)
    loaded = load_with(driver, config(model, "sim"))
    device = Front(Engine(loaded))
    for front in (cpu, device):
        for number, prompt in enumerate(prompts):
            front.generate(number, list(prompt), 12)
    cpu.run()
    for resize in (Resize(7, KvBudget(tokens=256), None), Resize(8, KvBudget(tokens=1024), "0")):
        for _ in range(3):
            device.hear(device.engine.step())
        assert [type(message) for message in device.engine.handle(resize)] == [Resized]
    device.run()
    assert device.tokens == cpu.tokens
    room, sizes = loaded.executor.room, loaded.executor.block_bytes
    assert room.pages == (0 if name in ALL_WINDOWS else 64)
    assert (room.windows > 0, room.states > 0) == (sizes["window"] > 0, sizes["state"] > 0)


@pytest.mark.parametrize("name", ALL_WINDOWS)
def test_a_context_without_pages_is_saved_and_restored(models: Models, tmp_path: Path, name: str) -> None:
    model = models(name)
    talk = [token % model.spec.vocab_size for token in range(3, 103)]

    def worker() -> Front:
        return Front(Engine(load_model(config(model, "cpu"))))

    first = worker()
    first.generate(1, talk, 8)
    first.run()
    first.engine.handle(SaveContext(2, str(tmp_path / "talk"), tuple(talk)))
    saved = _said(first)
    assert isinstance(saved, ContextSaved)
    assert saved.saved == 96
    second = worker()
    second.engine.handle(LoadContext(3, str(tmp_path / "talk")))
    assert _said(second) == ContextLoaded(3, 96, 96)
    second.generate(1, talk, 8)
    second.run()
    assert second.tokens == first.tokens
    assert second.done[1].cached_tokens == 96


def _said(front: Front) -> Message:
    """The answer of the save or restore that is under way."""
    while not (answers := front.engine.chore()):
        pass
    (answer,) = answers
    return answer


def test_a_plan_counts_every_kind_of_block(models: Models) -> None:
    model = models("lfm2_moe-odd-biased")
    driver = SimDriver(memory=MEMORY, granularity=4096)
    loaded = load_with(driver, config(model, "sim", experts="4"))
    room, sizes = loaded.executor.room, loaded.executor.block_bytes
    planned = loaded.budget.context
    taken = sum(room.count(kind) * sizes[kind] for kind in sizes)
    assert room == planned.room
    assert planned.kv_bytes <= taken <= planned.kv_bytes + 64 * room.states * len(model.spec.layers)
