"""Models whose attention sees what an indexer has chosen: fewer positions than the prompts have."""

from __future__ import annotations

from .case import BIASES, HEAD, LOCAL_EIGHT, LOCAL_SEVEN, ODD, ODD_HEAD, Case, rope
from .latent import DEEPSEEK_YARN, GROUPS, LATENT, ODD_LATENT

# So many heads that hardly any pair of a query and a key is rectified to nothing by all: equal scores are ties, which
# transformers breaks as it likes.
INDEX = {"index_topk": 16, "index_n_heads": 12, "index_head_dim": 32}
ODD_INDEX = {"index_topk": 11, "index_n_heads": 13, "index_head_dim": 22}

# Blocks are of at least 16 positions here; the publisher's are of 128.
MINIMAX_M3 = {
    **{"intermediate_size": 48, "dense_intermediate_size": 96, "shared_intermediate_size": 64},
    **{"index_n_heads": 2, "index_head_dim": 16, "index_block_size": 16, "index_topk_blocks": 2},
    **{"swiglu_limit": 1.5, "layer_types": ["full_attention", "minimax_m3_sparse", "minimax_m3_sparse"]},
    "mlp_layer_types": ["dense", "sparse", "sparse"],
    **rope("default", partial_rotary_factor=0.5),
}
ODD_MINIMAX_M3 = {
    **{"intermediate_size": 28, "dense_intermediate_size": 52, "shared_intermediate_size": 38},
    **{"index_n_heads": 2, "index_head_dim": 22, "index_block_size": 16, "index_topk_blocks": 1},
    **{"index_local_blocks": 0, "swiglu_limit": 2.5, "swiglu_alpha": 1.3},
    "layer_types": ["minimax_m3_sparse", "full_attention", "minimax_m3_sparse"],
    **rope("default", partial_rotary_factor=0.4),
}

PUBLISHED_M3 = (
    (r"indexer\.([qk])_", r"index_\1_"),
    (r"mlp\.(experts|shared_experts|gate)\.", r"block_sparse_moe.\1."),
    (r"gate\.e_score", "e_score"),
    (r"(experts\.\d+)\.gate_proj", r"\1.w1"),
    (r"(experts\.\d+)\.down_proj", r"\1.w2"),
    (r"(experts\.\d+)\.up_proj", r"\1.w3"),
)

DELTA, POOLS = "linear_attention", "indexed_attention"
GLM5_NEXT = {
    **{name: value for name, value in LATENT.items() if name not in ("first_k_dense_replace", "qk_rope_head_dim")},
    **INDEX,
    "qk_rope_head_dim": 0,
    "index_kpool": 4,
    "layer_types": [DELTA, POOLS, POOLS],
    "mlp_layer_types": ["dense", "sparse", "sparse"],
    "indexer_types": ["full", "full", "shared"],
    "linear_num_heads": 4,
    "linear_head_dim": 16,
    "linear_lower_bound": -1.5,
    "hc_mult": 4,
    "hc_sinkhorn_iters": 5,
    "hc_eps": 1e-3,
    "swiglu_limit": 0.8,
}
ODD_GLM5_NEXT = {
    **GLM5_NEXT,
    **ODD,
    **BIASES,
    **{"num_key_value_heads": 6, "kv_lora_rank": 22, "qk_nope_head_dim": 10, "v_head_dim": 14},
    **{"n_routed_experts": 9, "moe_intermediate_size": 28, "n_shared_experts": 1, "n_group": 3, "topk_group": 2},
    **{"index_topk": 12, "index_n_heads": 13, "index_head_dim": 22, "index_kpool": 2},
    **{"linear_num_heads": 3, "linear_head_dim": 10, "linear_conv_kernel_dim": 3, "linear_lower_bound": None},
    **{"hc_mult": 3, "hc_sinkhorn_iters": 2, "norm_topk_prob": False},
    "layer_types": [POOLS, DELTA, POOLS],
    "indexer_types": ["full", "full", "full"],
    "mlp_layer_types": ["sparse", "dense", "sparse"],
}
GLM_EYES = {
    **{"depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2, "out_hidden_size": 64},
    **{"image_size": 28, "projection_intermediate_size": 16},
}

SPARSE_ATTENTION_CASES = (
    Case("deepseek_v32", "deepseek_v32", {**LATENT, **INDEX, **DEEPSEEK_YARN, "n_group": 1, "topk_group": 1}),
    Case(
        "deepseek_v32-odd-groups",
        "deepseek_v32",
        {**LATENT, **ODD_LATENT, **ODD_INDEX, **BIASES, "n_group": 3, "topk_group": 2},
        fused=True,
    ),
    Case(
        "glm_moe_dsa",
        "glm_moe_dsa",
        {**LATENT, **INDEX, "indexer_types": ["full", "shared", "full"]},
    ),
    Case(
        "glm_moe_dsa-odd-shared",
        "glm_moe_dsa",
        {**LATENT, **ODD_LATENT, **ODD_INDEX, **GROUPS, "n_group": 3, "index_topk_freq": 2, "norm_topk_prob": False},
        fused=True,
    ),
    Case("glm5_next", "glm5_next", {"text_config": GLM5_NEXT, "vision_config": GLM_EYES}),
    Case(
        "glm5_next-odd-unbounded",
        "glm5_next",
        {"text_config": ODD_GLM5_NEXT, "vision_config": {**GLM_EYES, "out_hidden_size": 60}},
    ),
    Case("minimax_m3_vl", "minimax_m3_vl_text", {**HEAD, **LOCAL_EIGHT, **MINIMAX_M3}),
    Case(
        "minimax_m3_vl-odd-published",
        "minimax_m3_vl_text",
        {**ODD, **ODD_HEAD, **LOCAL_SEVEN, **ODD_MINIMAX_M3},
        apart=True,
        wrapped=True,
        prefix="language_model.",
        renamed=PUBLISHED_M3,
    ),
)
