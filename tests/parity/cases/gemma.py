"""Gemma: two kinds of attention by layer, norms on both sides, experts beside a dense part, inputs of every layer."""

from __future__ import annotations

from .case import BIASES, HEAD, ODD, ODD_HEAD, Case

NEAR, FAR = "sliding_attention", "full_attention"
TWO_BASES = {
    NEAR: {"rope_type": "default", "rope_theta": 300.0},
    FAR: {"rope_type": "linear", "rope_theta": 5000.0, "factor": 4.0},
}
GEMMA3 = {
    **HEAD,
    "sliding_window": 13,
    "layer_types": [NEAR, FAR, NEAR],
    "query_pre_attn_scalar": 24,
    "rope_parameters": TWO_BASES,
    "tie_word_embeddings": True,
}
ODD_GEMMA3 = {
    **GEMMA3,
    **ODD,
    **ODD_HEAD,
    **BIASES,
    "final_logit_softcapping": 4.0,
    "layer_types": [FAR, NEAR, NEAR],
}

PROPORTIONAL = {
    NEAR: {"rope_type": "default", "rope_theta": 300.0},
    FAR: {"rope_type": "proportional", "rope_theta": 5000.0, "partial_rotary_factor": 0.5},
}
GEMMA4 = {
    **HEAD,
    "global_head_dim": 32,
    "sliding_window": 13,
    "layer_types": [NEAR, NEAR, FAR],
    "rope_parameters": PROPORTIONAL,
    "hidden_size_per_layer_input": 0,
    "tie_word_embeddings": True,
}
EXPERTS = {"enable_moe_block": True, "num_experts": 8, "top_k_experts": 3, "moe_intermediate_size": 48}
GEMMA4_MOE = {**GEMMA4, **EXPERTS, "attention_k_eq_v": True, "num_global_key_value_heads": 1}
ODD_GEMMA4_MOE = {
    **GEMMA4_MOE,
    **ODD,
    **ODD_HEAD,
    **BIASES,
    "global_head_dim": 14,
    "num_global_key_value_heads": 3,
    "num_experts": 7,
    "moe_intermediate_size": 28,
    "final_logit_softcapping": 4.0,
    "layer_types": [NEAR, FAR, FAR],
    "rope_parameters": {**PROPORTIONAL, FAR: {**PROPORTIONAL[FAR], "factor": 2.0}},
}
INPUTS = {
    **GEMMA4,
    "hidden_size_per_layer_input": 16,
    "vocab_size_per_layer_input": 160,
    "num_hidden_layers": 4,
    "layer_types": [NEAR, FAR, NEAR, FAR],
    "num_kv_shared_layers": 2,
    "use_double_wide_mlp": True,
}
ODD_INPUTS = {
    **INPUTS,
    **ODD,
    **ODD_HEAD,
    **EXPERTS,
    "global_head_dim": 14,
    "hidden_size_per_layer_input": 10,
    "vocab_size_per_layer_input": 143,
    "num_hidden_layers": 3,
    "num_kv_shared_layers": 1,
    "use_double_wide_mlp": False,
    "layer_types": [NEAR, FAR, FAR],
}

GEMMA_CASES = (
    Case("gemma3", "gemma3_text", GEMMA3),
    Case("gemma3-odd-capped-wrapped", "gemma3_text", ODD_GEMMA3, prefix="language_model."),
    Case("gemma4-experts", "gemma4_text", GEMMA4_MOE, wrapped=True),
    Case("gemma4-odd-experts", "gemma4_text", ODD_GEMMA4_MOE, apart=True),
    Case("gemma4-inputs-shared-keys", "gemma4_text", INPUTS),
    Case("gemma4-odd-inputs-experts", "gemma4_text", ODD_INPUTS, wrapped=True),
)
