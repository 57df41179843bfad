"""From a folder to something that takes steps, on the native executor."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

from engine.base.errors import UnsupportedError
from engine.base.hardware import read_memory
from engine.base.units import KvBudget, format_size
from engine.files.ftw import Ftw, open_model
from engine.memory.budget import plan_context
from engine.memory.pages import PAGE_TOKENS
from engine.program.lower import lower
from engine.program.native import NativeExecutor
from engine.spec.schema import Spec
from engine.worker.engine import LoadedModel
from engine.worker.protocol import EXPERTS_NOTE, WorkerConfig

KV_DTYPE = "f16"
RESERVED_BYTES = 256 << 20  # for the process itself and the buffers of a step


def load_model(config: WorkerConfig) -> LoadedModel:
    """Open the model of `config` and make room for its context. Raises what is told to the user."""
    began = time.monotonic()
    if config.device != "cpu":
        raise UnsupportedError(f"--device {config.device} is not there yet in this release.", "Use --device cpu.")
    model = open_model(Path(config.model))
    spec = Spec.from_json(model.spec)
    model_context = spec.context_length
    program = lower(spec, config.context or 0)
    executor = NativeExecutor(
        program, model.dense, model.banks, threads=config.threads, kv_dtype=KV_DTYPE, page_tokens=PAGE_TOKENS
    )
    kv = None
    if config.kv_tokens is not None or config.kv_bytes is not None:
        kv = KvBudget(tokens=config.kv_tokens or 0, bytes=config.kv_bytes or 0)
    plan = plan_context(
        bytes_per_token=executor.page_bytes // PAGE_TOKENS,
        model_context=model_context,
        available=free_memory(),
        context=config.context,
        kv=kv,
    )
    executor.resize_kv(plan.pages)
    size = model_bytes(model)
    return LoadedModel(
        executor=executor,
        vocab_size=spec.vocab_size,
        model_context=model_context,
        context_limit=config.context or model_context,
        plan=plan,
        device="cpu",
        isa=executor.isa,
        threads=executor.threads,
        model_bytes=size,
        load_seconds=time.monotonic() - began,
        available=free_memory,
        notes=tuple(_notes(config, size)),
    )


def free_memory() -> int:
    """Bytes that context memory may take now."""
    _, available = read_memory()
    return max(0, available - RESERVED_BYTES)


def model_bytes(model: Ftw) -> int:
    """Bytes of weights."""
    return model.manifest.dense_bytes + sum(bank.record_bytes * bank.count for bank in model.banks)


def _notes(config: WorkerConfig, size: int) -> Iterator[str]:
    if config.experts is not None:
        yield EXPERTS_NOTE
    total, _ = read_memory()
    if size > total:
        yield (
            f"The model has {format_size(size)} and this machine {format_size(total)} of memory: "
            "much of it will be read from disk again and again."
        )
