"""Attention over pages, and the choice of what it looks at, in torch."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

import torch
from torch import Tensor

from engine.program.ir import Op
from engine.program.reference.step import Operation, Step


def _attention(op: Op, step: Step) -> None:
    cache = step.context.caches[int(op.attrs["cache"])]
    heads, kv_heads = int(op.attrs["heads"]), int(op.attrs["kv_heads"])
    q = step.buffers[op.reads[0]]
    k, v, chosen = (step.buffers[name] if name else None for name in (*op.reads[1:], "", "", "")[:3])
    k_dim, v_dim = int(op.attrs["k_dim"]), int(op.attrs["v_dim"])
    q = q.reshape(len(q), heads, k_dim)
    k = None if k is None else k.reshape(len(q), kv_heads, k_dim)
    v = None if v is None else v.reshape(len(q), kv_heads, v_dim)
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
        visible = _in_sight(op, positions, seen)
        if chosen is not None:
            visible = visible & _selected(op, chosen[first:last], len(seen))
        out[first:last] = _attend(op, q[first:last], keys, values, visible, sinks)


def _oldest(op: Op, position: int) -> int:
    """The first position that a token at `position` sees; later tokens see none before it either."""
    window, chunk = int(op.attrs["window"]), int(op.attrs["chunk"])
    return max(0, position - window + 1 if window else 0, position - position % chunk if chunk else 0)


def _in_sight(op: Op, positions: Tensor, seen: Tensor) -> Tensor:
    """Whether queries at `positions` may see keys at `seen`: [1, queries, seen]."""
    distance = positions[:, None] - seen[None, :]
    visible = distance >= 0
    if op.attrs["window"]:
        visible &= distance < int(op.attrs["window"])
    if op.attrs["chunk"]:
        visible &= seen[None, :] >= positions[:, None] - positions[:, None] % int(op.attrs["chunk"])
    return visible[None]


def _selected(op: Op, chosen: Tensor, seen: int) -> Tensor:
    """Whether positions [0, seen) are in a block that was chosen for a head: [heads or 1, queries, seen]."""
    sets, block = int(op.attrs["sets"]), int(op.attrs["block"])
    blocks = torch.arange(seen) // block
    found = (chosen.view(len(chosen), sets, -1, 1) == blocks).any(2).transpose(0, 1)
    return found if sets == 1 else found.repeat_interleave(int(op.attrs["heads"]) // sets, 0)


def _attend(op: Op, q: Tensor, keys: Tensor, values: Tensor, visible: Tensor, sinks: Tensor | None) -> Tensor:
    """q [queries, heads, k_dim], keys [seen, kv_heads, k_dim], visible [heads or 1, queries, seen] -> as q, v_dim."""
    share = q.shape[1] // keys.shape[1]
    keys, values = keys.repeat_interleave(share, 1), values.repeat_interleave(share, 1)
    scores = torch.einsum("qhd,khd->hqk", q, keys) * float(op.attrs["scale"])
    if op.attrs["softcap"]:
        scores = float(op.attrs["softcap"]) * torch.tanh(scores / float(op.attrs["softcap"]))
    scores = scores.masked_fill(~visible, -torch.inf)
    if sinks is not None:
        scores = torch.cat([scores, sinks[:, None, None].expand(-1, scores.shape[1], 1)], -1)
    shares = scores.softmax(-1)[..., : len(keys)]
    return torch.einsum("hqk,khd->qhd", shares, values)


def _choose(op: Op, step: Step) -> None:
    """The numbers of the best entries, or blocks of entries, ascending; -1 where there are fewer.

    With a tail the number of the entry under way comes behind them.
    """
    cache, every = step.context.caches[int(op.attrs["cache"])], step.program.caches[int(op.attrs["cache"])].every
    heads, top_k = int(op.attrs["heads"]), int(op.attrs["top_k"])
    q, k, weights = (step.buffers[name] if name else None for name in (*op.reads, "", "")[:3])
    assert q is not None, "an indexer has queries"
    tail = bool(op.attrs["tail"])
    out = step.buffers[op.writes[0]].view(len(q), -1, top_k + tail)
    out[:] = -1
    tables = step.batch.window_tables if cache.kind == "window" else step.batch.page_tables
    for table, bounds in zip(tables, pairwise(step.batch.seq_starts.tolist()), strict=True):
        for token in range(*bounds):
            position, pages = int(step.positions[token]), torch.from_numpy(table)
            if k is not None and (position + 1) % every == 0:
                cache.keys[pages[position // step.page_tokens], position % step.page_tokens // every, 0] = k[token]
            ends = torch.arange((position + 1) // every) * every + every - 1  # the last position of each entry
            keys = cache.keys[pages[ends // step.page_tokens], ends % step.page_tokens // every, 0]
            scores = q[token].view(heads, -1) @ keys.T
            if weights is not None:
                scores = weights[token, None] @ scores.relu()
            numbers = _best(op, scores)
            out[token, :, : numbers.shape[1]] = numbers.int()
            if tail and (position + 1) % every:
                out[token, :, numbers.shape[1]] = (position + 1) // every


def _best(op: Op, scores: Tensor) -> Tensor:
    """scores [sets, entries] -> the numbers [sets, at most top_k] of the best blocks, ascending."""
    block, entries = int(op.attrs["block"]), scores.shape[1]
    blocks = -(-entries // block)
    padded = torch.nn.functional.pad(scores, (0, blocks * block - entries), value=-torch.inf)
    worth = padded.view(len(scores), blocks, block).amax(2)
    worth[:, max(0, blocks - int(op.attrs["local"])) :] = torch.inf
    order = worth.argsort(dim=1, descending=True, stable=True)
    return order[:, : int(op.attrs["top_k"])].sort(1).values


def _compressed_attention(op: Op, step: Step) -> None:
    """Every query by itself: the keys, which are the values too, of its window and of the entries that it sees."""
    heads, window = int(op.attrs["heads"]), int(op.attrs["window"])
    q, kv, entry, chosen = (step.buffers[name] if name else None for name in (*op.reads, "", "")[:4])
    assert q is not None, "attention has queries"
    assert kv is not None, "attention has keys"
    own = step.context.caches[int(op.attrs["cache"])]
    sinks, out = step.weight(op.weights[0]), step.buffers[op.writes[0]]
    windows = step.batch.window_tables if own.kind == "window" else step.batch.page_tables
    bounds = pairwise(step.batch.seq_starts.tolist())
    for tables, (first, last) in zip(zip(windows, step.batch.page_tables, strict=True), bounds, strict=True):
        near, far = (torch.from_numpy(table) for table in tables)
        for token in range(first, last):
            position = int(step.positions[token])
            own.keys[near[position // step.page_tokens], position % step.page_tokens, 0] = kv[token]
            seen = torch.arange(max(0, position - window + 1), position + 1)
            keys = own.keys[near[seen // step.page_tokens], seen % step.page_tokens, 0]
            if entry is not None:
                keys = torch.cat([keys, _entries(op, step, far, position, entry[token], chosen, token)])
            scores = q[token].view(heads, -1) @ keys.T * float(op.attrs["scale"])
            shares = torch.cat([scores, sinks[:, None]], 1).softmax(-1)[:, :-1]
            out[token] = (shares @ keys).flatten()


def _entries(
    op: Op, step: Step, pages: Tensor, position: int, entry: Tensor, chosen: Tensor | None, token: int
) -> Tensor:
    """Entries that a token sees [entries, values], of which it may have completed the last."""
    number = int(op.attrs["entries"])
    cache, every = step.context.caches[number], step.program.caches[number].every
    if (position + 1) % every == 0:
        cache.keys[pages[position // step.page_tokens], position % step.page_tokens // every, 0] = entry
    numbers = torch.arange((position + 1) // every)
    if chosen is not None:
        numbers = chosen[token][chosen[token] >= 0].long()
    ends = numbers * every + every - 1
    return cache.keys[pages[ends // step.page_tokens], ends % step.page_tokens // every, 0]


ATTENTION_OPERATIONS: Mapping[str, Operation] = {
    "attention": _attention,
    "choose": _choose,
    "compressed_attention": _compressed_attention,
}
