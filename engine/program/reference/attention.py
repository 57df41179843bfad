"""Attention over pages, in torch."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from engine.program.ir import Op
from engine.program.reference.step import Operation, Step


def _attention(op: Op, step: Step) -> None:
    cache = step.context.caches[int(op.attrs["cache"])]
    heads, kv_heads = int(op.attrs["heads"]), int(op.attrs["kv_heads"])
    q, *kept = (step.buffers[name] for name in op.reads)
    k_dim, v_dim = int(op.attrs["k_dim"]), int(op.attrs["v_dim"])
    q = q.reshape(len(q), heads, k_dim)
    k = kept[0].reshape(len(q), kv_heads, k_dim) if kept else None
    v = kept[1].reshape(len(q), kv_heads, v_dim) if len(kept) > 1 else None
    out = step.buffers[op.writes[0]].view(len(q), heads, v_dim)
    sinks = step.weight(op.weights[0]) if op.weights[0] else None
    bounds = step.batch.seq_starts
    tables = step.batch.window_tables if cache.kind == "window" else step.batch.page_tables
    for sequence, table in enumerate(tables):
        first, last = int(bounds[sequence]), int(bounds[sequence + 1])
        if first == last:
            continue
        positions = step.positions[first:last]
        page = torch.from_numpy(table)[positions // step.page_tokens]
        slot = positions % step.page_tokens
        if k is not None:
            cache.keys[page, slot] = k[first:last]
        if v is not None and cache.values is not None:
            cache.values[page, slot] = v[first:last]
        seen = torch.arange(_oldest(op, int(positions[0])), int(positions[-1]) + 1)
        page, slot = torch.from_numpy(table)[seen // step.page_tokens], seen % step.page_tokens
        keys = cache.keys[page, slot]
        values = keys[..., :v_dim] if cache.values is None else cache.values[page, slot]
        out[first:last] = _attend(op, q[first:last], keys, values, positions, seen, sinks)


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


ATTENTION_OPERATIONS: Mapping[str, Operation] = {"attention": _attention}
