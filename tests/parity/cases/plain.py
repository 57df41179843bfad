"""Models with experts and grouped-query attention, chosen by sigmoid scores or with layers of several kinds."""

from __future__ import annotations

from .case import BIASES, EIGHT, GRANITE, HEAD, LOCAL_EIGHT, LOCAL_SEVEN, ODD, ODD_HEAD, SEVEN, THETA, Case, rope
from .latent import LATENT, ODD_LATENT

ROUTED = {
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 48,
    "n_shared_experts": 2,
    "first_k_dense_replace": 1,
    "norm_topk_prob": True,
    "routed_scaling_factor": 1.7,
}
ODD_ROUTED = {
    "n_routed_experts": 9,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 28,
    "n_shared_experts": 1,
    "first_k_dense_replace": 0,
    "n_group": 3,
    "topk_group": 2,
    "norm_topk_prob": False,
}
PARTLY = {"rope_parameters": {**THETA, "partial_rotary_factor": 0.5}}
ODD_PARTLY = {"rope_parameters": {**THETA, "partial_rotary_factor": 0.6}}
LITE = {name: value for name, value in LATENT.items() if name != "first_k_dense_replace"}
ODD_LITE = {**LITE, **ODD_LATENT, **BIASES, "n_group": 3, "topk_group": 2, "norm_topk_prob": False}
ERNIE = {
    "moe_num_experts": 8,
    "moe_k": 3,
    "moe_intermediate_size": 48,
    "moe_num_shared_experts": 2,
}
ODD_ERNIE = {
    "moe_num_experts": 7,
    "moe_k": 2,
    "moe_intermediate_size": 28,
    "moe_num_shared_experts": 0,
    "moe_layer_start_index": 0,
    "moe_layer_end_index": 2,
    "moe_layer_interval": 2,
    "num_hidden_layers": 4,
}
EXAONE = {
    **EIGHT,
    "moe_intermediate_size": 48,
    "num_shared_experts": 2,
    "sliding_window": 12,
    "sliding_window_pattern": 3,
}
ODD_EXAONE = {
    **SEVEN,
    "moe_intermediate_size": 28,
    "norm_topk_prob": False,
    "sliding_window": 7,
    "layer_types": ["full_attention", "sliding_attention", "full_attention"],
    "mlp_layer_types": ["sparse", "dense", "sparse"],
}
MIMO = {
    **{name: value for name, value in ROUTED.items() if name not in ("n_shared_experts", "first_k_dense_replace")},
    "head_dim": 24,
    "v_head_dim": 16,
    "sliding_window": 12,
    "layer_types": ["full_attention", "sliding_attention", "full_attention"],
    "rope_parameters": {
        "full_attention": {**THETA, "partial_rotary_factor": 0.334},
        "sliding_attention": {"rope_type": "default", "rope_theta": 70.0, "partial_rotary_factor": 0.67},
    },
}
ODD_MIMO = {
    **{name: value for name, value in ODD_ROUTED.items() if name not in ("n_shared_experts", "first_k_dense_replace")},
    **BIASES,
    "num_key_value_heads": 3,
    "head_dim": 14,
    "v_head_dim": 10,
    "sliding_window": 9,
    "attention_value_scale": 0.6,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    "mlp_layer_types": ["sparse", "dense", "sparse"],
    "rope_parameters": {
        "full_attention": {**THETA, "partial_rotary_factor": 0.334},
        "sliding_attention": {"rope_type": "default", "rope_theta": 70.0, "partial_rotary_factor": 0.6},
    },
}
HUNYUAN = {"num_experts": 8, "moe_topk": [3, 3, 3], "intermediate_size": 48}
HY = {**EIGHT, "moe_intermediate_size": 48, "num_shared_experts": 2}
ODD_HY = {
    **SEVEN,
    **BIASES,
    "moe_intermediate_size": 28,
    "mlp_layer_types": ["sparse", "dense", "sparse"],
    "router_scaling_factor": 1.3,
}
AFMOE = {
    **EIGHT,
    "moe_intermediate_size": 48,
    "sliding_window": 12,
    "global_attn_every_n_layers": 3,
    "mup_enabled": True,
    "route_scale": 1.7,
}
ODD_AFMOE = {
    **SEVEN,
    **BIASES,
    "moe_intermediate_size": 28,
    "num_shared_experts": 1,
    "num_dense_layers": 0,
    "sliding_window": 7,
    "layer_types": ["full_attention", "sliding_attention", "full_attention"],
}

PLAIN_CASES = (
    Case("glm4_moe", "glm4_moe", {**HEAD, **ROUTED, **PARTLY, "use_qk_norm": True, **BIASES}),
    Case("glm4_moe-odd-groups", "glm4_moe", {**ODD, **ODD_HEAD, **ODD_ROUTED, **ODD_PARTLY}, fused=True),
    Case("glm4_moe_lite", "glm4_moe_lite", LITE),
    Case("glm4_moe_lite-odd-groups", "glm4_moe_lite", {**ODD_LITE, "q_lora_rank": None}),
    Case("solar_open", "solar_open", {**HEAD, **ROUTED, **BIASES, "first_k_dense_replace": 0}),
    Case("solar_open-odd-groups", "solar_open", {**ODD, **ODD_HEAD, **ODD_ROUTED, "rope_parameters": THETA}),
    Case("dots1", "dots1", {**HEAD, **ROUTED, "sliding_window": None}),
    Case(
        "dots1-odd-groups-window",
        "dots1",
        {**ODD, **ODD_HEAD, **ODD_ROUTED, **BIASES, "sliding_window": 9, "max_window_layers": 1},
    ),
    Case("minimax_m2", "minimax_m2", {**HEAD, **LOCAL_EIGHT, "rotary_dim": 8}),
    Case("minimax_m2-odd", "minimax_m2", {**ODD, **ODD_HEAD, **LOCAL_SEVEN}),
    Case("ernie4_5_moe", "ernie4_5_moe", {**HEAD, **ERNIE}),
    Case("ernie4_5_moe-odd-tied", "ernie4_5_moe", {**ODD, **ODD_ERNIE, "tie_word_embeddings": True}),
    Case("exaone_moe", "exaone_moe", {**HEAD, **EXAONE}),
    Case("exaone_moe-odd-mixed-layers", "exaone_moe", {**ODD, **ODD_HEAD, **ODD_EXAONE}),
    Case("mimo_v2_flash", "mimo_v2_flash", MIMO),
    Case("mimo_v2_flash-odd-groups", "mimo_v2_flash", {**ODD, **ODD_MIMO}),
    Case("afmoe", "afmoe", {**HEAD, **AFMOE}),
    Case("afmoe-odd-biased", "afmoe", {**ODD, **ODD_HEAD, **ODD_AFMOE}),
    Case("hunyuan_v1_moe", "hunyuan_v1_moe", {**HEAD, **HUNYUAN, **rope("dynamic", factor=1.0, alpha=50.0)}),
    Case("hunyuan_v1_moe-listed", "hunyuan_v1_moe", {**HEAD, **HUNYUAN, "moe_topk": [3, 2, 1]}),
    Case("hunyuan_v1_moe-odd-biased", "hunyuan_v1_moe", {**ODD, **ODD_HEAD, **SEVEN, **BIASES, "moe_topk": 3}),
    Case("hunyuan_v1_dense", "hunyuan_v1_dense", {**HEAD, "tie_word_embeddings": True}),
    Case("hunyuan_v1_dense-odd-biased", "hunyuan_v1_dense", {**ODD, **ODD_HEAD, **BIASES}),
    Case("hy_v3", "hy_v3", {**HEAD, **HY}),
    Case("hy_v3-odd-biased", "hy_v3", {**ODD, **ODD_HEAD, **ODD_HY}),
    Case("granitemoeshared", "granitemoeshared", {**LOCAL_EIGHT, **GRANITE, "shared_intermediate_size": 80}),
    Case(
        "granitemoe_swa",
        "granitemoe_swa",
        {**LOCAL_EIGHT, **GRANITE, "sliding_window": 13, "layer_rope_theta": [500.0, 0, 10000.0]},
    ),
    Case(
        "granitemoe_swa-odd",
        "granitemoe_swa",
        {
            **ODD,
            **LOCAL_SEVEN,
            **GRANITE,
            "shared_intermediate_size": 38,
            "sliding_window": 9,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            "attention_bias": True,
        },
    ),
    Case("granitemoeshared-odd", "granitemoeshared", {**ODD, **LOCAL_SEVEN, **GRANITE, "shared_intermediate_size": 38}),
)
