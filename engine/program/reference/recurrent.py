"""Operations of recurrent mixers in torch, as plain recurrences: one token after the other, in f32."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from torch.nn.functional import silu, softplus

from engine.program.ir import Op
from engine.program.reference.step import Operation, Step


def _over_tokens(op: Op, step: Step, advance: Callable[[Tensor, int], None]) -> None:
    """Call `advance(state, token)`, which changes the state in place, for the tokens of every sequence in order.

    A sequence that begins at position 0 begins from zeros. States are saved where the batch asks for it.
    """
    slots = step.context.states[int(op.attrs["state"])]
    saves = dict(step.batch.saves.tolist())
    bounds = step.batch.seq_starts.tolist()
    for slot, first, last in zip(step.batch.states.tolist(), bounds[:-1], bounds[1:], strict=True):
        if first == last:
            continue
        state = slots[slot].clone() if step.batch.positions[first] else torch.zeros_like(slots[slot])
        for token in range(first, last):
            advance(state, token)
            if token in saves:
                slots[saves[token]] = state
        slots[slot] = state


def _conv(op: Op, step: Step) -> None:
    """y_t[c] = act(bias[c] + sum_j w[c, j] x_{t - kernel + 1 + j}[c]); the state holds the last kernel - 1 inputs."""
    channels, kernel = int(op.attrs["channels"]), int(op.attrs["kernel"])
    x, y = step.buffers[op.reads[0]], step.buffers[op.writes[0]]
    weights = step.weight(op.weights[0]).view(channels, kernel)
    bias = step.weight(op.weights[1]) if op.weights[1] else torch.zeros(channels)

    def advance(state: Tensor, token: int) -> None:
        before = state.view(channels, kernel - 1)
        seen = torch.cat([before, x[token, :, None]], 1)
        before[:] = seen[:, 1:]
        y[token] = _activated(op, bias + (weights * seen).sum(1))

    _over_tokens(op, step, advance)


def _delta_rule(op: Op, step: Step) -> None:
    """Per head: S = exp(g) S; u = beta (v - S^T k), or without g and beta u = v; S += k u^T; o = scale S^T q."""
    heads, k_dim, v_dim = (int(op.attrs[name]) for name in ("heads", "k_dim", "v_dim"))
    q, k, v, *learned = (step.buffers[name] for name in op.reads)
    share = heads // int(op.attrs["key_heads"])
    q, k = (x.reshape(len(x), -1, k_dim).repeat_interleave(share, 1) for x in (q, k))
    v = v.reshape(len(v), heads, v_dim)
    g = learned[0].reshape(len(v), heads, -1, 1) if learned else _fixed_decays(op, heads).expand(len(v), heads, 1, 1)
    out = step.buffers[op.writes[0]].view(len(v), heads, v_dim)

    def advance(state: Tensor, token: int) -> None:
        memory = state.view(heads, k_dim, v_dim)
        memory *= g[token].exp()
        change = v[token]
        if learned:
            known = torch.einsum("hkv,hk->hv", memory, k[token])
            change = learned[1][token].sigmoid()[:, None] * (change - known)
        memory += k[token, :, :, None] * change[:, None, :]
        out[token] = float(op.attrs["scale"]) * torch.einsum("hkv,hk->hv", memory, q[token])

    _over_tokens(op, step, advance)


def _fixed_decays(op: Op, heads: int) -> Tensor:
    """Logarithms [heads, 1, 1]: head h has -slope * 2^(-8 (h + 1) / heads)."""
    places = torch.arange(1, heads + 1, dtype=torch.float64).view(heads, 1, 1)
    return (-float(op.attrs["slope"]) * torch.exp2(-8 * places / heads)).float()


def _ssm(op: Op, step: Step) -> None:
    """Per head: D = clamp(softplus(dt + dt_bias)); S = exp(-D exp(a_log)) S + D x B^T; y = S C + d x."""
    heads, head_dim, groups, state_dim = (int(op.attrs[name]) for name in ("heads", "head_dim", "groups", "state_dim"))
    x, dt, b, c = (step.buffers[name] for name in op.reads)
    a_log, d, dt_bias = (step.weight(name) for name in op.weights)
    steps = softplus(dt + dt_bias).clamp(min=float(op.attrs["dt_min"]), max=float(op.attrs["dt_max"]) or None)
    rates = -a_log.exp().view(heads, 1, -1)
    x = x.reshape(len(x), heads, head_dim)
    b, c = (v.reshape(len(v), groups, state_dim).repeat_interleave(heads // groups, 1) for v in (b, c))
    out = step.buffers[op.writes[0]].view(len(x), heads, head_dim)

    def advance(state: Tensor, token: int) -> None:
        memory, size = state.view(heads, head_dim, state_dim), steps[token].view(heads, 1, 1)
        memory *= (size * rates).exp()
        memory += size * b[token, :, None, :] * x[token, :, :, None]
        out[token] = (memory * c[token, :, None, :]).sum(-1) + d[:, None] * x[token]

    _over_tokens(op, step, advance)


def _decay(op: Op, step: Step) -> None:
    """g = -exp(a_log[h]) * softplus(a + dt_bias), or with a bound, bound * sigmoid(exp(a_log[h]) * (a + dt_bias))."""
    a, heads, bound = step.buffers[op.reads[0]], int(op.attrs["heads"]), float(op.attrs["bound"])
    rates = step.weight(op.weights[0]).exp().repeat_interleave(a.shape[1] // heads)
    shifted = a + step.weight(op.weights[1])
    step.buffers[op.writes[0]][:] = bound * (rates * shifted).sigmoid() if bound else -rates * softplus(shifted)


def _l2_norm(op: Op, step: Step) -> None:
    x = step.buffers[op.reads[0]]
    groups = x.reshape(len(x), -1, int(op.attrs["group"]))
    lengths = torch.sqrt(groups.square().sum(-1, keepdim=True) + float(op.attrs["eps"]))
    step.buffers[op.writes[0]][:] = (groups / lengths).reshape(x.shape)


def _gated_norm(op: Op, step: Step) -> None:
    """rms_norm(x * act(gate)) * w, or rms_norm(x) * w * act(gate); w is as wide as a group or as x."""
    x, gate = (step.buffers[name] for name in op.reads)
    w, group = step.weight(op.weights[0]), int(op.attrs["group"])
    gate = _activated(op, gate)
    if op.attrs["gate_first"]:
        x = x * gate
    groups = x.reshape(len(x), -1, group)
    normed = groups * torch.rsqrt(groups.square().mean(-1, keepdim=True) + float(op.attrs["eps"]))
    y = normed.reshape(x.shape) * w.repeat(x.shape[1] // len(w))
    step.buffers[op.writes[0]][:] = y if op.attrs["gate_first"] else y * gate


def _gate(op: Op, step: Step) -> None:
    x, g = (step.buffers[name] for name in op.reads)
    step.buffers[op.writes[0]][:] = _activated(op, g).repeat_interleave(x.shape[1] // g.shape[1], 1) * x


def _relu2(op: Op, step: Step) -> None:
    step.buffers[op.writes[0]][:] = step.buffers[op.reads[0]].relu().square()


def _activated(op: Op, x: Tensor) -> Tensor:
    return ACTIVATIONS[str(op.attrs["activation"])](x)


ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "none": torch.clone,
    "sigmoid": torch.sigmoid,
    "silu": silu,
    "softplus": softplus,
}


def _compress(op: Op, step: Step) -> None:
    """A mean of `every` tokens' values, weighted by a softmax over their gates; with overlap also of those before.

    The state holds means under way - largest gate, sum of weights, weighted values - of this entry and of the next.
    """
    every, overlap = int(op.attrs["every"]), bool(op.attrs["overlap"])
    kv, gate = (step.buffers[name] for name in op.reads)
    entry = step.buffers[op.writes[0]]
    series = 2 if overlap else 1
    bias = step.weight(op.weights[0]).view(every, series, -1)

    def advance(state: Tensor, token: int) -> None:
        means = state.view(series, 3, -1)  # of the entry under way, then of the next
        position = int(step.positions[token])
        if position % every == 0:
            means[0] = means[1] if overlap and position else _no_mean(means[0])
            means[-1] = _no_mean(means[0]) if overlap else means[0]
        gates = gate[token].view(series, -1) + bias[position % every]
        for number, (value, weight) in enumerate(zip(kv[token].view(series, -1), gates, strict=True), start=1):
            means[-number] = _taken(means[-number], value, weight)  # a token's values for the next entry come first
        entry[token] = means[0, 2] / means[0, 1] if (position + 1) % every == 0 else 0.0

    _over_tokens(op, step, advance)


def _no_mean(like: Tensor) -> Tensor:
    return torch.cat([torch.full_like(like[:1], -torch.inf), torch.zeros_like(like[1:])])


def _taken(mean: Tensor, value: Tensor, weight: Tensor) -> Tensor:
    """A mean under way with one value more."""
    largest = torch.maximum(mean[0], weight)
    kept, own = torch.exp(mean[0] - largest), torch.exp(weight - largest)
    return torch.stack([largest, mean[1] * kept + own, mean[2] * kept + own * value])


RECURRENT_OPERATIONS: Mapping[str, Operation] = {
    "compress": _compress,
    "conv": _conv,
    "decay": _decay,
    "delta_rule": _delta_rule,
    "gate": _gate,
    "gated_norm": _gated_norm,
    "l2_norm": _l2_norm,
    "relu2": _relu2,
    "ssm": _ssm,
}
