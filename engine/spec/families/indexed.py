"""Families whose attention sees what an indexer has chosen."""

from __future__ import annotations

from dataclasses import replace

from engine.spec.families.attention_rules import AttentionRule, LatentRule, RopeRule
from engine.spec.families.config import key
from engine.spec.families.deepseek import DEEPSEEK_V3, DEEPSEEK_V3_DEFAULTS
from engine.spec.families.expert_rules import ActivationRule, MoeRule, SharedRule
from engine.spec.families.indexers import IndexRule
from engine.spec.families.naming import (
    DECODER,
    EXPERTS,
    INDEXER,
    MIXTRAL_EXPERTS,
    NEXT_TOKEN,
    NEXT_TOKEN_LAYERS,
    SHARED_EXPERTS,
    SKIPPED,
    in_layer,
    projections,
    zero_centred,
)
from engine.spec.families.record import SILU, Family
from engine.spec.families.sigmoid_routed import LAYER_KINDS, MOE
from engine.spec.names import Names, Skipped

# An indexer's Hadamard transform, in the publishers' code, is orthogonal: it changes no product of a query and a key.
INDEX = IndexRule(
    top_k=key("index_topk", default=2048),
    heads=key("index_n_heads", default=64),
    head_dim=key("index_head_dim", default=128),
    norm_eps=1e-6,
    types=key("layer_types", default=()),
    meanings={"indexed_attention": "own"},
)
DEEPSEEK_MOE = replace(MOE, types=LAYER_KINDS, first_dense=key("first_k_dense_replace", default=3))
ONLY = {
    "topk_method": ("noaux_tc",),
    "scoring_func": ("sigmoid",),
    "moe_layer_freq": (1,),
    "rope_interleave": (True,),
    "mlp_bias": (False,),
}

DEEPSEEK_V32 = Family(
    name="deepseek_v32",
    architecture="DeepseekV32ForCausalLM",
    names=Names((*INDEXER, *DEEPSEEK_V3.names.sources), (*SKIPPED, NEXT_TOKEN_LAYERS)),
    mixer=LatentRule(rope=RopeRule(pairs=True), index=INDEX),
    moe=DEEPSEEK_MOE,
    defaults=DEEPSEEK_V3_DEFAULTS,
    only={**ONLY, "indexer_rope_interleave": (False,)},
    tested=("f32", "fp8"),
)

# GLM-5. From GLM-5.2 on most layers share a selection; some checkpoints keep an indexer there all the same.
GLM_MOE_DSA = Family(
    name="glm_moe_dsa",
    architecture="GlmMoeDsaForCausalLM",
    names=Names(
        (*INDEXER, *DEEPSEEK_V3.names.sources),
        (*SKIPPED, NEXT_TOKEN_LAYERS, Skipped("*.self_attn.indexer.*", "unused-indexer")),
    ),
    mixer=LatentRule(
        rope=RopeRule(pairs=True),
        index=replace(
            INDEX,
            heads=key("index_n_heads", default=32),
            pairs=True,
            types=key("indexer_types", default=()),
            pattern=key("index_topk_pattern", default=()),
            meanings={"full": "own", "shared": "shared", "F": "own", "S": "shared"},
            every=key("index_topk_freq", default=1),
            offset=key("index_skip_topk_offset", default=2),
        ),
    ),
    moe=DEEPSEEK_MOE,
    norm_eps=key("rms_norm_eps", default=1e-5),
    defaults={**DEEPSEEK_V3_DEFAULTS, "n_group": 1, "topk_group": 1},
    only={**ONLY, "indexer_rope_interleave": (True,), "layer_types": ("indexed_attention",)},
    tested=("f32", "fp8", "nvfp4"),
)

INDEX_PARTS = ("q", "k")
MINIMAX_INDEXER = (
    *(in_layer(f"self_attn.index_{part}_proj.weight", f"index.{part}") for part in INDEX_PARTS),
    *(in_layer(f"self_attn.indexer.{part}_proj.weight", f"index.{part}") for part in INDEX_PARTS),
    *(in_layer(f"self_attn.index_{part}_norm.weight", f"index.{part}_norm") for part in INDEX_PARTS),
    *(in_layer(f"self_attn.indexer.{part}_norm.weight", f"index.{part}_norm") for part in INDEX_PARTS),
)
MINIMAX_NORMS = (
    *("attn_norm", "ffn_norm", "final_norm"),
    *("attn.q_norm", "attn.k_norm", "index.q_norm", "index.k_norm"),
)
SPARSE = "sparse_attention_config."

# MiniMax-M3, whose indexer's heads choose blocks, each for one head of keys and values.
MINIMAX_M3 = Family(
    name="minimax_m3_vl",
    architecture="MiniMaxM3VLForCausalLM",
    names=Names(
        (
            *zero_centred((*MINIMAX_INDEXER, *DECODER), *MINIMAX_NORMS),
            in_layer("mlp.gate_up_proj.weight", "ffn.gate", "ffn.up"),
            *MIXTRAL_EXPERTS,
            in_layer("block_sparse_moe.e_score_correction_bias", "router_choice_bias"),
            *projections("block_sparse_moe.shared_experts", "shared.", ("gate", "up", "down")),
            *EXPERTS,
            in_layer("mlp.gate.e_score_correction_bias", "router_choice_bias"),
            in_layer("mlp.shared_experts.gate_up_proj.weight", "shared.gate", "shared.up"),
            *SHARED_EXPERTS,
        ),
        (*SKIPPED, Skipped("*mtp.*", NEXT_TOKEN), Skipped("patch_merge_mlp.*", "vision")),
    ),
    mixer=AttentionRule(
        head_dim=key("head_dim", default=128),
        qk_norm="head",
        rope=RopeRule(theta=5e6, part=key("partial_rotary_factor", default=1.0), dim=key("rotary_dim")),
        index=IndexRule(
            top_k=key(SPARSE + "sparse_topk_blocks", "index_topk_blocks", default=16),
            heads=key(SPARSE + "sparse_num_index_heads", "index_n_heads", default=4),
            head_dim=key(SPARSE + "sparse_index_dim", "index_head_dim", default=128),
            norm_eps=key("rms_norm_eps", default=1e-6),
            norm="head",
            weighted=False,
            block=key(SPARSE + "sparse_block_size", "index_block_size", default=128),
            local=key(SPARSE + "sparse_local_block", "index_local_blocks", default=1),
            types=key("layer_types", SPARSE + "sparse_attention_freq", default=()),
            meanings={"full_attention": "none", "minimax_m3_sparse": "own"},
            every=0,
        ),
    ),
    moe=MoeRule(
        count=key("num_local_experts", default=128),
        top_k=key("num_experts_per_tok", default=4),
        width=key("intermediate_size"),
        scoring="sigmoid",
        normalize=True,
        scale=key("routed_scaling_factor", default=2.0),
        choice_bias=True,
        shared=SharedRule(key("shared_intermediate_size", default=3072)),
        clamped=ActivationRule(key("swiglu_alpha", default=1.702), key("swiglu_limit", default=7.0)),
        types=key("mlp_layer_types", "moe_layer_freq", default=()),
    ),
    dense_width=key("dense_intermediate_size", default=12288),
    only={
        "scoring_func": ("sigmoid",),
        "use_routing_bias": (True,),
        "use_gemma_norm": (True,),
        "use_qk_norm": (True,),
        "qk_norm_type": ("per_head",),
        "n_shared_experts": (1,),
        SPARSE + "use_sparse_attention": (True,),
        SPARSE + "sparse_score_type": ("max",),
        SPARSE + "sparse_init_block": (0,),
    },
    also=("minimax_m3_vl_text",),
    activations={**SILU, "swigluoai": "silu"},
    inside="text_config",
)

INDEXED_FAMILIES = (DEEPSEEK_V32, GLM_MOE_DSA, MINIMAX_M3)
