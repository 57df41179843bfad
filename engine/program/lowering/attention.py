"""Lowering of attention: every mixer that keeps keys and values of all that it sees."""

from __future__ import annotations

from engine.program.ir import Cache
from engine.program.lowering.build import Build
from engine.program.lowering.chosen import chosen_output, chosen_queries, query_scores
from engine.program.lowering.selection import index_projections, lower_selection, selection_attrs
from engine.spec.attention import Attention, LatentAttention


def lower_attention(build: Build, mixer: Attention, source: str, target: str) -> None:
    q = build.buffer("q", mixer.heads * mixer.head_dim)
    k = build.buffer("k", mixer.kv_heads * mixer.head_dim)
    v = build.buffer("v", mixer.kv_heads * mixer.value_dim)
    own = mixer.kv_layer < 0
    mixed = build.buffer("mixed", mixer.heads * mixer.value_dim)
    gates = mixer.heads * (1 if mixer.head_gates else mixer.value_dim)
    gate = {build.buffer("attn_gate", gates): "attn.gate"} if mixer.gated else {}
    index = index_projections(build, mixer.indexer)
    scores = query_scores(build, mixer.experts)
    keys = ({} if scores else {q: "attn.q"}) | ({k: "attn.k"} if own else {})
    own_values = {v: "attn.v"} if own and not mixer.v_from_k else {}
    _projections(build, mixer, source, keys, own_values, gate | index | scores)
    choice = None if mixer.experts is None else chosen_queries(build, mixer, mixer.experts, source, q)
    rotated = {q: mixer.heads, k: mixer.kv_heads} if own else {q: mixer.heads}
    if own and mixer.v_norm:
        build.norm(k if mixer.v_from_k else v, v, "", group=mixer.value_dim)
    if mixer.qk_norm in ("head", "full"):
        _qk_norm(build, mixer, rotated)
    if mixer.clip:
        for values in (*rotated, *((v,) if own else ())):
            build.op("bound", (values,), (values,), bound=mixer.clip, smooth=False)
    if mixer.rope is not None:
        for values, heads in rotated.items():
            build.rope(values, mixer.rope, heads=heads, stride=mixer.head_dim, offset=0)
    if mixer.qk_norm in ("head_after", "unit_after"):
        _qk_norm(build, mixer, rotated)
    if mixer.growth is not None:
        build.grow(q, mixer.growth, heads=mixer.heads, stride=mixer.head_dim)
    chosen = (lower_selection(build, mixer.indexer, source),) if mixer.indexer else ()
    build.op(
        "attention",
        (q, k, v, *chosen) if own else (q,),
        (mixed,),
        (build.weight("attn.sinks") if mixer.sinks else "",),
        cache=_cache(build, mixer),
        heads=mixer.heads,
        kv_heads=mixer.kv_heads,
        k_dim=mixer.head_dim,
        v_dim=mixer.value_dim,
        scale=mixer.scale,
        window=mixer.window,
        chunk=mixer.chunk,
        softcap=mixer.softcap,
        **selection_attrs(mixer.indexer),
    )
    for name in gate:
        build.op("gate", (mixed, name), (mixed,), activation=mixer.gate_activation)
    if choice is not None:
        chosen_output(build, mixer, choice, mixed, target)
    else:
        build.linears(mixed, {target: "attn.o"}, {"attn.o": mixer.o_bias})


def _projections(
    build: Build, mixer: Attention, source: str, qk: dict[str, str], v: dict[str, str], gate: dict[str, str]
) -> None:
    """Values that are scaled have a `linear` of their own."""
    biases = {"attn.q": mixer.q_bias, "attn.k": mixer.k_bias, "attn.v": mixer.v_bias}
    if mixer.value_scale == 1.0 or not v:
        build.linears(source, {**qk, **v, **gate}, biases)
    else:
        build.linears(source, {**qk, **gate}, biases)
        build.linears(source, v, biases, mixer.value_scale)


def _cache(build: Build, mixer: Attention) -> int:
    """The layer's own cache, or the one that it reads."""
    if mixer.kv_layer >= 0:
        return build.cache_of[mixer.kv_layer]
    return build.cache(Cache(mixer.kv_heads, mixer.head_dim, mixer.value_dim, _reach(build, mixer)))


def _qk_norm(build: Build, mixer: Attention, buffers: dict[str, int]) -> None:
    """`buffers` are those of queries and perhaps of keys, with their numbers of heads."""
    for (buffer, heads), key in zip(buffers.items(), ("attn.q_norm", "attn.k_norm"), strict=False):
        group = heads * mixer.head_dim if mixer.qk_norm == "full" else mixer.head_dim
        build.norm(buffer, buffer, "" if mixer.qk_norm == "unit_after" else key, group=group)


def lower_latent_attention(build: Build, mixer: LatentAttention, source: str, target: str) -> None:
    """The absorbed form: queries are taken into the latent space, so one key a token serves every head."""
    heads, latent = mixer.heads, mixer.kv_lora_rank
    key_dim, query_dim = latent + mixer.rope_dim, mixer.nope_dim + mixer.rope_dim
    q = build.buffer("q", heads * query_dim)
    latent_q = build.buffer("latent_q", heads * key_dim)
    kv_a = build.buffer("kv_a", latent)
    k = build.buffer("latent_k", key_dim)
    k_latent = build.view("latent_k.latent", k, 0, latent)
    rope_keys = {build.view("latent_k.rope", k, latent, mixer.rope_dim): "attn.k_rope"} if mixer.rope_dim else {}
    biases = dict.fromkeys(("attn.q_a", "attn.kv_a", "attn.k_rope", "attn.o"), mixer.bias)
    gate = {build.buffer("attn_gate", heads): "attn.gate"} if mixer.gated else {}
    keys = {kv_a: "attn.kv_a", **rope_keys, **gate, **index_projections(build, mixer.indexer)}
    query_source = source
    if mixer.q_lora_rank:
        q_a = query_source = build.buffer("q_a", mixer.q_lora_rank)
        build.linears(source, {q_a: "attn.q_a", **keys}, biases)
        build.norm(q_a, q_a, "attn.q_a_norm", eps=mixer.norm_eps)
        build.linears(q_a, {q: "attn.q"})
    else:
        build.linears(source, {q: "attn.q", **keys}, biases)
    if mixer.growth is not None:
        build.grow(q, mixer.growth, heads=heads, stride=query_dim)
    build.norm(kv_a, k_latent, "attn.kv_a_norm", eps=mixer.norm_eps)
    if mixer.latent_scale != 1.0:
        build.op("scale", (k_latent,), (k_latent,), ("",), by=mixer.latent_scale)
    if mixer.rope is not None:
        build.rope(k, mixer.rope, heads=1, stride=key_dim, offset=latent)
    build.head_linear(q, latent_q, "attn.k_up", heads, (query_dim, 0), (key_dim, 0))
    if mixer.rope_dim:
        build.op(
            "head_copy",
            (q,),
            (latent_q,),
            heads=heads,
            in_stride=query_dim,
            in_offset=mixer.nope_dim,
            out_stride=key_dim,
            out_offset=latent,
            width=mixer.rope_dim,
        )
    if mixer.rope is not None:
        build.rope(latent_q, mixer.rope, heads=heads, stride=key_dim, offset=latent)
    mixed_latent = build.buffer("mixed_latent", heads * latent)
    mixed = build.buffer("mixed", heads * mixer.v_dim)
    chosen = ("", lower_selection(build, mixer.indexer, query_source)) if mixer.indexer else ()
    build.op(
        "attention",
        (latent_q, k, *chosen),
        (mixed_latent,),
        ("",),
        cache=build.cache(Cache(1, key_dim, 0)),
        heads=heads,
        kv_heads=1,
        k_dim=key_dim,
        v_dim=latent,
        scale=mixer.scale,
        window=0,
        chunk=0,
        softcap=0.0,
        **selection_attrs(mixer.indexer),
    )
    build.head_linear(mixed_latent, mixed, "attn.v_up", heads, (latent, 0), (mixer.v_dim, 0))
    for name in gate:
        build.op("sigmoid_gate", (mixed, name), (mixed,))
    build.linears(mixed, {target: "attn.o"}, biases)


def _reach(build: Build, mixer: Attention) -> int:
    return reach_of_window(build, min(filter(None, (mixer.window, mixer.chunk)), default=0))


def reach_of_window(build: Build, window: int) -> int:
    """How far back a token sees at most; 0 where that is all that the model can.

    The context asked for plays no part: what is kept of a token does not change with it.
    """
    return window if window < build.spec.context_length else 0
