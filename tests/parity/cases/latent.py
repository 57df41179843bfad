"""Models with experts and latent attention."""

from __future__ import annotations

from .case import BIASES, ODD, Case, growing, growing_linearly, rope

LATENT = {
    "num_key_value_heads": 4,
    "q_lora_rank": 48,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 16,
    "v_head_dim": 32,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 48,
    "n_shared_experts": 2,
    "first_k_dense_replace": 1,
    "routed_scaling_factor": 1.7,
}
ODD_LATENT = {
    **ODD,
    "num_key_value_heads": 6,
    "kv_lora_rank": 22,
    "qk_nope_head_dim": 10,
    "qk_rope_head_dim": 6,
    "v_head_dim": 14,
    "n_routed_experts": 9,
    "moe_intermediate_size": 28,
    "n_shared_experts": 1,
}
GROUPS = {"n_group": 4, "topk_group": 2}
DEEPSEEK_YARN = rope("yarn", factor=8.0, original_max_position_embeddings=64, mscale=0.7, mscale_all_dim=1.0)
KIMI_YARN = rope(
    "yarn",
    **{"factor": 64.0, "original_max_position_embeddings": 64, "beta_fast": 1.0, "beta_slow": 1.0},
    **{"mscale": 1.0, "mscale_all_dim": 1.0},
)

# Few latents of few values, as published; the length that queries grow by is short, so that a prompt has several.
MISTRAL4 = {**LATENT, **growing()}
ODD_MISTRAL4 = {
    **{**LATENT, **ODD_LATENT, **BIASES, "n_group": 3, "topk_group": 2, "norm_topk_prob": False},
    **{"q_lora_rank": None, "rope_interleave": False},
    **growing_linearly(),
}
SARVAM = {**LATENT, **DEEPSEEK_YARN, "n_group": 1, "topk_group": 1, "q_lora_rank": None}
YOUTU = {
    name: value
    for name, value in LATENT.items()
    if not name.startswith(("n_", "num_experts", "moe_", "first_k", "routed"))
}

LATENT_CASES = (
    Case("deepseek_v2", "deepseek_v2", LATENT),
    Case(
        "deepseek_v2-groups-no-q-lora",
        "deepseek_v2",
        {**LATENT, **GROUPS, "topk_method": "group_limited_greedy", "q_lora_rank": None},
        fused=True,
    ),
    Case("deepseek_v3", "deepseek_v3", {**LATENT, "n_group": 1, "topk_group": 1}),
    Case("deepseek_v3-groups-yarn", "deepseek_v3", {**LATENT, **GROUPS, **DEEPSEEK_YARN}),
    Case(
        "deepseek_v3-kimi_k2",
        "deepseek_v3",
        {**LATENT, **KIMI_YARN, "n_group": 1, "topk_group": 1, "routed_scaling_factor": 2.827},
    ),
    Case(
        "deepseek_v3-odd-biased",
        "deepseek_v3",
        {**LATENT, **ODD_LATENT, **BIASES, "n_group": 3, "topk_group": 2, "norm_topk_prob": False},
    ),
    Case(
        "deepseek_v3-halves",
        "deepseek_v3",
        {**LATENT, "n_group": 1, "topk_group": 1, "rope_interleave": False},
        fused=True,
    ),
    Case("mistral4", "mistral4", MISTRAL4),
    Case("mistral4-odd-groups", "mistral4", ODD_MISTRAL4),
    Case("sarvam_mla", "sarvam_mla", SARVAM),
    Case(
        "sarvam_mla-odd-groups",
        "sarvam_mla",
        {**LATENT, **ODD_LATENT, **BIASES, "n_group": 3, "topk_group": 2},
    ),
    Case("axk1", "axk1", {**LATENT, **GROUPS, "mlp_layer_types": ["dense", "sparse", "sparse"]}),
    Case(
        "axk1-odd-biased-halves",
        "axk1",
        {
            **{**LATENT, **ODD_LATENT, **BIASES, "n_group": 3, "topk_group": 2, "norm_topk_prob": False},
            **{"rope_interleave": False, "mlp_layer_types": ["sparse", "dense", "sparse"]},
        },
        renamed=((r"mlp\.post_mlp", "post_mlp"),),
    ),
    Case("youtu", "youtu", {**YOUTU, "tie_word_embeddings": True}),
    Case(
        "youtu-odd-biased",
        "youtu",
        {**YOUTU, **ODD, **BIASES, "num_key_value_heads": 6, "q_lora_rank": None, "rope_interleave": False},
    ),
)
