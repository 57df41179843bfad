"""Lowering of what chooses what attention looks at."""

from __future__ import annotations

from engine.program.ir import Attr, Cache
from engine.program.lowering.build import Build
from engine.spec.indexer import Indexer


def index_projections(build: Build, indexer: Indexer | None) -> dict[str, str]:
    """What an indexer needs of the hidden state, for a `linear` that reads it: buffer -> key."""
    if indexer is None or indexer.shared:
        return {}
    key = {build.buffer("index_k", indexer.head_dim): "index.k"}
    key |= {build.buffer("index_gate", indexer.head_dim): "index.gate"} if indexer.pooled else {}
    return key | ({build.buffer("index_weights", indexer.heads): "index.weights"} if indexer.weighted else {})


def lower_selection(build: Build, indexer: Indexer, source: str) -> str:
    """The buffer of what was chosen. `source` is what queries come from; `index_projections` have been computed."""
    chosen = build.buffer("chosen", indexer.sets * indexer.numbers, dtype="i32")
    build.kept.add(chosen)  # layers behind may see what this one chose
    if indexer.shared:
        return chosen
    heads, dim = indexer.heads, indexer.head_dim
    q, k = build.buffer("index_q", heads * dim), build.buffer("index_k", dim)
    build.linears(source, {q: "index.q"})
    if indexer.norm == "head":
        build.norm(q, q, "index.q_norm", group=dim, eps=indexer.norm_eps)
        build.norm(k, k, "index.k_norm", eps=indexer.norm_eps)
    else:
        weights = (build.weight("index.k_norm"), build.weight("index.k_norm_bias"))
        build.op("layer_norm", (k,), (k,), weights, eps=indexer.norm_eps, group=dim)
    if indexer.rope is not None:
        build.rope(q, indexer.rope, heads=heads, stride=dim, offset=0)
        build.rope(k, indexer.rope, heads=1, stride=dim, offset=0)
    keys = _pooled(build, indexer, k) if indexer.pooled else k
    build.op(
        "choose",
        (q, keys, build.buffer("index_weights", heads)) if indexer.weighted else (q, keys),
        (chosen,),
        cache=build.cache(Cache(1, dim, 0, every=indexer.block if indexer.pooled else 1)),
        heads=heads,
        k_dim=dim,
        top_k=indexer.top_k,
        block=1 if indexer.pooled else indexer.block,
        local=indexer.local,
        tail=indexer.pooled,
    )
    return chosen


def _pooled(build: Build, indexer: Indexer, keys: str) -> str:
    """The keys of blocks, in the rows of the tokens that complete them."""
    dim = indexer.head_dim
    entry, gate = build.buffer("index_entry", dim), build.buffer("index_gate", dim)
    places, state = (build.weight("index.places"),), build.state(3 * dim)
    build.op("compress", (keys, gate), (entry,), places, state=state, every=indexer.block, overlap=False)
    return entry


def selection_attrs(indexer: Indexer | None) -> dict[str, Attr]:
    """What attention to a selection is told of it."""
    return {} if indexer is None else {"sets": indexer.sets, "block": indexer.block}
