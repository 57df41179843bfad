"""A worker process over the fake executor: `python fake_worker.py CONFIG`, started by a front under test."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import engine.worker.engine
from engine.base.errors import CorruptFileError, NoRoomError
from engine.base.units import parse_experts
from engine.memory.blocks import ContextRoom
from engine.program.executor import Batch, Floats
from engine.worker.loaded import LoadedModel
from engine.worker.main import main
from engine.worker.protocol import WorkerConfig
from tests.unit.fake_device import FakeDevice, fake_device_model
from tests.unit.fake_executor import FakeExecutor, fake_model
from tests.unit.scripted_executor import END, ScriptedExecutor

PACE = 0.002  # seconds a token, so that there is time to interrupt an answer
ROOM = 1 << 16  # tokens that "fit this machine"
SCRIPTED_CONTEXT = 1 << 18


def load(config: WorkerConfig) -> LoadedModel:
    name = Path(config.model).name
    if name == "broken":
        raise CorruptFileError("The bank is short.", "Convert the model again.")
    if name == "crowded":
        raise NoRoomError("This machine is full.", "Close something.")
    if name == "starved":
        raise MemoryError
    if name == "emptied":
        (Path(config.model) / "gone").stat()
    if name == "slow":
        time.sleep(60)
    if name == "stranger":
        engine.worker.engine.PROTOCOL_VERSION += 1
    if name == "dying":
        sys.exit(7)
    if name == "scripted":
        return load_scripted(config)
    if config.device == "sim":
        return load_on_fake_device(config)
    kv_tokens = config.context or 4096
    if config.kv is not None:
        kv_tokens = config.kv.tokens or config.kv.bytes // 100
    if kv_tokens > ROOM:
        raise NoRoomError(f"--kv {kv_tokens} is {kv_tokens - ROOM} tokens too many.", "Give less.")
    model = fake_model(kv_tokens, config.context, pace=PACE)
    kind = {"sluggish": SluggishExecutor, "endless": EndlessExecutor, "brisk": EndlessExecutor}.get(name, FakeExecutor)
    executor = kind(ContextRoom(model.budget.context.pages), pace=0 if name == "brisk" else PACE)
    executor.batches = Forgotten()
    return replace(
        model, executor=executor, threads=config.threads or 2, tokenizer=Path(config.model) / "tokenizer.json"
    )


def load_scripted(config: WorkerConfig) -> LoadedModel:
    """Agents send prompts of a hundred thousand bytes, which are as many tokens here."""
    model = fake_model(SCRIPTED_CONTEXT, model_context=SCRIPTED_CONTEXT)
    executor = ScriptedExecutor(ContextRoom(model.budget.context.pages))
    executor.batches = Forgotten()
    return replace(model, executor=executor, tokenizer=Path(config.model) / "tokenizer.json")


def load_on_fake_device(config: WorkerConfig) -> LoadedModel:
    experts = None if config.experts is None else parse_experts(config.experts)
    model = fake_device_model(config.kv, experts, pace=PACE)
    if Path(config.model).name == "stuck":
        assert isinstance(model.executor, FakeDevice)
        model.executor.broken = 1
    return replace(model, threads=config.threads or 2)


class Forgotten(list[Batch]):
    """Batches that are only counted: a worker may live long."""

    def append(self, batch: Batch) -> None:
        super().append(self[0] if self else batch)


class EndlessExecutor(FakeExecutor):
    """One whose answers do not end by themselves."""

    def logits_after(self, prefix: Sequence[int]) -> Floats:
        logits = super().logits_after(prefix)
        logits[END] = -50
        return logits


class SluggishExecutor(FakeExecutor):
    """One whose cache takes a while to change."""

    def resize_context(self, room: ContextRoom) -> None:
        time.sleep(1.0)
        super().resize_context(room)


if __name__ == "__main__":
    code = main(sys.argv[1:], load)
    if "/clinging" in sys.argv[1]:
        time.sleep(60)
    sys.exit(code)
