"""Operations that treat every token by itself, in torch."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from engine.program.ir import Op
from engine.program.reference.step import Operation, Step


def _embed(op: Op, step: Step) -> None:
    (out,) = op.writes
    step.buffers[out][:] = float(op.attrs["scale"]) * step.weight(op.weights[0])[step.tokens]


def _rms_norm(op: Op, step: Step) -> None:
    x = step.buffers[op.reads[0]]
    group = int(op.attrs["group"])
    groups = x.reshape(len(x), x.shape[1] // group, group)
    normed = groups * torch.rsqrt(groups.square().mean(-1, keepdim=True) + float(op.attrs["eps"]))
    if op.weights[0]:
        normed = normed * step.weight(op.weights[0])
    step.buffers[op.writes[0]][:] = normed.reshape(x.shape)


def _layer_norm(op: Op, step: Step) -> None:
    x = step.buffers[op.reads[0]]
    group = int(op.attrs["group"])
    groups = x.reshape(len(x), x.shape[1] // group, group)
    weight = step.weight(op.weights[0])
    bias = step.weight(op.weights[1]) if op.weights[1] else None
    normed = torch.nn.functional.layer_norm(groups, (group,), weight, bias, float(op.attrs["eps"]))
    step.buffers[op.writes[0]][:] = normed.reshape(x.shape)


def _bound(op: Op, step: Step) -> None:
    x, bound = step.buffers[op.reads[0]], float(op.attrs["bound"])
    bounded = bound * torch.tanh(x / bound) if op.attrs["smooth"] else x.clamp(-bound, bound)
    step.buffers[op.writes[0]][:] = bounded


def _linear(op: Op, step: Step) -> None:
    x = step.buffers[op.reads[0]]
    for out, matrix, bias in zip(op.writes, op.weights[::2], op.weights[1::2], strict=True):
        y = x @ step.weight(matrix).T
        if bias:
            y = y + step.weight(bias)
        step.buffers[out][:] = float(op.attrs["scale"]) * y


def _head_linear(op: Op, step: Step) -> None:
    heads = int(op.attrs["heads"])
    matrices = step.weight(op.weights[0])
    matrices = matrices.reshape(heads, -1, matrices.shape[1])
    x = _runs(step.buffers[op.reads[0]], op, "in", matrices.shape[2])
    _runs(step.buffers[op.writes[0]], op, "out", matrices.shape[1])[:] = torch.einsum("hrc,thc->thr", matrices, x)


def _chosen_linear(op: Op, step: Step) -> None:
    x, ids = (step.buffers[name] for name in op.reads)
    matrices = step.weight(op.weights[0])
    matrices = matrices.reshape(int(op.attrs["matrices"]), -1, matrices.shape[1])
    runs = x.reshape(len(x), -1, matrices.shape[2]).expand(-1, ids.shape[1], -1)
    for token, chosen in enumerate(ids.tolist()):
        outputs = [matrices[matrix] @ run for matrix, run in zip(chosen, runs[token], strict=True)]
        step.buffers[op.writes[0]][token] = torch.cat(outputs)


def _head_copy(op: Op, step: Step) -> None:
    width = int(op.attrs["width"])
    source = _runs(step.buffers[op.reads[0]], op, "in", width)
    _runs(step.buffers[op.writes[0]], op, "out", width)[:] = source


def _rope(op: Op, step: Step) -> None:
    table = step.program.ropes[int(op.attrs["table"])]
    dim, offset = int(op.attrs["dim"]), int(op.attrs["offset"])
    x = step.buffers[op.writes[0]]
    heads = x.view(len(x), int(op.attrs["heads"]), int(op.attrs["stride"]))[:, :, offset : offset + dim]
    positions = step.positions - step.positions % table.every
    angles = positions[:, None].float() * torch.tensor(table.inv_freq, dtype=torch.float32)
    steps = (step.positions + table.growth_ahead) // table.growth_every
    scales = table.scale * (1 + table.growth * torch.log1p(steps.float()))[:, None, None]
    cosine, sine = (f(angles)[:, None, :] * scales for f in (torch.cos, torch.sin))
    half = dim // 2
    first, second = (
        (heads[..., 0::2], heads[..., 1::2]) if op.attrs["pairs"] else (heads[..., :half], heads[..., half:])
    )
    rotated = first * cosine - second * sine, second * cosine + first * sine
    first[:], second[:] = rotated


def _sigmoid_gate(op: Op, step: Step) -> None:
    x, gate = (step.buffers[name] for name in op.reads)
    step.buffers[op.writes[0]][:] = gate.sigmoid().repeat_interleave(x.shape[1] // gate.shape[1], 1) * x


def _add(op: Op, step: Step) -> None:
    a, *others = (step.buffers[name] for name in op.reads)
    b = others[0] if others else step.weight(op.weights[0])
    step.buffers[op.writes[0]][:] = a + float(op.attrs["scale"]) * b


def _scale(op: Op, step: Step) -> None:
    step.buffers[op.writes[0]][:] *= step.weight(op.weights[0]) if op.weights[0] else float(op.attrs["by"])


def _select(op: Op, step: Step) -> None:
    step.buffers[op.writes[0]][:] = step.buffers[op.reads[0]][torch.from_numpy(step.batch.rows)]


def _runs(x: Tensor, op: Op, side: str, width: int) -> Tensor:
    """A view [tokens, heads, width] of a run of every head; `side` is "in" or "out"."""
    heads, stride, offset = int(op.attrs["heads"]), int(op.attrs[f"{side}_stride"]), int(op.attrs[f"{side}_offset"])
    return x.view(len(x), heads, stride)[:, :, offset : offset + width]


ROW_OPERATIONS: Mapping[str, Operation] = {
    "embed": _embed,
    "rms_norm": _rms_norm,
    "layer_norm": _layer_norm,
    "bound": _bound,
    "linear": _linear,
    "head_linear": _head_linear,
    "chosen_linear": _chosen_linear,
    "head_copy": _head_copy,
    "rope": _rope,
    "sigmoid_gate": _sigmoid_gate,
    "add": _add,
    "scale": _scale,
    "select": _select,
}
