"""The tensors of mixers that attend."""

from __future__ import annotations

from collections.abc import Iterator

from engine.spec.attention import Attention, LatentAttention
from engine.spec.indexer import Indexer
from engine.spec.wanted import Wanted, vector


def attention_tensors(mixer: Attention, hidden: int) -> Iterator[Wanted]:
    q_width, k_width = mixer.heads * mixer.head_dim, mixer.kv_heads * mixer.head_dim
    v_width, out_width = mixer.kv_heads * mixer.value_dim, mixer.heads * mixer.value_dim
    own = mixer.kv_layer < 0
    if mixer.experts is not None:
        count, top_k = mixer.experts.count, mixer.experts.top_k
        yield Wanted("attn.router", count, hidden)
        yield Wanted("attn.q", count * (q_width // top_k), hidden, count, apart=True)
        yield Wanted("attn.o", count * hidden, out_width // top_k, count, apart=True)
    else:
        yield Wanted("attn.q", q_width, hidden, mixer.heads)
        yield Wanted("attn.o", hidden, out_width)
    if own:
        yield Wanted("attn.k", k_width, hidden)
    if own and not mixer.v_from_k:
        yield Wanted("attn.v", v_width, hidden)
    if mixer.gated:
        yield Wanted("attn.gate", mixer.heads if mixer.head_gates else out_width, hidden, mixer.heads)
    k_bias, v_bias = mixer.k_bias and own, mixer.v_bias and own and not mixer.v_from_k
    biases = (("q", mixer.q_bias, q_width), ("k", k_bias, k_width), ("v", v_bias, v_width))
    for name, present, width in (*biases, ("o", mixer.o_bias, hidden)):
        if present:
            yield vector(f"attn.{name}_bias", width)
    if mixer.qk_norm not in ("none", "unit_after"):
        yield vector("attn.q_norm", q_width if mixer.qk_norm == "full" else mixer.head_dim)
        if own:
            yield vector("attn.k_norm", k_width if mixer.qk_norm == "full" else mixer.head_dim)
    if mixer.sinks:
        yield vector("attn.sinks", mixer.heads)
    yield from _indexer_tensors(mixer.indexer, hidden, hidden)


def latent_attention_tensors(mixer: LatentAttention, hidden: int) -> Iterator[Wanted]:
    heads, latent = mixer.heads, mixer.kv_lora_rank
    q_width = heads * (mixer.nope_dim + mixer.rope_dim)
    if mixer.q_lora_rank:
        yield Wanted("attn.q_a", mixer.q_lora_rank, hidden)
        yield vector("attn.q_a_norm", mixer.q_lora_rank)
        yield Wanted("attn.q", q_width, mixer.q_lora_rank)
    else:
        yield Wanted("attn.q", q_width, hidden)
    yield Wanted("attn.kv_a", latent, hidden)
    if mixer.rope_dim:
        yield Wanted("attn.k_rope", mixer.rope_dim, hidden)
    yield vector("attn.kv_a_norm", latent)
    yield Wanted("attn.k_up", heads * latent, mixer.nope_dim, heads, apart=True)  # W_uk of every head, transposed
    yield Wanted("attn.v_up", heads * mixer.v_dim, latent, heads, apart=True)
    yield Wanted("attn.o", hidden, heads * mixer.v_dim)
    if mixer.gated:
        yield Wanted("attn.gate", heads, hidden)
    if mixer.bias:
        if mixer.q_lora_rank:
            yield vector("attn.q_a_bias", mixer.q_lora_rank)
        yield vector("attn.kv_a_bias", latent)
        if mixer.rope_dim:
            yield vector("attn.k_rope_bias", mixer.rope_dim)
        yield vector("attn.o_bias", hidden)
    yield from _indexer_tensors(mixer.indexer, mixer.q_lora_rank or hidden, hidden)


def _indexer_tensors(indexer: Indexer | None, query_source: int, hidden: int) -> Iterator[Wanted]:
    if indexer is None or indexer.shared:
        return
    yield Wanted("index.q", indexer.heads * indexer.head_dim, query_source)
    yield Wanted("index.k", indexer.head_dim, hidden)
    if indexer.pooled:
        yield Wanted("index.gate", indexer.head_dim, hidden)
        yield vector("index.places", indexer.block * indexer.head_dim)
    yield vector("index.k_norm", indexer.head_dim)
    if indexer.norm == "layer":
        yield vector("index.k_norm_bias", indexer.head_dim)
    else:
        yield vector("index.q_norm", indexer.head_dim)
    if indexer.weighted:
        yield Wanted("index.weights", indexer.heads, hidden)
