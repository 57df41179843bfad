"""The DeepSeek families: latent attention, shared experts, a few dense layers first."""

from __future__ import annotations

from engine.spec.families.attention_rules import LatentRule, RopeRule
from engine.spec.families.config import key
from engine.spec.families.expert_rules import GroupRule, MoeRule, SharedRule
from engine.spec.families.naming import (
    DECODER,
    EXPERTS,
    LATENT_ATTENTION,
    NEXT_TOKEN_LAYERS,
    SHARED_EXPERTS,
    SKIPPED,
    in_layer,
)
from engine.spec.families.record import Family
from engine.spec.names import Names

COUNT = key("n_routed_experts", "num_experts", default=0)
TOP_K = key("num_experts_per_tok", default=1)
WIDTH = key("moe_intermediate_size")
SHARED = SharedRule(WIDTH, count=key("n_shared_experts", default=0))
SCALE = key("routed_scaling_factor", default=1.0)
FIRST_DENSE = key("first_k_dense_replace", default=0)
GROUPS, TOP_GROUPS = key("n_group", default=1), key("topk_group", default=1)

# Where q_lora_rank is absent q_proj takes the place of q_a_proj and q_b_proj.
SOURCES = (*LATENT_ATTENTION, *DECODER, *EXPERTS, *SHARED_EXPERTS)

DEEPSEEK_V2 = Family(
    name="deepseek_v2",
    architecture="DeepseekV2ForCausalLM",
    names=Names(SOURCES, (*SKIPPED, NEXT_TOKEN_LAYERS)),
    mixer=LatentRule(),
    moe=MoeRule(
        count=COUNT,
        top_k=TOP_K,
        width=WIDTH,
        scale=SCALE,
        groups=GroupRule(GROUPS, TOP_GROUPS, group_top=1, when=("topk_method", "group_limited_greedy")),
        shared=SHARED,
        first_dense=FIRST_DENSE,
    ),
    only={
        "topk_method": ("greedy", "group_limited_greedy"),
        "scoring_func": ("softmax",),
        "norm_topk_prob": (False,),
        "moe_layer_freq": (1,),
        "mlp_bias": (False,),
    },
    defaults={"n_routed_experts": 64, "n_shared_experts": 2},
)

# Fields that config.json may lack; files of other releases of transformers leave some out.
DEEPSEEK_V3_DEFAULTS = {
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "first_k_dense_replace": 3,
    "n_group": 8,
    "topk_group": 4,
    "routed_scaling_factor": 2.5,
}
DEEPSEEK_V3 = Family(
    name="deepseek_v3",
    architecture="DeepseekV3ForCausalLM",
    names=Names(
        (*SOURCES, in_layer("mlp.gate.e_score_correction_bias", "router_choice_bias")), (*SKIPPED, NEXT_TOKEN_LAYERS)
    ),
    mixer=LatentRule(rope=RopeRule(pairs=key("rope_interleave", default=True))),
    moe=MoeRule(
        count=COUNT,
        top_k=TOP_K,
        width=WIDTH,
        scoring="sigmoid",
        normalize=key("norm_topk_prob", default=True),
        scale=SCALE,
        groups=GroupRule(GROUPS, TOP_GROUPS, group_top=2),
        choice_bias=True,
        shared=SHARED,
        first_dense=FIRST_DENSE,
    ),
    only={"topk_method": ("noaux_tc",), "scoring_func": ("sigmoid",), "moe_layer_freq": (1,)},
    defaults=DEEPSEEK_V3_DEFAULTS,
    tested=("f32", "fp8", "int4_32"),
    also=("kimi_k2",),  # whose own files import this architecture; sizes and scales differ
)

DEEPSEEK_FAMILIES = (DEEPSEEK_V2, DEEPSEEK_V3)
