"""Families that choose experts as DeepSeek-V3 does: by sigmoid scores and a bias that counts for the choice alone."""

from __future__ import annotations

from dataclasses import replace

from engine.spec.families.attention_rules import ATTENTION_BIAS, SLIDING_LATE, AttentionRule, RopeRule, WindowRule
from engine.spec.families.config import key
from engine.spec.families.deepseek import DEEPSEEK_V3, FIRST_DENSE, GROUPS, SHARED, TOP_GROUPS
from engine.spec.families.expert_rules import GroupRule, MoeRule
from engine.spec.families.naming import (
    DECODER,
    EXPERTS,
    MIXTRAL_EXPERTS,
    NEXT_TOKEN_LAYERS,
    SHARED_EXPERTS,
    SKIPPED,
    in_layer,
)
from engine.spec.families.record import Family
from engine.spec.names import Names

NORM_EPS = key("rms_norm_eps", default=1e-5)
LAYER_KINDS = key("mlp_layer_types", default=())
NAMES = Names(
    (*DECODER, *EXPERTS, *SHARED_EXPERTS, in_layer("mlp.gate.e_score_correction_bias", "router_choice_bias")),
    (*SKIPPED, NEXT_TOKEN_LAYERS),
)
MOE = MoeRule(
    count=key("n_routed_experts"),
    top_k=key("num_experts_per_tok"),
    width=key("moe_intermediate_size"),
    scoring="sigmoid",
    normalize=key("norm_topk_prob", default=True),
    scale=key("routed_scaling_factor", default=1.0),
    groups=GroupRule(GROUPS, TOP_GROUPS, group_top=2),
    choice_bias=True,
    shared=SHARED,
    first_dense=FIRST_DENSE,
)

# GLM-4.5, 4.6 and 4.7
GLM4_MOE = Family(
    name="glm4_moe",
    architecture="Glm4MoeForCausalLM",
    names=NAMES,
    mixer=AttentionRule(
        qk_norm="head",
        normed=key("use_qk_norm", default=False),
        qkv_bias=ATTENTION_BIAS,
        rope=RopeRule(part=key("partial_rotary_factor", default=0.5)),
    ),
    moe=replace(MOE, first_dense=key("first_k_dense_replace", default=1)),
    norm_eps=NORM_EPS,
    defaults={"n_shared_experts": 1},
    tested=("f32", "fp8", "nvfp4"),
    also=("glm4v_moe_text",),
)

# GLM-4.7-Flash
GLM4_MOE_LITE = Family(
    name="glm4_moe_lite",
    architecture="Glm4MoeLiteForCausalLM",
    names=DEEPSEEK_V3.names,
    mixer=DEEPSEEK_V3.mixer,
    moe=replace(MOE, types=LAYER_KINDS, first_dense=key("first_k_dense_replace", default=1)),
    norm_eps=NORM_EPS,
    defaults={"n_shared_experts": 1, "routed_scaling_factor": 1.8},
    only={"topk_method": ("noaux_tc",), "partial_rotary_factor": (1.0,)},
)

SOLAR_OPEN = Family(
    name="solar_open",
    architecture="SolarOpenForCausalLM",
    names=NAMES,
    mixer=AttentionRule(
        head_dim=key("head_dim", default=128),
        qkv_bias=ATTENTION_BIAS,
        rope=RopeRule(theta=1e6),
    ),
    moe=replace(MOE, first_dense=0),
    dense_width=None,
    norm_eps=NORM_EPS,
    defaults={"n_shared_experts": 1},
    only={"use_qk_norm": (False,), "first_k_dense_replace": (0,)},
)

# Publishers call its way of scoring by the name that others give to the way of choosing.
DOTS1 = Family(
    name="dots1",
    architecture="Dots1ForCausalLM",
    names=NAMES,
    mixer=AttentionRule(
        qk_norm="head",
        qkv_bias=ATTENTION_BIAS,
        o_bias=ATTENTION_BIAS,
        window=WindowRule(typed=True, layers=SLIDING_LATE),
    ),
    moe=replace(MOE, normalize=key("norm_topk_prob", default=False)),
    only={"scoring_func": ("noaux_tc", "sigmoid"), "topk_method": ("noaux_tc",), "moe_layer_freq": (1,)},
)

# Fields of the first MiniMax, which had layers of linear attention, are still in its config.json.
MINIMAX_M2 = Family(
    name="minimax_m2",
    architecture="MiniMaxM2ForCausalLM",
    names=Names(
        (
            *DECODER,
            *MIXTRAL_EXPERTS,
            in_layer("block_sparse_moe.e_score_correction_bias", "router_choice_bias"),
            *EXPERTS,
            in_layer("mlp.e_score_correction_bias", "router_choice_bias"),
        ),
        (*SKIPPED, NEXT_TOKEN_LAYERS),
    ),
    mixer=AttentionRule(
        head_dim=key("head_dim", default=128),
        qk_norm="full",
        normed=key("use_qk_norm", default=True),
        rope=RopeRule(theta=5e6, part=key("partial_rotary_factor", default=1.0), dim=key("rotary_dim")),
    ),
    moe=MoeRule(
        count=key("num_local_experts", "num_experts"),
        top_k=key("num_experts_per_tok"),
        width=key("intermediate_size"),
        scoring="sigmoid",
        normalize=True,
        choice_bias=True,
    ),
    dense_width=None,
    only={
        "scoring_func": ("sigmoid",),
        "qk_norm_type": ("per_layer",),
        "use_routing_bias": (True,),
        "shared_intermediate_size": (0,),
        "attn_type_list": (1,),
        "attention_bias": (False,),
    },
    tested=("f32", "fp8", "nvfp4"),
)

SIGMOID_ROUTED_FAMILIES = (GLM4_MOE, GLM4_MOE_LITE, SOLAR_OPEN, DOTS1, MINIMAX_M2)
