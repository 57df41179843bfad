"""Families that rotate positions in the layers with a window alone, and have ungated shared experts: Flint, Kolibri."""

from __future__ import annotations

from dataclasses import replace

from engine.spec.families.attention_rules import (
    ATTENTION_BIAS,
    SLIDING_LISTED,
    SLIDING_MOST,
    AttentionRule,
    RopeRule,
    WindowRule,
)
from engine.spec.families.config import key
from engine.spec.families.expert_rules import MoeRule, SharedRule
from engine.spec.families.naming import DECODER, EXPERTS, GATED, SHARED_EXPERTS, SKIPPED, in_layer, projections
from engine.spec.families.record import Family
from engine.spec.names import Names
from engine.spec.residual import Residual

WIDTH = key("moe_intermediate_size", default=512)
HEAD_DIM = key("head_dim", default=128)

# Recursive's Flint
FLINT_EVERYWHERE = AttentionRule(
    head_dim=HEAD_DIM,
    qk_norm="head",
    qkv_bias=ATTENTION_BIAS,
    o_bias=ATTENTION_BIAS,
    sinks=True,
    rope=None,
    window=WindowRule(size=key("sliding_window", default=513), typed=True, layers=SLIDING_LISTED),
)
FLINT = Family(
    name="flint",
    architecture="FlintForCausalLM",
    names=Names(
        (
            *DECODER,
            in_layer("self_attn.softmax_offset", "attn.sinks"),
            *EXPERTS,
            *projections("mlp.shared_expert", "shared.", GATED),
        ),
        SKIPPED,
    ),
    mixer=FLINT_EVERYWHERE,
    windowed=replace(FLINT_EVERYWHERE, rope=RopeRule()),
    moe=MoeRule(
        count=key("num_experts", default=256),
        top_k=key("num_experts_per_tok", default=6),
        width=WIDTH,
        scoring="sigmoid",
        normalize=key("norm_topk_prob", default=True),
        shared=SharedRule(key("shared_expert_intermediate_size", default=1024)),
        step=key("decoder_sparse_step", default=1),
        dense_layers=key("mlp_only_layers", default=(0, 1)),
    ),
)

# Aleph Alpha's Kolibri, whose bias is added to logits: a token goes by these, and a sigmoid weighs what was chosen.
KOLIBRI1_EVERYWHERE = AttentionRule(
    head_dim=HEAD_DIM,
    qk_norm="head",
    rope=None,
    window=WindowRule(size=key("sliding_window"), typed=True, layers=SLIDING_MOST, interval=5),
)
KOLIBRI1 = Family(
    name="kolibri1",
    architecture="Kolibri1ForCausalLM",
    names=Names(
        (
            in_layer("post_self_attn_layernorm.weight", "attn_post_norm"),
            in_layer("post_mlp_layernorm.weight", "ffn_post_norm"),
            in_layer("post_attn_norm.weight", "attn_post_norm"),
            in_layer("post_ffn_norm.weight", "ffn_post_norm"),
            *DECODER,
            *EXPERTS,
            in_layer("mlp.gate.e_score_correction_bias", "router_choice_bias"),
            in_layer("moe.router.expert_bias", "router_choice_bias"),
            *SHARED_EXPERTS,
        ),
        SKIPPED,
    ),
    mixer=KOLIBRI1_EVERYWHERE,
    windowed=replace(KOLIBRI1_EVERYWHERE, rope=RopeRule()),
    moe=MoeRule(
        count=key("num_experts", "num_local_experts", default=384),
        top_k=key("num_experts_per_tok", default=6),
        width=WIDTH,
        scoring="sigmoid_topk",
        normalize=key("norm_topk_prob", default=False),
        choice_bias=True,
        shared=SharedRule(key("shared_expert_intermediate_size", default=512)),
    ),
    dense_width=None,
    residual=Residual("sandwich"),
    only={"attention_bias": (False,)},
)

NEAR_POSITION_FAMILIES = (FLINT, KOLIBRI1)
