"""Models with two mixers a layer, whose experts take a shortcut."""

from __future__ import annotations

from .case import BIASES, ODD, Case, rope

LONGCAT = {
    "num_hidden_layers": 4,
    "num_key_value_heads": 4,
    "q_lora_rank": 48,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 16,
    "head_dim": 16,
    "v_head_dim": 32,
    "n_routed_experts": 8,
    "zero_expert_num": 4,
    "moe_topk": 3,
    "expert_ffn_hidden_size": 48,
    "routed_scaling_factor": 1.7,
}
ODD_LONGCAT = {
    **LONGCAT,
    **ODD,
    "num_key_value_heads": 6,
    "q_lora_rank": 27,
    "kv_lora_rank": 22,
    "qk_nope_head_dim": 10,
    "qk_rope_head_dim": 10,
    "head_dim": 10,
    "v_head_dim": 14,
    "n_routed_experts": 7,
    "zero_expert_num": 9,  # so that some tokens choose none of the others
    "expert_ffn_hidden_size": 28,
}
YARN = rope("yarn", factor=8.0, original_max_position_embeddings=64, mscale=0.7, mscale_all_dim=1.0)

LONGCAT_CASES = (
    Case("longcat_flash", "longcat_flash", LONGCAT, seed=1),
    Case("longcat_flash-odd-biased", "longcat_flash", {**ODD_LONGCAT, **BIASES, **YARN}),
)
