"""DeepSeek-V4: several residual streams, attention to a window and to compressed entries, experts by token ids."""

from __future__ import annotations

from engine.spec.families.attention_rules import HEADS, LAYER_TYPES, CompressedRule
from engine.spec.families.config import key
from engine.spec.families.expert_rules import MoeRule, SharedRule
from engine.spec.families.naming import (
    LAYER,
    NEXT_TOKEN,
    SKIPPED,
    also_under,
    in_layer,
    stream_mixture,
    values_in_layer,
)
from engine.spec.families.record import NORM_EPS, Family, StreamsRule
from engine.spec.names import Names, Skipped, Source

WIDTH = key("moe_intermediate_size")


def _compressor(place: str, keys: str) -> tuple[Source, ...]:
    return (
        in_layer(f"attn.{place}compressor.wkv.weight", f"attn.{keys}_kv"),
        in_layer(f"attn.{place}compressor.wgate.weight", f"attn.{keys}_gate"),
        values_in_layer(f"attn.{place}compressor.ape", f"attn.{keys}_bias"),
        in_layer(f"attn.{place}compressor.norm.weight", f"attn.{keys}_norm"),
    )


def _gated(place: str, keys: str) -> tuple[Source, ...]:
    return tuple(
        in_layer(f"ffn.{place}.w{i}.weight", f"{keys}{name}") for i, name in ((1, "gate"), (3, "up"), (2, "down"))
    )


# The publisher's files have no `model.` before these names, those that transformers writes do.
SOURCES = (
    Source("model.embed.weight", ("embed",)),
    Source("model.embed_tokens.weight", ("embed",)),
    Source("model.norm.weight", ("final_norm",)),
    Source("head.weight", ("head",)),
    Source("lm_head.weight", ("head",)),
    *(
        Source(f"model.{name}_{theirs}", (f"head_{ours}",))
        for name in ("hc_head", "hc_head.hc")
        for theirs, ours in (("fn", "mix"), ("base", "mix_base"), ("scale", "mix_scale"))
    ),
    in_layer("attn_norm.weight", "attn_norm"),
    in_layer("ffn_norm.weight", "ffn_norm"),
    *stream_mixture("attn"),
    *stream_mixture("ffn"),
    in_layer("attn.wq_a.weight", "attn.q_a"),
    in_layer("attn.q_norm.weight", "attn.q_a_norm"),
    in_layer("attn.wq_b.weight", "attn.q"),
    in_layer("attn.wkv.weight", "attn.kv"),
    in_layer("attn.kv_norm.weight", "attn.kv_norm"),
    in_layer("attn.norm.weight", "attn.kv_norm"),
    in_layer("attn.attn_sink", "attn.sinks"),
    in_layer("attn.wo_a.weight", "attn.o_a"),
    in_layer("attn.wo_b.weight", "attn.o"),
    *_compressor("", "entries"),
    *_compressor("indexer.", "index"),
    in_layer("attn.indexer.wq_b.weight", "attn.index_q"),
    in_layer("attn.indexer.weights_proj.weight", "attn.index_weights"),
    in_layer("ffn.gate.weight", "router"),
    in_layer("ffn.gate.bias", "router_choice_bias"),
    values_in_layer("ffn.gate.tid2eid", "router_by_token"),
    *_gated("experts.{expert}", ""),
    *_gated("shared_experts", "shared."),
)

DEEPSEEK_V4 = Family(
    name="deepseek_v4",
    architecture="DeepseekV4ForCausalLM",
    names=Names(
        also_under("", SOURCES),
        (*SKIPPED, Skipped(LAYER.removeprefix("model.").replace("{layer}", "{next}") + "*", NEXT_TOKEN)),
    ),
    mixer=CompressedRule(
        heads=HEADS,
        head_dim=key("head_dim"),
        q_lora_rank=key("q_lora_rank"),
        out_groups=key("o_groups"),
        out_rank=key("o_lora_rank"),
        window=key("sliding_window"),
        norm_eps=NORM_EPS,
        types=LAYER_TYPES,
        ratios=key("compress_ratios", default=()),
        sparse_rate=key("compress_rates.compressed_sparse_attention", "compress_rate_csa", default=4),
        heavy_rate=key("compress_rates.heavily_compressed_attention", "compress_rate_hca", default=128),
        index_heads=key("index_n_heads"),
        index_head_dim=key("index_head_dim"),
        index_top_k=key("index_topk"),
        theta=key("rope_theta", default=10000.0),
        compress_theta=key("compress_rope_theta", default=160000.0),
        rope_dim=key("qk_rope_head_dim", default=0),
        rope_share=key("partial_rotary_factor", default=0.125),
    ),
    moe=MoeRule(
        count=key("n_routed_experts"),
        top_k=key("num_experts_per_tok"),
        width=WIDTH,
        scoring="sqrt_softplus",
        normalize=True,
        scale=key("routed_scaling_factor", default=1.5),
        choice_bias=True,
        shared=SharedRule(WIDTH, count=key("n_shared_experts", default=1)),
        limit=key("swiglu_limit", default=10.0),
        by_token=key("num_hash_layers", default=3),
        by_token_types=key("mlp_layer_types", default=()),
    ),
    dense_width=None,
    tested=("f32", "mxfp4"),
    streams=StreamsRule(
        count=key("hc_mult", default=4),
        iterations=key("hc_sinkhorn_iters", default=20),
        eps=key("hc_eps", default=1e-6),
    ),
    only={
        "num_key_value_heads": (1,),
        "scoring_func": ("sqrtsoftplus",),
        "norm_topk_prob": (True,),
        "topk_method": ("noaux_tc",),
        "n_group": (1,),
        "topk_group": (1,),
        "attention_bias": (False,),
        "mlp_bias": (False,),
    },
)

DEEPSEEK_V4_FAMILIES = (DEEPSEEK_V4,)
