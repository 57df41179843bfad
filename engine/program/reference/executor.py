"""The reference executor: every operation of docs/design.md in a few lines of torch, in f32, slow and obvious."""

from __future__ import annotations

import time
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from engine.memory.blocks import NO_BLOCKS, BlockKind, ContextRoom
from engine.memory.pages import PAGE_TOKENS
from engine.program.executor import Batch, Bytes, Floats
from engine.program.ir import Op, Program
from engine.program.reference.attention import ATTENTION_OPERATIONS
from engine.program.reference.context import ReferenceContext
from engine.program.reference.experts import EXPERT_OPERATIONS
from engine.program.reference.recurrent import RECURRENT_OPERATIONS
from engine.program.reference.rows import ROW_OPERATIONS
from engine.program.reference.step import Operation, Step
from engine.program.reference.streams import STREAM_OPERATIONS
from engine.program.weights import Weights

OPERATIONS: Mapping[str, Operation] = {
    **ROW_OPERATIONS,
    **ATTENTION_OPERATIONS,
    **EXPERT_OPERATIONS,
    **RECURRENT_OPERATIONS,
    **STREAM_OPERATIONS,
}


class ReferenceExecutor:
    """Runs a program in torch. Fulfils `engine.program.executor.Executor`; weights are dequantised once and kept."""

    def __init__(
        self, program: Program, weights: Weights, room: ContextRoom = NO_BLOCKS, page_tokens: int = PAGE_TOKENS
    ) -> None:
        self._program = program
        self._weights = weights
        self._page_tokens = page_tokens
        self._dense: dict[str, Tensor] = {}
        self._experts: dict[tuple[int, int], Mapping[str, Tensor]] = {}
        self._steps = self._experts_run = 0
        self._seconds = {"experts": 0.0, "attention": 0.0, "dense": 0.0}
        self._context = ReferenceContext(program, page_tokens)
        self._context.resize(room)

    # --- the executor protocol

    @property
    def page_tokens(self) -> int:
        return self._page_tokens

    @property
    def room(self) -> ContextRoom:
        return self._context.room

    @property
    def block_bytes(self) -> Mapping[BlockKind, int]:
        return self._context.block_bytes

    def resize_context(self, room: ContextRoom) -> None:
        self._context.resize(room)

    def copy_block(self, kind: BlockKind, source: int, target: int) -> None:
        self._context.copy(kind, source, target)

    def read_block(self, kind: BlockKind, block: int) -> Bytes:
        return self._context.read(kind, block)

    def write_block(self, kind: BlockKind, block: int, data: Bytes) -> None:
        self._context.write(kind, block, data)

    def step(self, batch: Batch) -> Floats:
        step = self._start(batch)
        for op in self._program.ops:
            self._run(op, step)
        return _array(step.buffers[self._program.output])

    def trace(self, batch: Batch) -> list[Floats]:
        step = self._start(batch)
        states = []
        for done, op in enumerate(self._program.ops, start=1):
            self._run(op, step)
            if done in self._program.layer_ends:
                states.append(_array(step.buffers[self._program.residual]))
        return states

    def counters(self) -> Mapping[str, float]:
        return {
            "steps": self._steps,
            "experts_run": self._experts_run,
            "expert_bytes": 0.0,  # dequantised weights are kept, so nothing is read again
            **{f"{kind.removesuffix('s')}_seconds": seconds for kind, seconds in self._seconds.items()},
        }

    # --- running

    def _start(self, batch: Batch) -> Step:
        self._steps += 1
        tokens, rows = len(batch.tokens), len(batch.rows)
        buffers: dict[str, Tensor] = {}
        for name, buffer in self._program.buffers.items():
            if not buffer.base:
                length = tokens if buffer.domain == "token" else rows
                kind = torch.float32 if buffer.dtype == "f32" else torch.int32
                buffers[name] = torch.zeros(length, buffer.width, dtype=kind)
        for name, buffer in self._program.buffers.items():
            if buffer.base:
                buffers[name] = buffers[buffer.base][:, buffer.offset : buffer.offset + buffer.width]
        return Step(
            program=self._program,
            batch=batch,
            tokens=torch.from_numpy(batch.tokens),
            positions=torch.from_numpy(batch.positions),
            buffers=buffers,
            context=self._context,
            page_tokens=self._page_tokens,
            weight=self._weight,
            expert=self._expert,
        )

    def _run(self, op: Op, step: Step) -> None:
        started = time.perf_counter()
        OPERATIONS[op.kind](op, step)
        if op.kind == "experts":
            self._experts_run += int((step.buffers[op.reads[1]] < int(op.attrs["experts"])).sum())
        kind = op.kind if op.kind in self._seconds else "dense"
        self._seconds[kind] += time.perf_counter() - started

    def _weight(self, name: str) -> Tensor:
        if name not in self._dense:
            self._dense[name] = torch.from_numpy(np.array(self._weights.dense(name), np.float32))
        return self._dense[name]

    def _expert(self, layer: int, expert: int) -> Mapping[str, Tensor]:
        if (layer, expert) not in self._experts:
            tensors = self._weights.expert(layer, expert)
            self._experts[layer, expert] = {
                name: torch.from_numpy(np.array(values, np.float32)) for name, values in tensors.items()
            }
        return self._experts[layer, expert]


def _array(x: Tensor) -> Floats:
    copy: Floats = x.numpy().copy()
    return copy
