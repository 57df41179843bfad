"""The reference executor: every operation of docs/design.md in a few lines of torch, in f32, slow and obvious."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from engine.memory.blocks import NO_BLOCKS, BlockKind, ContextRoom
from engine.memory.pages import PAGE_TOKENS
from engine.program.executor import Batch, Bytes, Floats
from engine.program.ir import Op, Program
from engine.program.reference_context import ReferenceContext
from engine.program.reference_recurrent import RECURRENT_OPERATIONS, RecurrentStep
from engine.program.weights import Weights


@dataclass
class _Step:
    """What the operations of one step work on."""

    batch: Batch
    tokens: Tensor
    positions: Tensor
    buffers: dict[str, Tensor]


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
        self._operations: dict[str, Callable[[Op, _Step], None]] = {
            "embed": self._embed,
            "rms_norm": self._rms_norm,
            "linear": self._linear,
            "head_linear": self._head_linear,
            "head_copy": self._head_copy,
            "rope": self._rope,
            "attention": self._attention,
            "route": self._route,
            "experts": self._run_experts,
            "glu": self._glu,
            "sigmoid_gate": self._sigmoid_gate,
            "add": self._add,
            "select": self._select,
        }
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

    def _start(self, batch: Batch) -> _Step:
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
        return _Step(batch, torch.from_numpy(batch.tokens), torch.from_numpy(batch.positions), buffers)

    def _run(self, op: Op, step: _Step) -> None:
        started = time.perf_counter()
        if op.kind in RECURRENT_OPERATIONS:
            work = RecurrentStep(step.batch, step.buffers, self._context.states, self._weight)
            RECURRENT_OPERATIONS[op.kind](op, work)
        else:
            self._operations[op.kind](op, step)
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

    # --- operations

    def _embed(self, op: Op, step: _Step) -> None:
        (out,) = op.writes
        step.buffers[out][:] = float(op.attrs["scale"]) * self._weight(op.weights[0])[step.tokens]

    def _rms_norm(self, op: Op, step: _Step) -> None:
        x = step.buffers[op.reads[0]]
        group = int(op.attrs["group"])
        groups = x.reshape(len(x), x.shape[1] // group, group)
        normed = groups * torch.rsqrt(groups.square().mean(-1, keepdim=True) + float(op.attrs["eps"]))
        step.buffers[op.writes[0]][:] = (normed * self._weight(op.weights[0])).reshape(x.shape)

    def _linear(self, op: Op, step: _Step) -> None:
        x = step.buffers[op.reads[0]]
        for out, matrix, bias in zip(op.writes, op.weights[::2], op.weights[1::2], strict=True):
            y = x @ self._weight(matrix).T
            if bias:
                y = y + self._weight(bias)
            step.buffers[out][:] = float(op.attrs["scale"]) * y

    def _head_linear(self, op: Op, step: _Step) -> None:
        heads = int(op.attrs["heads"])
        matrices = self._weight(op.weights[0])
        matrices = matrices.reshape(heads, -1, matrices.shape[1])
        x = _runs(step.buffers[op.reads[0]], op, "in", matrices.shape[2])
        _runs(step.buffers[op.writes[0]], op, "out", matrices.shape[1])[:] = torch.einsum("hrc,thc->thr", matrices, x)

    def _head_copy(self, op: Op, step: _Step) -> None:
        width = int(op.attrs["width"])
        source = _runs(step.buffers[op.reads[0]], op, "in", width)
        _runs(step.buffers[op.writes[0]], op, "out", width)[:] = source

    def _rope(self, op: Op, step: _Step) -> None:
        table = self._program.ropes[int(op.attrs["table"])]
        dim, offset = int(op.attrs["dim"]), int(op.attrs["offset"])
        x = step.buffers[op.writes[0]]
        heads = x.view(len(x), int(op.attrs["heads"]), int(op.attrs["stride"]))[:, :, offset : offset + dim]
        angles = step.positions[:, None].float() * torch.tensor(table.inv_freq, dtype=torch.float32)
        cosine, sine = (f(angles)[:, None, :] * table.scale for f in (torch.cos, torch.sin))
        half = dim // 2
        first, second = (
            (heads[..., 0::2], heads[..., 1::2]) if op.attrs["pairs"] else (heads[..., :half], heads[..., half:])
        )
        rotated = first * cosine - second * sine, second * cosine + first * sine
        first[:], second[:] = rotated

    def _attention(self, op: Op, step: _Step) -> None:
        cache = self._context.caches[int(op.attrs["cache"])]
        heads, kv_heads = int(op.attrs["heads"]), int(op.attrs["kv_heads"])
        q, k = (step.buffers[name] for name in op.reads[:2])
        k_dim, v_dim = int(op.attrs["k_dim"]), int(op.attrs["v_dim"])
        q = q.reshape(len(q), heads, k_dim)
        k = k.reshape(len(k), kv_heads, k_dim)
        v = step.buffers[op.reads[2]].reshape(len(k), kv_heads, v_dim) if len(op.reads) > 2 else None
        out = step.buffers[op.writes[0]].view(len(q), heads, v_dim)
        sinks = self._weight(op.weights[0]) if op.weights[0] else None
        bounds = step.batch.seq_starts
        tables = step.batch.window_tables if cache.kind == "window" else step.batch.page_tables
        for sequence, table in enumerate(tables):
            first, last = int(bounds[sequence]), int(bounds[sequence + 1])
            if first == last:
                continue
            positions = step.positions[first:last]
            page = torch.from_numpy(table)[positions // self._page_tokens]
            slot = positions % self._page_tokens
            cache.keys[page, slot] = k[first:last]
            if v is not None and cache.values is not None:
                cache.values[page, slot] = v[first:last]
            seen = torch.arange(_oldest(op, int(positions[0])), int(positions[-1]) + 1)
            page, slot = torch.from_numpy(table)[seen // self._page_tokens], seen % self._page_tokens
            keys = cache.keys[page, slot]
            values = keys[..., :v_dim] if cache.values is None else cache.values[page, slot]
            out[first:last] = _attend(op, q[first:last], keys, values, positions, seen, sinks)

    def _route(self, op: Op, step: _Step) -> None:
        logits = step.buffers[op.reads[0]]
        bias = self._weight(op.weights[0]) if op.weights[0] else 0.0
        scoring, top_k = op.attrs["scoring"], int(op.attrs["top_k"])
        scores = {"softmax": logits.softmax(-1), "sigmoid": logits.sigmoid(), "softmax_topk": logits}[str(scoring)]
        choice = _open_groups(op, scores + bias)
        ids = choice.sort(dim=-1, descending=True, stable=True).indices[:, :top_k]  # ties go to the lower id
        weights = scores.gather(-1, ids)
        if scoring == "softmax_topk":
            weights = weights.softmax(-1)
        if op.attrs["normalize"]:
            weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
        step.buffers[op.writes[0]][:] = ids.int()
        step.buffers[op.writes[1]][:] = weights * float(op.attrs["scale"])

    def _run_experts(self, op: Op, step: _Step) -> None:
        x, ids, weights = (step.buffers[name] for name in op.reads)
        out = torch.zeros_like(step.buffers[op.writes[0]])
        for token, chosen in enumerate(ids.tolist()):
            for place, expert in enumerate(chosen):
                tensors = self._expert(int(op.attrs["layer"]), expert)
                up = _product(tensors, "up", x[token])
                gate = _product(tensors, "gate", x[token]) if "gate" in tensors else up
                hidden = _activate(op, gate, up)
                out[token] += weights[token, place] * _product(tensors, "down", hidden)
                self._experts_run += 1
        step.buffers[op.writes[0]][:] = out

    def _glu(self, op: Op, step: _Step) -> None:
        gate, up = (step.buffers[name] for name in op.reads)
        step.buffers[op.writes[0]][:] = _activate(op, gate, up)

    def _sigmoid_gate(self, op: Op, step: _Step) -> None:
        x, gate = (step.buffers[name] for name in op.reads)
        step.buffers[op.writes[0]][:] = gate.sigmoid() * x

    def _add(self, op: Op, step: _Step) -> None:
        a, b = (step.buffers[name] for name in op.reads)
        step.buffers[op.writes[0]][:] = a + float(op.attrs["scale"]) * b

    def _select(self, op: Op, step: _Step) -> None:
        step.buffers[op.writes[0]][:] = step.buffers[op.reads[0]][torch.from_numpy(step.batch.rows)]


def _runs(x: Tensor, op: Op, side: str, width: int) -> Tensor:
    """A view [tokens, heads, width] of a run of every head; `side` is "in" or "out"."""
    heads, stride, offset = int(op.attrs["heads"]), int(op.attrs[f"{side}_stride"]), int(op.attrs[f"{side}_offset"])
    return x.view(len(x), heads, stride)[:, :, offset : offset + width]


def _oldest(op: Op, position: int) -> int:
    """The first position that a token at `position` sees; later tokens see none before it either."""
    window, chunk = int(op.attrs["window"]), int(op.attrs["chunk"])
    return max(0, position - window + 1 if window else 0, position - position % chunk if chunk else 0)


def _attend(
    op: Op, q: Tensor, keys: Tensor, values: Tensor, positions: Tensor, seen: Tensor, sinks: Tensor | None
) -> Tensor:
    """q [queries, heads, k_dim], keys [seen, kv_heads, k_dim] -> [queries, heads, v_dim].

    `positions` are those of the queries, `seen` those of the keys.
    """
    share = q.shape[1] // keys.shape[1]
    keys, values = keys.repeat_interleave(share, 1), values.repeat_interleave(share, 1)
    scores = torch.einsum("qhd,khd->hqk", q, keys) * float(op.attrs["scale"])
    if op.attrs["softcap"]:
        scores = float(op.attrs["softcap"]) * torch.tanh(scores / float(op.attrs["softcap"]))
    distance = positions[:, None] - seen[None, :]
    visible = distance >= 0
    if op.attrs["window"]:
        visible &= distance < int(op.attrs["window"])
    if op.attrs["chunk"]:
        visible &= seen[None, :] >= positions[:, None] - positions[:, None] % int(op.attrs["chunk"])
    scores = scores.masked_fill(~visible, -torch.inf)
    if sinks is not None:
        scores = torch.cat([scores, sinks[:, None, None].expand(-1, scores.shape[1], 1)], -1)
    shares = scores.softmax(-1)[..., : len(keys)]
    return torch.einsum("hqk,khd->qhd", shares, values)


def _open_groups(op: Op, choice: Tensor) -> Tensor:
    """Minus infinity for experts outside the best groups."""
    groups = int(op.attrs["groups"])
    if groups == 1:
        return choice
    by_group = choice.view(len(choice), groups, choice.shape[1] // groups)
    worth = by_group.topk(int(op.attrs["group_top"]), dim=-1).values.sum(-1)
    best = worth.sort(dim=-1, descending=True, stable=True).indices[:, : int(op.attrs["top_groups"])]
    closed = torch.ones_like(worth, dtype=torch.bool).scatter(-1, best, False)
    return by_group.masked_fill(closed[..., None], -torch.inf).view(choice.shape)


def _activate(op: Op, gate: Tensor, up: Tensor) -> Tensor:
    if op.attrs["activation"] == "silu":
        return torch.nn.functional.silu(gate) * up
    if op.attrs["activation"] == "relu2":
        return up.relu().square()
    limit, alpha = float(op.attrs["limit"]), float(op.attrs["alpha"])
    gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    return (up + 1) * gate * torch.sigmoid(alpha * gate)


def _product(tensors: Mapping[str, Tensor], name: str, x: Tensor) -> Tensor:
    y = tensors[name] @ x
    return y + tensors[f"{name}_bias"] if f"{name}_bias" in tensors else y


def _array(x: Tensor) -> Floats:
    copy: Floats = x.numpy().copy()
    return copy
