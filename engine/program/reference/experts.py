"""Routing, routed experts, and what stands between the matrices of a feed-forward part, in torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from torch.nn.functional import softplus

from engine.program.ir import Op
from engine.program.reference.step import Operation, Step

SCORINGS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "softmax": lambda logits: logits.softmax(-1),
    "sigmoid": torch.sigmoid,
    "softmax_topk": lambda logits: logits,
    "sigmoid_topk": lambda logits: logits,
    "sparse_mixer": lambda logits: logits,
    "sqrt_softplus": lambda logits: softplus(logits).sqrt(),
}
GELUS = {"gelu": "none", "gelu_tanh": "tanh"}


def _route(op: Op, step: Step) -> None:
    logits = step.buffers[op.reads[0]]
    bias = step.weight(op.weights[0]) if op.weights[0] else 0.0
    scoring, top_k = op.attrs["scoring"], int(op.attrs["top_k"])
    scores = SCORINGS[str(scoring)](logits)
    if len(op.weights) > 1 and op.weights[1]:
        ids = step.weight(op.weights[1]).view(-1, top_k)[step.tokens].long()
    else:
        choice = _open_groups(op, scores + bias)
        ids = choice.sort(dim=-1, descending=True, stable=True).indices[:, :top_k]  # ties go to the lower id
    weights = scores.gather(-1, ids)
    if scoring == "softmax_topk":
        weights = weights.softmax(-1)
    if scoring == "sigmoid_topk":
        weights = weights.sigmoid()
    if scoring == "sparse_mixer":
        weights = _sparse_mixer(scores, ids, float(op.attrs["jitter"]))
    if op.attrs["normalize"]:
        weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
    weights = weights * float(op.attrs["scale"])
    if len(op.weights) > 2:
        weights = weights * step.weight(op.weights[2])[ids]
    step.buffers[op.writes[0]][:] = ids.int()
    step.buffers[op.writes[1]][:] = weights


def _sparse_mixer(scores: Tensor, ids: Tensor, jitter: float) -> Tensor:
    """For each of the chosen its share among those that are near it and were not chosen before it."""
    left, shares = scores.clone(), []
    for chosen in torch.split(ids, 1, dim=-1):
        best = scores.gather(-1, chosen)
        far = (best - scores) / torch.maximum(scores.abs(), best) > 2 * jitter
        shares.append(left.masked_fill(far, -torch.inf).softmax(-1).gather(-1, chosen))
        left = left.scatter(-1, chosen, -torch.inf)
    return torch.cat(shares, dim=-1)


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


def _run_experts(op: Op, step: Step) -> None:
    x, ids, *weighed = (step.buffers[name] for name in op.reads)
    weights = weighed[0] if weighed else torch.ones(ids.shape)
    out = torch.zeros_like(step.buffers[op.writes[0]])
    for token, chosen in enumerate(ids.tolist()):
        for place, expert in enumerate(chosen):
            if expert >= int(op.attrs["experts"]):  # one that returns what it sees
                out[token] += weights[token, place] * x[token]
                continue
            tensors = step.expert(int(op.attrs["layer"]), expert)
            up = _product(tensors, "up", x[token])
            gate = _product(tensors, "gate", x[token]) if "gate" in tensors else up
            hidden = _activate(op, gate, up)
            out[token] += weights[token, place] * _product(tensors, "down", hidden)
    step.buffers[op.writes[0]][:] = out


def _glu(op: Op, step: Step) -> None:
    gate, up = (step.buffers[name] for name in op.reads)
    step.buffers[op.writes[0]][:] = _activate(op, gate, up)


def _activate(op: Op, gate: Tensor, up: Tensor) -> Tensor:
    name = str(op.attrs["activation"])
    if name == "silu":
        return torch.nn.functional.silu(gate) * up
    if name == "relu2":
        return up.relu().square()
    if name in GELUS:
        return torch.nn.functional.gelu(gate, approximate=GELUS[name]) * up
    limit, alpha = float(op.attrs["limit"]), float(op.attrs["alpha"])
    if name == "capped_silu":
        return torch.nn.functional.silu(gate).clamp(max=limit) * up.clamp(-limit, limit)
    gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    if name == "limited_silu":
        return torch.nn.functional.silu(gate) * up
    return (up + 1) * gate * torch.sigmoid(alpha * gate)


def _product(tensors: Mapping[str, Tensor], name: str, x: Tensor) -> Tensor:
    y = tensors[name] @ x
    return y + tensors[f"{name}_bias"] if f"{name}_bias" in tensors else y


EXPERT_OPERATIONS: Mapping[str, Operation] = {"route": _route, "experts": _run_experts, "glu": _glu}
