"""From a folder to something that takes steps: on the native executor here, on a device in `device_loading.py`."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

from engine import _native
from engine.base.config import ISA_VARIABLE, check_device
from engine.base.errors import UsageError
from engine.base.hardware import read_memory
from engine.base.units import GIB, format_size
from engine.files.ftw.opening import Ftw, open_model
from engine.memory.budget import ContextNeeds, plan_context
from engine.memory.pages import PAGE_TOKENS
from engine.program.ir import KV_DTYPE, KV_VALUE_BYTES, Program
from engine.program.lowering.lower import lower
from engine.program.native import NativeExecutor
from engine.program.step_bytes import WeightBytes, step_bytes
from engine.spec.attention import Attention, LatentAttention
from engine.spec.rope import LongScaling
from engine.spec.schema import Spec
from engine.worker.budget import Budget, HostPlanner
from engine.worker.identity import identity_of
from engine.worker.loaded import LoadedModel
from engine.worker.protocol import WorkerConfig, experts_notes
from engine.worker.scheduler import POLICY

_SIM_LARGEST = 8 * GIB
RESERVED_BYTES = 256 << 20  # for the process itself and the buffers of a step


def load_model(config: WorkerConfig) -> LoadedModel:
    """Open the model of `config` and make room for its context. Raises what is told to the user."""
    check_device(config.device)
    _check_isa(config.isa)
    if config.device == "cpu":
        return load_on_cpu(config)
    from engine.worker.device_loading import load_on_device  # only a device needs its drivers

    return load_on_device(config)


def _check_isa(isa: str) -> None:
    """Raise UsageError for kernels that this machine does not have; "" means the fastest."""
    known = _native.isas()
    if isa and isa not in known:
        raise UsageError(
            f"{ISA_VARIABLE}: {isa!r:.60} is not one of the instruction sets that run here: {', '.join(known)}.",
            "Unset it to have the fastest; the results are the same bits.",
        )


def load_on_cpu(config: WorkerConfig) -> LoadedModel:
    """On the native executor, with experts in place in the mapped file."""
    began = time.monotonic()
    model = open_model(Path(config.model))
    spec = Spec.from_json(model.spec)
    plan = plan_context(
        context_needs(lower(spec)),
        model_context=spec.context_length,
        available=free_memory(),
        context=config.context,
        kv=config.kv,
    )
    program = lower(spec, plan.context)
    executor = NativeExecutor(
        program,
        model.dense,
        model.banks,
        threads=config.threads,
        isa=config.isa,
        kv_dtype=KV_DTYPE,
        page_tokens=PAGE_TOKENS,
        room=plan.room,
        max_tokens=POLICY.max_step_tokens,
    )
    size = model_bytes(model)
    context_limit = config.context or spec.context_length
    return LoadedModel(
        executor=executor,
        vocab_size=spec.vocab_size,
        context_limit=context_limit,
        context_border=context_border(spec),
        budget=Budget(plan),
        planner=HostPlanner(context_limit, context_border(spec), free_memory),
        device="cpu",
        isa=executor.isa,
        threads=executor.threads,
        model_bytes=size,
        load_seconds=time.monotonic() - began,
        dense_step_bytes=step_bytes(program, WeightBytes.of(model.manifest), KV_VALUE_BYTES).dense,
        notes=(*experts_notes("cpu", config.experts), *_size_notes(size)),
        tokenizer=Path(config.model) / "tokenizer.json",
        identity=identity_of(Path(config.model), program, "cpu"),
    )


def context_needs(program: Program) -> ContextNeeds:
    """What a program keeps of a conversation."""
    return ContextNeeds(
        bytes_per_token=program.kv_bytes_per_token,
        window_bytes_per_token=program.window_bytes_per_token,
        reach=program.reach,
        state_bytes=program.state_bytes,
    )


def free_memory() -> int:
    """Bytes that context memory may take now."""
    _, available = read_memory()
    return max(0, available - RESERVED_BYTES)


def sim_memory() -> int:
    """Bytes of a simulated device where nobody says: half of what is free here, at most 8 GiB."""
    return min(read_memory()[1] // 2, _SIM_LARGEST)


def model_bytes(model: Ftw) -> int:
    """Bytes of weights."""
    return model.manifest.dense_bytes + sum(bank.record_bytes * bank.count for bank in model.banks)


def context_border(spec: Spec) -> int | None:
    """The longest context with the same positions as shorter ones; None for a model that has but one kind."""
    ropes = (layer.mixer.rope for layer in spec.layers if isinstance(layer.mixer, Attention | LatentAttention))
    scalings = (rope.scaling for rope in ropes if rope is not None)
    return min((scaling.original_context for scaling in scalings if isinstance(scaling, LongScaling)), default=None)


def _size_notes(size: int) -> Iterator[str]:
    total, _ = read_memory()
    if size > total:
        yield (
            f"The model has {format_size(size)} and this machine {format_size(total)} of memory: "
            "much of it will be read from disk again and again."
        )
