"""Models whose layers with a window have heads, gates or positions of their own."""

from __future__ import annotations

from .case import BIASES, EIGHT, GRANITE, HEAD, ODD, ODD_HEAD, SEVEN, THETA, Case

NEAR, FAR = "sliding_attention", "full_attention"
OTHER_THETA = {"rope_type": "default", "rope_theta": 70.0}
LLAMA3 = {
    **{"rope_type": "llama3", "rope_theta": 300.0, "factor": 8.0, "partial_rotary_factor": 0.5},
    **{"original_max_position_embeddings": 64, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
}
EYES = {"hidden_size": 16, "mlp_ratio": 2.0, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 28}
STEP = {
    **HEAD,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 48,
    "share_expert_dim": 80,
    "moe_layers_enum": "1,2",
    "moe_router_scaling_factor": 1.7,
    "sliding_window": 12,
    "num_sliding_attention_heads": 6,
    "layer_types": [FAR, NEAR, FAR],
    "rope_parameters": {FAR: LLAMA3, NEAR: OTHER_THETA},
    "swiglu_limits": [0.0, None, 0.3],
    "swiglu_limits_shared": [0.2, 0.4, 0.0],
}
ODD_STEP = {
    **ODD,
    **ODD_HEAD,
    **BIASES,
    "n_routed_experts": 7,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 28,
    "share_expert_dim": 38,
    "mlp_layer_types": ["sparse", "dense", "sparse"],
    "sliding_window": 7,
    "layer_types": [NEAR, FAR, NEAR],
    "query_pre_attn_scalar": 23,
    "rope_parameters": {FAR: THETA, NEAR: {**OTHER_THETA, "partial_rotary_factor": 0.6}},
}
LAGUNA = {
    **HEAD,
    **EIGHT,
    "moe_intermediate_size": 48,
    "shared_expert_intermediate_size": 80,
    "sliding_window": 12,
    "num_attention_heads_per_layer": [4, 6, 2],
    "layer_types": [FAR, NEAR, NEAR],
    "moe_routed_scaling_factor": 1.7,
    "rope_parameters": {FAR: {**THETA, "partial_rotary_factor": 0.5}, NEAR: OTHER_THETA},
}
ODD_LAGUNA = {
    **ODD,
    **ODD_HEAD,
    **SEVEN,
    **BIASES,
    "gating": "per-element",
    "rope_parameters": {FAR: {**THETA, "partial_rotary_factor": 0.4}, NEAR: OTHER_THETA},
    "moe_intermediate_size": 28,
    "shared_expert_intermediate_size": 38,
    "sliding_window": 7,
    "layer_types": [NEAR, FAR, NEAR],
    "mlp_layer_types": ["sparse", "dense", "sparse"],
}
MELLUM = {
    **EIGHT,
    "moe_intermediate_size": 48,
    "sliding_window": 12,
    "layer_types": [FAR, NEAR, FAR],
    "rope_parameters": {
        FAR: {"rope_type": "yarn", "rope_theta": 300.0, "factor": 4.0, "original_max_position_embeddings": 64},
        NEAR: OTHER_THETA,
    },
}
ODD_MELLUM = {
    **BIASES,
    "moe_intermediate_size": 28,
    "norm_topk_prob": False,
    "sliding_window": 7,
    "layer_types": [NEAR, NEAR, FAR],
    "mlp_layer_types": ["dense", "sparse", "sparse"],
}
FLINT = {
    "moe_intermediate_size": 48,
    "shared_expert_intermediate_size": 80,
    "sliding_window": 12,
    "layer_types": [FAR, NEAR, FAR],
    "mlp_only_layers": [0],
}
ODD_FLINT = {
    **{**ODD, **ODD_HEAD, **SEVEN, **BIASES},
    "moe_intermediate_size": 28,
    "shared_expert_intermediate_size": 38,
    "norm_topk_prob": False,
    "sliding_window": 7,
    "layer_types": [NEAR, NEAR, FAR],
    "decoder_sparse_step": 2,
    "mlp_only_layers": [],
}
KOLIBRI1 = {
    "moe_intermediate_size": 48,
    "shared_expert_intermediate_size": 80,
    "sliding_window": 12,
    "layer_types": [FAR, NEAR, NEAR],
}
ODD_KOLIBRI1 = {
    **{**ODD, **ODD_HEAD, **SEVEN},
    "moe_intermediate_size": 28,
    "shared_expert_intermediate_size": 38,
    "norm_topk_prob": True,
    "sliding_window": 7,
}
KOLIBRI1_PUBLISHED = (
    ("mlp.gate.e_score_correction_bias", "moe.router.expert_bias"),
    ("post_self_attn_layernorm", "post_attn_norm"),
    ("post_mlp_layernorm", "post_ffn_norm"),
)

WINDOWED_CASES = (
    Case("step3p5", "step3p7", {"text_config": STEP, "vision_config": EYES}),
    Case("step3p5-odd-biased", "step3p7", {"text_config": ODD_STEP, "vision_config": EYES}),
    Case("laguna", "laguna", LAGUNA),
    Case("laguna-odd-gates-of-values", "laguna", ODD_LAGUNA),
    Case("flint", "flint", {**HEAD, **EIGHT, **FLINT}),
    Case("flint-odd-steps", "flint", ODD_FLINT, renamed=((r"\.sinks", ".softmax_offset"),)),
    Case("kolibri1", "kolibri1", {**HEAD, **EIGHT, **KOLIBRI1}),
    Case("kolibri1-odd-normalised", "kolibri1", ODD_KOLIBRI1, renamed=KOLIBRI1_PUBLISHED),
    Case("mellum", "mellum", {**HEAD, **MELLUM}),
    Case("mellum-odd-dense-layers", "mellum", {**ODD, **ODD_HEAD, **SEVEN, **ODD_MELLUM}),
    Case("granite_swa", "granite_swa", {**GRANITE, "sliding_window": 13, "layer_rope_theta": [500.0, 0, 10000.0]}),
    Case(
        "granite_swa-odd-biased",
        "granite_swa",
        {**ODD, **GRANITE, **BIASES, "mlp_bias": True, "sliding_window": 9, "layer_types": [NEAR, FAR, NEAR]},
    ),
)
