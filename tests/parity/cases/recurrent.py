"""Models with layers that keep a state."""

from __future__ import annotations

from .case import BIASES, EIGHT, GRANITE, HEAD, LOCAL_EIGHT, LOCAL_SEVEN, ODD, ODD_HEAD, SEVEN, THETA, Case
from .latent import LATENT

DELTA = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 32,
    "linear_conv_kernel_dim": 4,
    "moe_intermediate_size": 48,
    "shared_expert_intermediate_size": 80,
    "layer_types": ["linear_attention", "linear_attention", "full_attention"],
}
ODD_DELTA = {
    "linear_num_key_heads": 3,
    "linear_num_value_heads": 3,
    "linear_key_head_dim": 10,
    "linear_value_head_dim": 14,
    "linear_conv_kernel_dim": 3,
    "moe_intermediate_size": 28,
    "shared_expert_intermediate_size": 38,
    "layer_types": ["full_attention", "linear_attention", "linear_attention"],
}
DENSE_DELTA, ODD_DENSE_DELTA = (
    {name: value for name, value in settings.items() if name.startswith(("linear_", "layer_"))}
    for settings in (DELTA, ODD_DELTA)
)
LARA_MINI = {
    **{**DELTA, "sliding_window": 12},
    "layer_types": ["linear_attention", "sliding_attention", "full_attention"],
}
ODD_LARA_MINI = {
    **{**ODD, **ODD_HEAD, **SEVEN, **BIASES, **ODD_DELTA, "sliding_window": 7, "norm_topk_prob": False},
    "layer_types": ["sliding_attention", "full_attention", "linear_attention"],
}
PARTLY = {"rope_parameters": {**THETA, "partial_rotary_factor": 0.25}}
HALF = {"rope_parameters": {**THETA, "partial_rotary_factor": 0.6}}
WIDE_HEAD = {"head_dim": 32}
KIMI_LINEAR = {
    **{name: value for name, value in LATENT.items() if name not in ("n_routed_experts", "first_k_dense_replace")},
    "q_lora_rank": None,
    "num_local_experts": 8,
    "linear_num_heads": 4,
    "linear_head_dim": 16,
    "layer_types": ["linear_attention", "linear_attention", "full_attention"],
    "mlp_layer_types": ["dense", "sparse", "sparse"],
}
ODD_KIMI_LINEAR = {
    **KIMI_LINEAR,
    **ODD,
    "num_key_value_heads": 6,
    "kv_lora_rank": 22,
    "qk_nope_head_dim": 10,
    "qk_rope_head_dim": 6,
    "v_head_dim": 14,
    "num_local_experts": 9,
    "moe_intermediate_size": 28,
    "linear_num_heads": 3,
    "linear_head_dim": 10,
    "linear_conv_kernel_dim": 3,
    "n_group": 3,
    "topk_group": 2,
    "norm_topk_prob": False,
    "layer_types": ["full_attention", "linear_attention", "linear_attention"],
}
OLMO_HYBRID = {
    "num_key_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 32,
    "layer_types": ["linear_attention", "linear_attention", "full_attention"],
    "rope_parameters": {"rope_type": "default", "rope_theta": None},
}
ODD_OLMO_HYBRID = {
    "linear_num_key_heads": 3,
    "linear_num_value_heads": 6,
    "linear_key_head_dim": 10,
    "linear_value_head_dim": 14,
    "linear_conv_kernel_dim": 3,
    "linear_allow_neg_eigval": False,
    "layer_types": ["full_attention", "linear_attention", "linear_attention"],
    "rope_parameters": THETA,
}
STATE_SPACE, ATTENDS = "linear_attention", "full_attention"
GRANITE_HYBRID = {
    **GRANITE,
    "layer_types": [STATE_SPACE, ATTENDS, STATE_SPACE],
    "shared_intermediate_size": 80,
    "mamba_n_heads": 8,
    "mamba_n_groups": 2,
    "mamba_d_state": 16,
    "position_embedding_type": "nope",
}
ODD_GRANITE_HYBRID = {
    **{**GRANITE_HYBRID, **ODD, **BIASES, "shared_intermediate_size": 38, "tie_word_embeddings": True},
    "layer_types": [ATTENDS, STATE_SPACE, STATE_SPACE],
    "mamba_n_heads": 6,
    "mamba_n_groups": 3,
    "mamba_d_state": 10,
    "mamba_d_conv": 3,
    "mamba_proj_bias": True,
    "mamba_conv_bias": False,
    "time_step_limit": [0.4, 0.9],
    "position_embedding_type": "rope",
    "rope_parameters": THETA,
}
LFM2 = {"layer_types": ["conv", ATTENDS, "conv"], "num_dense_layers": 1, "moe_intermediate_size": 48}
ODD_LFM2 = {
    "layer_types": ["conv", "conv", ATTENDS],
    "num_dense_layers": 0,
    "moe_intermediate_size": 28,
    "conv_bias": True,
    "conv_L_cache": 4,
    "use_expert_bias": False,
    "norm_topk_prob": False,
    "routed_scaling_factor": 1.7,
}
JAMBA = {"attn_layer_period": 3, "attn_layer_offset": 1, "mamba_d_state": 16}
ODD_JAMBA = {
    "attn_layer_period": 2,
    "attn_layer_offset": 1,
    "mamba_d_state": 5,
    "mamba_d_conv": 3,
    "mamba_dt_rank": 7,
    "mamba_expand": 3,
    "mamba_proj_bias": True,
    "mamba_conv_bias": False,
}
# Time steps at the bounds that all kernels keep to; a prompt's have another lower one in transformers alone.
NEMOTRON = {
    "layers_block_type": [STATE_SPACE, "moe", ATTENDS, "mlp", STATE_SPACE, "moe"],
    "time_step_min": 1e-9,
    "mamba_num_heads": 8,
    "mamba_head_dim": 16,
    "ssm_state_size": 16,
    "n_groups": 2,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 48,
    "moe_shared_expert_intermediate_size": 80,
    "routed_scaling_factor": 1.7,
}
ODD_NEMOTRON = {
    **NEMOTRON,
    "layers_block_type": ["moe", STATE_SPACE, "mlp", "moe", ATTENDS],
    "mamba_num_heads": 6,
    "mamba_head_dim": 10,
    "ssm_state_size": 5,
    "n_groups": 3,
    "conv_kernel": 3,
    "use_bias": True,
    "use_conv_bias": False,
    "n_routed_experts": 9,
    "n_group": 3,
    "topk_group": 2,
    "norm_topk_prob": False,
    "moe_intermediate_size": 28,
    "moe_shared_expert_intermediate_size": 38,
}

RECURRENT_CASES = (
    Case("qwen3_next", "qwen3_next", {**WIDE_HEAD, **EIGHT, **DELTA, **PARTLY}),
    Case(
        "qwen3_next-odd-mixed-layers",
        "qwen3_next",
        {**ODD, **ODD_HEAD, **SEVEN, **ODD_DELTA, **HALF, "norm_topk_prob": False, "decoder_sparse_step": 2},
        fused=True,
    ),
    Case("lara_mini", "lara_mini", {**HEAD, **EIGHT, **LARA_MINI}),
    Case("lara_mini-odd-biased", "lara_mini", ODD_LARA_MINI),
    Case("qwen3_5_moe", "qwen3_5_moe_text", {**WIDE_HEAD, **EIGHT, **DELTA, **PARTLY}),
    Case(
        "qwen3_5_moe-odd-wrapped",
        "qwen3_5_moe_text",
        {**ODD, **ODD_HEAD, **SEVEN, **ODD_DELTA, **HALF},
        fused=True,
        wrapped=True,
    ),
    Case("qwen3_5", "qwen3_5_text", {**WIDE_HEAD, **DENSE_DELTA, **PARTLY}),
    Case("qwen3_5-odd-wrapped", "qwen3_5_text", {**ODD, **ODD_HEAD, **ODD_DENSE_DELTA, **HALF}, wrapped=True),
    Case("olmo_hybrid", "olmo_hybrid", OLMO_HYBRID),
    Case("olmo_hybrid-odd-biased", "olmo_hybrid", {**ODD, **BIASES, **ODD_OLMO_HYBRID}),
    Case("kimi_linear", "kimi_linear", {**KIMI_LINEAR, "n_group": 1, "topk_group": 1}),
    Case("kimi_linear-odd-groups", "kimi_linear", ODD_KIMI_LINEAR),
    Case("granitemoehybrid", "granitemoehybrid", {**LOCAL_EIGHT, **GRANITE_HYBRID}),
    Case("granitemoehybrid-odd-rope-limits", "granitemoehybrid", {**LOCAL_SEVEN, **ODD_GRANITE_HYBRID}),
    Case("granitemoehybrid-dense", "granitemoehybrid", {**GRANITE_HYBRID, "num_local_experts": 0}),
    Case("lfm2_moe", "lfm2_moe", {**EIGHT, **LFM2}),
    Case("lfm2_moe-odd-biased", "lfm2_moe", {**ODD, **SEVEN, **ODD_LFM2}),
    Case("jamba", "jamba", {**EIGHT, **JAMBA}),
    Case("jamba-odd-biased", "jamba", {**ODD, **SEVEN, **ODD_JAMBA}, fused=True),
    Case("jamba-dense", "jamba", {**JAMBA, "num_experts": 1}),
    Case("nemotron_h", "nemotron_h", {**HEAD, **NEMOTRON}),
    Case("nemotron_h-odd-groups", "nemotron_h", {**ODD, **ODD_HEAD, **ODD_NEMOTRON}),
    Case("nemotron_h-dense", "nemotron_h", {**HEAD, **NEMOTRON, "layers_block_type": [STATE_SPACE, "mlp", ATTENDS]}),
    Case("nemotron_h-latent", "nemotron_h", {**HEAD, **NEMOTRON, "moe_latent_size": 28}),
)
