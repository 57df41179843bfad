"""Models that attend to a window and to compressed entries, with several residual streams."""

from __future__ import annotations

from .case import ODD, Case

WINDOWED, SPARSE, HEAVY = "sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention"
COMPRESSED = {
    "num_key_value_heads": 1,
    "head_dim": 32,
    "partial_rotary_factor": 0.5,
    "q_lora_rank": 48,
    "o_groups": 2,
    "o_lora_rank": 24,
    "intermediate_size": 48,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "sliding_window": 12,
    "layer_types": [WINDOWED, SPARSE, HEAVY],
    "mlp_layer_types": ["hash_moe", "moe", "moe"],
    "compress_rates": {SPARSE: 4, HEAVY: 8},
    "index_n_heads": 8,
    "index_head_dim": 16,
    "index_topk": 5,
    "hc_mult": 4,
    "hc_sinkhorn_iters": 5,
    "hc_eps": 1e-3,
    "swiglu_limit": 0.8,
    "routed_scaling_factor": 1.7,
    "rope_theta": 300.0,
    "compress_rope_theta": 5000.0,
    "rope_parameters": {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 64},
}
ODD_COMPRESSED = {
    **COMPRESSED,
    **ODD,
    "num_key_value_heads": 1,
    "head_dim": 20,
    "partial_rotary_factor": 0.3,
    "q_lora_rank": 22,
    "o_groups": 3,
    "o_lora_rank": 7,
    "intermediate_size": 28,
    "n_routed_experts": 7,
    "sliding_window": 7,
    "layer_types": [HEAVY, SPARSE, SPARSE],
    "mlp_layer_types": ["hash_moe", "hash_moe", "moe"],
    "compress_rates": {SPARSE: 2, HEAVY: 32},
    "index_head_dim": 10,
    "index_topk": 9,
    "hc_mult": 3,
    "hc_sinkhorn_iters": 2,
    "rope_parameters": None,
}

DEEPSEEK_V4_CASES = (
    Case("deepseek_v4", "deepseek_v4", COMPRESSED),
    Case("deepseek_v4-odd", "deepseek_v4", ODD_COMPRESSED),
)
