"""What a worker makes of its configuration: the context in force picks the program, the policy the size of a step."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from engine.base.errors import UnsupportedError
from engine.base.units import KvBudget
from engine.program.ir import KV_DTYPE, Program
from engine.program.lowering.lower import lower
from engine.program.native import NativeExecutor
from engine.worker import loading
from engine.worker.context_file import ContextIdentity
from engine.worker.loaded import LoadedModel
from engine.worker.loading import load_model
from engine.worker.protocol import WorkerConfig
from engine.worker.scheduler import POLICY
from tests.unit.native_model import RandomModel
from tests.unit.test_program_lower import spec_of

LONG_ROPE = {
    "type": "longrope",
    "short_factor": [1.0] * 5,
    "long_factor": [4.0] * 5,
    "original_max_position_embeddings": 64,
}
SPEC = spec_of("llama", rope_scaling=LONG_ROPE)  # knows 256 tokens


class Executor:
    """Notes what it was made of."""

    isa, threads = "none", 1

    def __init__(self, program: Program, dense: object, banks: object, **settings: Any) -> None:
        self.program, self.settings = program, settings


@pytest.fixture(autouse=True)
def _no_files(monkeypatch: pytest.MonkeyPatch) -> None:
    files = SimpleNamespace(
        spec=SPEC.to_json(), dense={}, banks=(), manifest=SimpleNamespace(dense_bytes=5, dense={}, banks=())
    )
    monkeypatch.setattr(loading, "open_model", lambda folder: files)
    monkeypatch.setattr(loading, "NativeExecutor", Executor)
    monkeypatch.setattr(loading, "identity_of", lambda folder, program, device: ContextIdentity())
    monkeypatch.setattr(loading, "step_bytes", lambda program, model, value_bytes: SimpleNamespace(dense=7))


def load(**settings: Any) -> tuple[LoadedModel, Any]:
    model = load_model(WorkerConfig("demo", **settings))
    return model, model.executor


@pytest.mark.parametrize(
    ("settings", "context"),
    [({}, 256), ({"context": 64}, 64), ({"kv": KvBudget(tokens=64)}, 64), ({"kv": KvBudget(tokens=80)}, 80)],
)
def test_the_context_in_force_picks_longropes_factors(settings: dict[str, Any], context: int) -> None:
    model, executor = load(**settings)
    assert model.budget.context.context == context
    assert executor.program.ropes == lower(SPEC, 64 if context <= 64 else 256).ropes
    assert model.context_border == 64


def test_a_model_without_longrope_has_no_border() -> None:
    assert loading.context_border(spec_of("llama")) is None
    assert loading.context_border(spec_of("deepseek_v3")) is None


def test_a_step_may_be_as_large_as_the_scheduler_makes_it() -> None:
    _, executor = load()
    assert executor.settings["max_tokens"] == POLICY.max_step_tokens


def test_devices_that_are_not_there_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="--device cuda"):
        load(device="cuda")


@pytest.mark.parametrize("shape", [{}, {"dim": 10}, {"kv_heads": 1}, {"heads": 40, "kv_heads": 1, "dim": 8}])
def test_bytes_of_a_token_are_those_of_the_native_cache(shape: dict[str, int]) -> None:
    model = RandomModel()
    model.attention(**shape)
    model.attention()
    program = model.program()
    executor = NativeExecutor(program, model.dense, model.banks, kv_dtype=KV_DTYPE, threads=1)
    assert program.kv_bytes_per_token * executor.page_tokens == executor.block_bytes["page"]
