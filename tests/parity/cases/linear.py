"""Models most of whose layers attend linearly, and their older relatives."""

from __future__ import annotations

from .case import BIASES, HEAD, LOCAL_EIGHT, LOCAL_SEVEN, ODD, ODD_HEAD, THETA, Case, rope
from .latent import DEEPSEEK_YARN, LATENT

BAILING_MOE = {
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 48,
    "partial_rotary_factor": 0.5,
}
ODD_BAILING_MOE = {
    "n_routed_experts": 9,
    "n_group": 3,
    "topk_group": 2,
    "num_experts_per_tok": 3,
    "n_shared_experts": 2,
    "moe_intermediate_size": 28,
    "first_k_dense_replace": 0,
    "norm_topk_prob": False,
    "routed_scaling_factor": 1.7,
    **rope("linear", factor=3.0),
}
BAILING = {
    **{name: value for name, value in LATENT.items() if name != "n_routed_experts"},
    "num_local_experts": 8,
    "n_group": 4,
    "topk_group": 2,
    "head_dim": 16,
    "layer_group_size": 3,
    "kda_lower_bound": -1.5,
    **DEEPSEEK_YARN,
}
ODD_BAILING = {
    **BAILING,
    **ODD,
    "num_key_value_heads": 6,
    "q_lora_rank": None,
    "kv_lora_rank": 22,
    "qk_nope_head_dim": 10,
    "qk_rope_head_dim": 6,
    "v_head_dim": 14,
    "head_dim": 10,
    "num_local_experts": 9,
    "n_group": 1,
    "topk_group": 1,
    "n_shared_experts": 1,
    "moe_intermediate_size": 28,
    "norm_topk_prob": False,
    "short_conv_kernel_size": 3,
    "kda_safe_gate": False,
    "layer_types": ["full_attention", "linear_attention", "linear_attention"],
    "mlp_layer_types": ["sparse", "dense", "sparse"],
    "rope_parameters": THETA,
}

LINEAR, FULL = "linear_attention", "full_attention"
MINIMAX = {
    "layer_types": [LINEAR, FULL, LINEAR],
    "full_attn_alpha_factor": 1.5,
    "full_attn_beta_factor": 0.9,
    "linear_attn_alpha_factor": 0.8,
    "linear_attn_beta_factor": 1.2,
    "mlp_alpha_factor": 1.3,
    "mlp_beta_factor": 0.7,
    "block_size": 16,
}
ODD_MINIMAX = {"layer_types": [FULL, LINEAR, LINEAR], "linear_attn_alpha_factor": 1.5, "block_size": 7}

LINEAR_CASES = (
    Case("minimax", "minimax", {**HEAD, **LOCAL_EIGHT, **MINIMAX}),
    Case("minimax-odd", "minimax", {**ODD, **ODD_HEAD, **LOCAL_SEVEN, **ODD_MINIMAX}),
    Case("bailing_moe_v2", "sarvam_moe", {**HEAD, **BAILING_MOE}),
    Case("bailing_moe_v2-odd-groups-biased", "sarvam_moe", {**ODD, **ODD_HEAD, **BIASES, **ODD_BAILING_MOE}),
    Case("bailing_hybrid", "bailing_hybrid", BAILING),
    Case("bailing_hybrid-odd-unbounded", "bailing_hybrid", ODD_BAILING),
)
