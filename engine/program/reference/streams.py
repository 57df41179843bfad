"""Operations of a residual stream that is several, in torch."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from engine.program.ir import Op
from engine.program.reference.step import Operation, Step


def _stream_weights(op: Op, step: Step) -> None:
    """Sigmoids that collapse the streams, twice sigmoids that spread a part, and a doubly stochastic matrix."""
    streams, rounds, eps = int(op.attrs["streams"]), int(op.attrs["iterations"]), float(op.attrs["eps"])
    base, scale = (step.weight(name) for name in op.weights)
    weights = step.buffers[op.writes[0]]
    if not rounds:
        weights[:] = torch.sigmoid(weights * scale + base) + eps
        return
    scaled = weights * scale.repeat_interleave(torch.tensor([streams, streams, streams**2])) + base
    pre, post, comb = torch.split(scaled, [streams, streams, streams**2], -1)
    comb = _apart(comb, streams).softmax(-1) + eps
    comb = comb / (comb.sum(-2, keepdim=True) + eps)
    for _ in range(rounds - 1):
        comb = comb / (comb.sum(-1, keepdim=True) + eps)
        comb = comb / (comb.sum(-2, keepdim=True) + eps)
    weights[:] = torch.cat([pre.sigmoid() + eps, 2 * post.sigmoid(), comb.flatten(1)], -1)


def _collapse(op: Op, step: Step) -> None:
    x, weights = (step.buffers[name] for name in op.reads)
    streams = int(op.attrs["streams"])
    mixed = torch.einsum("ts,tsd->td", weights[:, :streams], _apart(x, streams))
    step.buffers[op.writes[0]][:] = mixed


def _expand(op: Op, step: Step) -> None:
    x, part, weights = (step.buffers[name] for name in op.reads)
    streams = int(op.attrs["streams"])
    post, comb = weights[:, streams : 2 * streams], _apart(weights[:, 2 * streams :], streams)
    mixed = torch.einsum("tfs,tfd->tsd", comb, _apart(x, streams))
    x[:] = (mixed + post[:, :, None] * part[:, None, :]).flatten(1)


def _apart(x: Tensor, streams: int) -> Tensor:
    """[tokens, streams * n] as [tokens, streams, n]."""
    return x.reshape(len(x), streams, x.shape[1] // streams)


STREAM_OPERATIONS: Mapping[str, Operation] = {
    "stream_weights": _stream_weights,
    "collapse": _collapse,
    "expand": _expand,
}
