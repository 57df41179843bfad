"""Families whose layers with a window attend in another way than those that see everything."""

from __future__ import annotations

from dataclasses import replace

from engine.spec.families.attention_rules import (
    ATTENTION_BIAS,
    FULL,
    NO_LAYERS,
    SLIDING,
    SLIDING_LISTED,
    SLIDING_MOST,
    AttentionRule,
    RopeRule,
    WindowRule,
)
from engine.spec.families.config import Key, key
from engine.spec.families.expert_rules import MoeRule, SharedRule
from engine.spec.families.naming import DECODER, EXPERTS, NEXT_TOKEN, SHARED_EXPERTS, SKIPPED, in_layer
from engine.spec.families.record import Family
from engine.spec.families.sigmoid_routed import LAYER_KINDS, MOE
from engine.spec.families.sparse import QWEN3_MOE_ATTENTION, QWEN3_MOE_EXPERTS
from engine.spec.names import Names, Skipped
from engine.spec.residual import Residual

# K-EXAONE: positions are rotated in the layers with a window alone.
EXAONE_EVERYWHERE = AttentionRule(
    qk_norm="head",
    rope=None,
    window=WindowRule(
        size=key("sliding_window"),
        typed=True,
        layers=SLIDING_MOST,
        interval=key("sliding_window_pattern", default=4),
    ),
)
EXAONE_MOE = Family(
    name="exaone_moe",
    architecture="ExaoneMoeForCausalLM",
    names=Names(
        (
            *DECODER,
            *EXPERTS,
            *SHARED_EXPERTS,
            in_layer("mlp.e_score_correction_bias", "router_choice_bias"),
            in_layer("mlp.gate.e_score_correction_bias", "router_choice_bias"),
        ),
        SKIPPED,
    ),
    mixer=EXAONE_EVERYWHERE,
    windowed=replace(EXAONE_EVERYWHERE, rope=RopeRule()),
    moe=replace(
        MOE,
        count=key("num_experts"),
        scale=key("routed_scaling_factor", default=2.5),
        shared=SharedRule(key("moe_intermediate_size"), count=key("num_shared_experts", default=1)),
        first_dense=key("first_k_dense_replace", default=1),
        types=LAYER_KINDS,
    ),
    norm_eps=key("rms_norm_eps", default=1e-5),
    only={"scoring_func": ("sigmoid",), "topk_method": ("noaux_tc",)},
)

# MiMo-V2-Flash: layers with a window have key heads, a theta and sinks of their own.
PART = key("partial_rotary_factor", default=0.334)
MIMO_EVERYWHERE = AttentionRule(
    head_dim=key("head_dim", default=192),
    v_dim=key("v_head_dim", default=128),
    value_scale=key("attention_value_scale", default=0.707, null=1.0),
    qkv_bias=ATTENTION_BIAS,
    sinks=key("add_full_attention_sink_bias", default=False),
    rope=RopeRule(theta=5e6, part=PART, kind="full_attention"),
    window=WindowRule(
        size=key("sliding_window"),
        before=key("sliding_window_size", default=0),
        typed=True,
        layers=SLIDING_LISTED,
        marked=key("hybrid_layer_pattern", default=()),
    ),
)
MIMO_V2_FLASH = Family(
    name="mimo_v2_flash",
    architecture="MiMoV2FlashForCausalLM",
    names=Names(
        (
            *DECODER,
            *EXPERTS,
            in_layer("mlp.gate.e_score_correction_bias", "router_choice_bias"),
            in_layer("self_attn.attention_sink_bias", "attn.sinks"),
        ),
        (*SKIPPED, Skipped("model.mtp.*", NEXT_TOKEN)),
    ),
    mixer=MIMO_EVERYWHERE,
    windowed=replace(
        MIMO_EVERYWHERE,
        heads=key("swa_num_attention_heads", "num_attention_heads"),
        kv_heads=key("swa_num_key_value_heads", default=Key(("num_key_value_heads",), times=2)),
        head_dim=key("swa_head_dim", "head_dim", default=192),
        v_dim=key("swa_v_head_dim", "v_head_dim", default=128),
        sinks=key("add_swa_attention_sink_bias", default=True),
        rope=RopeRule(part=PART, kind="sliding_attention", own_theta=key("swa_rope_theta", default=10000.0)),
    ),
    moe=replace(MOE, shared=None, types=key("mlp_layer_types", "moe_layer_freq")),
    norm_eps=key("layernorm_epsilon", "rms_norm_eps", default=1e-5),
    only={
        "scoring_func": ("sigmoid",),
        "topk_method": ("noaux_tc",),
        "n_shared_experts": (0,),
        "attention_projection_layout": ("split",),
    },
    tested=("f32", "fp8"),
)

# JetBrains' Mellum 2: as Qwen3's, with positions of their own in layers with a window.
MELLUM_EVERYWHERE = replace(
    QWEN3_MOE_ATTENTION,
    head_dim=key("head_dim", default=128),
    rope=RopeRule(theta=500000.0, kind=FULL),
    window=WindowRule(size=key("sliding_window", default=1024, null=0), typed=True, layers=SLIDING_LISTED),
)
MELLUM = Family(
    name="mellum",
    architecture="MellumForCausalLM",
    names=Names((*DECODER, *EXPERTS), SKIPPED),
    mixer=MELLUM_EVERYWHERE,
    windowed=replace(MELLUM_EVERYWHERE, rope=RopeRule(kind=SLIDING)),
    moe=replace(
        QWEN3_MOE_EXPERTS,
        count=key("num_experts", "num_local_experts", default=64),
        top_k=key("num_experts_per_tok", default=8),
        normalize=key("norm_topk_prob", default=True),
        types=LAYER_KINDS,
        step=1,
        dense_layers=NO_LAYERS,
    ),
)

# Trinity: gated attention, rotated in the layers with a window alone, and norms before and after every part.
AFMOE_EVERYWHERE = AttentionRule(
    head_dim=key("head_dim", default=128),
    qk_norm="head",
    qkv_bias=ATTENTION_BIAS,
    o_bias=ATTENTION_BIAS,
    rope=None,
    gated=True,
    window=WindowRule(
        size=key("sliding_window", default=1024),
        typed=True,
        layers=SLIDING_MOST,
        interval=key("global_attn_every_n_layers", default=4),
    ),
)
AFMOE = Family(
    name="afmoe",
    architecture="AfmoeForCausalLM",
    names=Names(
        (
            in_layer("post_attention_layernorm.weight", "attn_post_norm"),
            in_layer("pre_mlp_layernorm.weight", "ffn_norm"),
            in_layer("post_mlp_layernorm.weight", "ffn_post_norm"),
            *(source for source in DECODER if source.holds != ("ffn_norm",)),
            in_layer("self_attn.gate_proj.weight", "attn.gate"),
            in_layer("mlp.router.gate.weight", "router"),
            in_layer("mlp.expert_bias", "router_choice_bias"),
            *EXPERTS,
            *SHARED_EXPERTS,
        ),
        SKIPPED,
    ),
    mixer=AFMOE_EVERYWHERE,
    windowed=replace(AFMOE_EVERYWHERE, rope=RopeRule()),
    moe=MoeRule(
        count=key("num_experts"),
        top_k=key("num_experts_per_tok"),
        width=key("moe_intermediate_size"),
        scoring="sigmoid",
        normalize=True,
        scale=key("route_scale", default=1.0),
        choice_bias=True,
        shared=SharedRule(key("moe_intermediate_size"), count=key("num_shared_experts", default=2)),
        first_dense=key("num_dense_layers", default=1),
    ),
    residual=Residual("sandwich"),
    embedding_root=key("mup_enabled", default=False),
    norm_eps=key("rms_norm_eps", default=1e-5),
    only={"n_group": (1,), "topk_group": (1,), "route_norm": (True,), "score_func": ("sigmoid",)},
)

LOCAL_FAMILIES = (EXAONE_MOE, MIMO_V2_FLASH, MELLUM, AFMOE)
