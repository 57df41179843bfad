"""Families whose heads have gates, and whose layers with a window have heads and positions of their own."""

from __future__ import annotations

from dataclasses import replace

from engine.spec.families.attention_rules import (
    ATTENTION_BIAS,
    FULL,
    SLIDING,
    SLIDING_LISTED,
    AttentionRule,
    RopeRule,
    WindowRule,
)
from engine.spec.families.config import key
from engine.spec.families.expert_rules import MoeRule, SharedRule
from engine.spec.families.naming import (
    DECODER,
    EXPERTS,
    GATED,
    NEXT_TOKEN_LAYERS,
    SHARED_EXPERTS,
    SKIPPED,
    in_layer,
    projections,
    zero_centred,
)
from engine.spec.families.record import Family
from engine.spec.names import Names

WIDTH = key("moe_intermediate_size")
GATE = in_layer("self_attn.g_proj.weight", "attn.gate")

# --- StepFun's Step-3.5 and 3.7: what silu makes is capped in some layers

PART = key("partial_rotary_factor", "partial_rotary_factors", default=1.0)
KV_HEADS = key("num_key_value_heads", "num_attention_groups", default=8)
STEP_EVERYWHERE = AttentionRule(
    kv_heads=KV_HEADS,
    head_dim=key("head_dim", default=128),
    score_width=key("query_pre_attn_scalar", "head_dim", default=128),
    qk_norm="head",
    qkv_bias=ATTENTION_BIAS,
    o_bias=ATTENTION_BIAS,
    gated=True,
    head_gates=True,
    rope=RopeRule(part=PART, kind=FULL),
    window=WindowRule(typed=True, layers=SLIDING_LISTED),
)
OTHERS = "attention_other_setting."  # what layers with a window have of their own, as published
STEP3P5 = Family(
    name="step3p5",
    architecture="Step3p5ForCausalLM",
    names=Names(
        (
            *zero_centred(DECODER, "final_norm", "attn_norm", "ffn_norm", "attn.q_norm", "attn.k_norm"),
            GATE,
            in_layer("moe.gate.weight", "router"),
            in_layer("moe.router_bias", "router_choice_bias"),
            *projections("moe", "", GATED),
            *projections("share_expert", "shared.", GATED),
            in_layer("mlp.gate.e_score_correction_bias", "router_choice_bias"),
            *EXPERTS,
            *SHARED_EXPERTS,
        ),
        (*SKIPPED, NEXT_TOKEN_LAYERS),
    ),
    mixer=STEP_EVERYWHERE,
    windowed=replace(
        STEP_EVERYWHERE,
        heads=key(
            "this_layer.num_attention_heads",
            "num_sliding_attention_heads",
            OTHERS + "num_attention_heads",
            "num_attention_heads",
        ),
        kv_heads=key(OTHERS + "num_attention_groups", default=KV_HEADS),
        rope=RopeRule(part=PART, kind=SLIDING, own_theta=key("rope_theta", default=10000.0)),
    ),
    moe=MoeRule(
        count=key("n_routed_experts", "moe_num_experts", default=288),
        top_k=key("num_experts_per_tok", "moe_top_k", default=8),
        width=WIDTH,
        scoring="sigmoid",
        normalize=True,
        scale=key("moe_router_scaling_factor", default=1.0),
        choice_bias=True,
        shared=SharedRule(key("share_expert_dim", "share_expert_dims", default=1280)),
        first_dense=3,
        types=key("mlp_layer_types", default=()),
        layers=key("moe_layers_enum", default=()),
        cap=key("swiglu_limits", default=0.0, null=0.0),
        shared_cap=key("swiglu_limits_shared", default=0.0, null=0.0),
    ),
    norm_eps=key("rms_norm_eps", default=1e-5),
    only={
        "gating": (True, "per-head"),
        "mlp_bias": (False,),
        "moe_every_n_layer": (1,),
        "moe_layer_offset": (0,),
        "moe_router_activation": ("sigmoid",),
        "norm_expert_weight": (True,),
        "sink": (False,),
        "sparse_attention_config": (),
        "use_bidirectional_attention": (False,),
        "use_head_wise_attn_gate": (True,),
        "use_moe": (True,),
        "use_moe_router_bias": (True,),
        "use_qk_norm": (True,),
        "yarn_only_types": (FULL,),
        "zero_centered": (True,),
    },
)

# --- Poolside's Laguna: gates are opened by softplus

LAGUNA_EVERYWHERE = AttentionRule(
    heads=key("num_attention_heads_per_layer", "num_attention_heads"),
    head_dim=key("head_dim", default=128),
    qk_norm="head",
    qkv_bias=ATTENTION_BIAS,
    o_bias=ATTENTION_BIAS,
    gated=True,
    head_gates=key("gating", default=True),
    gate_activation="softplus",
    rope=RopeRule(theta=500000.0, part=key("partial_rotary_factor", default=1.0), kind=FULL),
    window=WindowRule(size=key("sliding_window", default=512, null=0), typed=True, layers=SLIDING_LISTED),
)
LAGUNA = Family(
    name="laguna",
    architecture="LagunaForCausalLM",
    names=Names(
        (
            *DECODER,
            GATE,
            *EXPERTS,
            in_layer("mlp.experts.e_score_correction_bias", "router_choice_bias"),
            in_layer("mlp.gate.e_score_correction_bias", "router_choice_bias"),
            *projections("mlp.shared_expert", "shared.", GATED),
            *SHARED_EXPERTS,
        ),
        SKIPPED,
    ),
    mixer=LAGUNA_EVERYWHERE,
    windowed=replace(LAGUNA_EVERYWHERE, rope=RopeRule(part=key("partial_rotary_factor", default=1.0), kind=SLIDING)),
    moe=MoeRule(
        count=key("num_experts", default=256),
        top_k=key("num_experts_per_tok", default=8),
        width=WIDTH,
        scoring="sigmoid",
        normalize=True,
        scale=key("moe_routed_scaling_factor", default=1.0),
        choice_bias=True,
        shared=SharedRule(key("shared_expert_intermediate_size", default=512)),
        first_dense=1,
        types=key("mlp_layer_types", default=()),
    ),
    defaults={
        "rope_parameters": {
            FULL: {"rope_type": "default", "rope_theta": 500000.0, "partial_rotary_factor": 0.5},
            SLIDING: {"rope_type": "default", "rope_theta": 10000.0},
        }
    },
    only={
        "gating": (True, "per-head", "per-element"),
        "moe_apply_router_weight_on_input": (False,),
        "moe_router_logit_softcapping": (0, 0.0),
    },
)

HEAD_GATE_FAMILIES = (STEP3P5, LAGUNA)
