"""Tencent's families: HunYuan, whose queries and keys are normed after they are rotated, and Hy3."""

from __future__ import annotations

from engine.spec.families.attention_rules import ATTENTION_BIAS, AttentionRule, RopeRule
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
)
from engine.spec.families.record import Family
from engine.spec.names import Names

NORM_EPS = key("rms_norm_eps", default=1e-5)
NORMS = (
    in_layer("self_attn.query_layernorm.weight", "attn.q_norm"),
    in_layer("self_attn.key_layernorm.weight", "attn.k_norm"),
)
SHARED_MLP = projections("mlp.shared_mlp", "shared.", GATED)
ATTENTION = AttentionRule(
    head_dim=key("head_dim", "attention_head_dim", default=0),
    qk_norm="head_after",
    normed=key("use_qk_norm", default=True),
    qkv_bias=ATTENTION_BIAS,
    o_bias=ATTENTION_BIAS,
)
ONLY = {
    "mlp_bias": (False,),
    "norm_type": ("rms",),
    "position_embedding_xdrope": (False,),
    "use_cla": (False,),
    "use_mla": (False,),
    "use_rotary_pos_emb": (True,),
}

HUNYUAN_V1_DENSE = Family(
    name="hunyuan_v1_dense",
    architecture="HunYuanDenseV1ForCausalLM",
    names=Names((*DECODER, *NORMS), SKIPPED),
    mixer=ATTENTION,
    norm_eps=NORM_EPS,
    only=ONLY,
)

WIDTH = key("moe_intermediate_size", "intermediate_size")
HUNYUAN_V1_MOE = Family(
    name="hunyuan_v1_moe",
    architecture="HunYuanMoEV1ForCausalLM",
    names=Names((*DECODER, *NORMS, in_layer("mlp.gate.wg.weight", "router"), *EXPERTS, *SHARED_MLP), SKIPPED),
    mixer=ATTENTION,
    moe=MoeRule(
        count=key("num_experts"),
        top_k=key("moe_topk", "num_experts_per_tok"),
        width=WIDTH,
        normalize=True,
        shared=SharedRule(WIDTH, count=key("num_shared_expert", default=1)),
    ),
    dense_width=None,
    norm_eps=NORM_EPS,
    only={
        **ONLY,
        "group_limited_greedy": (False,),
        "moe_layer_num_skipped": (0,),
        "norm_topk_prob": (True,),
        "routed_scaling_factor": (1.0,),
        "use_mixed_mlp_moe": (True,),
    },
)

HY_V3 = Family(
    name="hy_v3",
    architecture="HYV3ForCausalLM",
    names=Names(
        (
            *DECODER,
            in_layer("mlp.router.gate.weight", "router"),
            in_layer("mlp.expert_bias", "router_choice_bias"),
            in_layer("mlp.e_score_correction_bias", "router_choice_bias"),
            *EXPERTS,
            *SHARED_MLP,
            *SHARED_EXPERTS,
        ),
        (*SKIPPED, NEXT_TOKEN_LAYERS),
    ),
    mixer=AttentionRule(
        head_dim=key("head_dim", default=128),
        qk_norm="head",
        qkv_bias=ATTENTION_BIAS,
        o_bias=ATTENTION_BIAS,
        rope=RopeRule(theta=11158840.0),
    ),
    moe=MoeRule(
        count=key("num_experts", "num_local_experts"),
        top_k=key("num_experts_per_tok"),
        width=key("moe_intermediate_size"),
        scoring="sigmoid",
        normalize=True,
        scale=key("router_scaling_factor", default=2.826),
        choice_bias=True,
        shared=SharedRule(key("moe_intermediate_size"), count=key("num_shared_experts", default=1)),
        first_dense=key("first_k_dense_replace", default=1),
        types=key("mlp_layer_types", default=()),
    ),
    norm_eps=NORM_EPS,
    only={
        "mlp_bias": (False,),
        "qk_norm": (True,),
        "route_norm": (True,),
        "moe_router_use_sigmoid": (True,),
        "moe_router_enable_expert_bias": (True,),
    },
)

HUNYUAN_FAMILIES = (HUNYUAN_V1_DENSE, HUNYUAN_V1_MOE, HY_V3)
