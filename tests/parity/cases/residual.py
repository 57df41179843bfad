"""Models that add to the residual stream in other ways, with other norms, bounds and activations."""

from __future__ import annotations

from .case import BIASES, EIGHT, HEAD, LOCAL_EIGHT, LOCAL_SEVEN, ODD, ODD_HEAD, SEVEN, THETA, Case, rope

SOFT = {"attn_logit_softcapping": 3.0, "final_logit_softcapping": 2.0}
GEMMA2 = {**SOFT, "sliding_window": 13, "query_pre_attn_scalar": 24}

COHERE = {"sliding_window": 13, "logit_scale": 0.7}
SHARED = {"num_shared_experts": 2}
# as long as the model's context, so that both implementations stay with the short factors
LONG = {
    "rope_type": "longrope",
    "rope_theta": 5000.0,
    "short_factor": [1.0 + 0.1 * i for i in range(8)],
    "long_factor": [2.0 + 0.1 * i for i in range(8)],
    "short_mscale": 1.2,
    "long_mscale": 1.3,
    "original_max_position_embeddings": 512,
    "factor": 1.0,
}


RESIDUAL_CASES = (
    Case("gemma", "gemma", {**HEAD, "tie_word_embeddings": True}),
    Case("gemma-odd", "gemma", {**ODD, **ODD_HEAD, **BIASES, "rope_parameters": THETA}),
    Case("gemma2", "gemma2", {**HEAD, **GEMMA2, "tie_word_embeddings": True}),
    Case(
        "gemma2-odd-exact-gelu",
        "gemma2",
        {
            **ODD,
            **ODD_HEAD,
            **GEMMA2,
            **BIASES,
            "hidden_activation": "gelu",
            "final_logit_softcapping": None,
            "layer_types": ["full_attention", "sliding_attention", "full_attention"],
        },
    ),
    Case("olmo2", "olmo2", rope("linear", factor=3.0)),
    Case("olmo2-odd", "olmo2", {**ODD, **BIASES, "hidden_act": "gelu", "tie_word_embeddings": True}),
    # what is normed does not tell how large it was, but for a large epsilon
    Case("flex_olmo", "flex_olmo", {**EIGHT, "rms_norm_eps": 0.03}),
    Case(
        "flex_olmo-odd-normalised",
        "flex_olmo",
        {**ODD, **SEVEN, **BIASES, "norm_topk_prob": True, "rms_norm_eps": 0.03},
        fused=True,
    ),
    Case("cohere2", "cohere2", {**COHERE, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}),
    Case(
        "cohere2-odd-tied",
        "cohere2",
        {**ODD, **BIASES, **COHERE, "tie_word_embeddings": True, "sliding_window_pattern": 2},
    ),
    Case(
        "cohere2_moe",
        "cohere2_moe",
        {**HEAD, **EIGHT, **COHERE, **SHARED, "first_k_dense_replace": 1, "sliding_window_pattern": 2},
    ),
    Case(
        "cohere2_moe-odd-sigmoid",
        "cohere2_moe",
        {
            **ODD,
            **ODD_HEAD,
            **SEVEN,
            **BIASES,
            **COHERE,
            **SHARED,
            "expert_selection_fn": "sigmoid",
            "shared_expert_combination_strategy": "sum",
            "prefix_dense_intermediate_size": 44,
            "mlp_layer_types": ["sparse", "dense", "sparse"],
            "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
            "rms_norm_eps": 1e-5,
        },
        fused=True,
    ),
    Case(
        "phimoe",
        "phimoe",
        {**LOCAL_EIGHT, "num_experts_per_tok": 2, "router_jitter_noise": 0.3, "rope_parameters": LONG},
    ),
    Case(
        "phimoe-odd",
        "phimoe",
        {
            **ODD,
            **LOCAL_SEVEN,
            **BIASES,
            "num_experts_per_tok": 2,
            "router_jitter_noise": 0.1,
            "lm_head_bias": True,
            "sliding_window": 13,
        },
    ),
    Case(
        "dbrx",
        "dbrx",
        {
            "d_model": 64,
            "n_heads": 4,
            "n_layers": 3,
            "attn_config": {"kv_n_heads": 2, "clip_qkv": 0.8, "rope_theta": 300.0},
            "ffn_config": {"ffn_hidden_size": 96, "moe_num_experts": 8, "moe_top_k": 3},
            "rope_parameters": THETA,
        },
    ),
    Case(
        "dbrx-odd",
        "dbrx",
        {
            **ODD,
            "d_model": 60,
            "n_heads": 6,
            "n_layers": 3,
            "attn_config": {"kv_n_heads": 2, "clip_qkv": 1.1, "rope_theta": 10000.0},
            "ffn_config": {
                "ffn_hidden_size": 52,
                "moe_num_experts": 7,
                "moe_top_k": 2,
                "moe_normalize_expert_weights": None,
                "ffn_act_fn": {"name": "gelu"},
            },
        },
    ),
)
