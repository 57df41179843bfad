"""Tiny random models of every family, as settings for transformers. At least one case a family, one for every quirk.

Sizes are of two kinds: `ROUND` fills packed tiles exactly, `ODD` leaves ragged tiles, heads and experts everywhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Case:
    """A model: `family` is the model_type, `settings` go to transformers' configuration class.

    Checkpoints that transformers would not write are described by `fused`, experts of a layer in one tensor, and
    `wrapped`, the decoder being one part of several.
    """

    name: str
    family: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0
    fused: bool = False
    wrapped: bool = False


COMMON = {
    "vocab_size": 160,
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 96,
    "max_position_embeddings": 512,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "tie_word_embeddings": False,
}
ODD = {
    "vocab_size": 139,
    "hidden_size": 60,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "intermediate_size": 52,
}
HEAD = {"head_dim": 16}
ODD_HEAD = {"head_dim": 10}
THETA = {"rope_type": "default", "rope_theta": 300.0}


def rope(kind: str, **settings: Any) -> dict[str, Any]:
    """`rope_parameters` of one kind; the contexts are so short that the tests' positions reach the scaling."""
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 5000.0, **settings}}


YARN = rope("yarn", factor=8.0, original_max_position_embeddings=64)
GPT_OSS_YARN = rope("yarn", factor=8.0, original_max_position_embeddings=64, truncate=False)
LLAMA3 = rope("llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=64)


def long_rope(original: int) -> dict[str, Any]:
    """LongRoPE trained for a context of `original` tokens."""
    factors = {"short_factor": [1.0 + i / 8 for i in range(8)], "long_factor": [2.0 + i for i in range(8)]}
    return rope("longrope", factor=8.0, original_max_position_embeddings=original, **factors)


BIASES = {"attention_bias": True}
GRANITE = {"embedding_multiplier": 3.0, "residual_multiplier": 0.4, "attention_multiplier": 0.3, "logits_scaling": 5.0}
EIGHT = {"num_experts": 8, "num_experts_per_tok": 3}
SEVEN = {"num_experts": 7, "num_experts_per_tok": 3}
LOCAL_EIGHT = {"num_local_experts": 8, "num_experts_per_tok": 3}
LOCAL_SEVEN = {"num_local_experts": 7, "num_experts_per_tok": 3}
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
QWEN_MOE = {"moe_intermediate_size": 48, "norm_topk_prob": True, "decoder_sparse_step": 1}
QWEN_MOE_ODD = {"moe_intermediate_size": 28, "norm_topk_prob": False, "decoder_sparse_step": 2}
GPT_OSS = {"sliding_window": 12, "swiglu_limit": 1.5, "intermediate_size": 48, **GPT_OSS_YARN}

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

CASES = (
    Case("llama", "llama", HEAD),
    Case("llama-odd-biased-tied", "llama", {**ODD, **BIASES, "mlp_bias": True, "tie_word_embeddings": True}),
    Case("llama-llama3-rope", "llama", {**HEAD, **LLAMA3, "eos_token_id": [2, 7]}),
    Case("llama-linear-rope", "llama", {**HEAD, **rope("linear", factor=3.0)}),
    Case("llama-dynamic-rope", "llama", {**HEAD, **rope("dynamic", factor=3.0)}),
    Case("llama-longrope-short", "llama", {**HEAD, **long_rope(512)}),
    Case("llama-longrope-beyond", "llama", {**HEAD, **long_rope(8)}),
    Case("mistral-window", "mistral", {**HEAD, "sliding_window": 11}),
    Case("qwen2", "qwen2", {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 1}),
    Case("qwen2-odd-yarn", "qwen2", {**ODD, **YARN}),
    Case("qwen3", "qwen3", {**HEAD, "rope_parameters": THETA}),
    Case("qwen3-odd-biased", "qwen3", {**ODD, **ODD_HEAD, **BIASES}),
    Case("granite-biased", "granite", {**GRANITE, **BIASES, "mlp_bias": True}),
    Case("qwen2_moe", "qwen2_moe", {**EIGHT, **QWEN_MOE, "shared_expert_intermediate_size": 80}),
    Case(
        "qwen2_moe-odd-mixed-layers",
        "qwen2_moe",
        {**ODD, **SEVEN, **QWEN_MOE_ODD, "shared_expert_intermediate_size": 38, "mlp_only_layers": [1]},
        fused=True,
    ),
    Case("qwen3_moe", "qwen3_moe", {**HEAD, **EIGHT, **QWEN_MOE}),
    Case("qwen3_moe-fused", "qwen3_moe", {**HEAD, **EIGHT, **QWEN_MOE}, fused=True),
    Case("qwen3_moe-odd-mixed-layers", "qwen3_moe", {**ODD, **ODD_HEAD, **SEVEN, **QWEN_MOE_ODD, **BIASES}),
    Case("mixtral", "mixtral", {**HEAD, **LOCAL_EIGHT, "sliding_window": None}),
    Case("mixtral-odd-window", "mixtral", {**ODD, **ODD_HEAD, **LOCAL_SEVEN, "sliding_window": 13}),
    Case("olmoe", "olmoe", EIGHT),
    Case("olmoe-odd-normalised", "olmoe", {**ODD, **SEVEN, **BIASES, "norm_topk_prob": True}, fused=True),
    Case("granitemoe", "granitemoe", {**LOCAL_EIGHT, **GRANITE}),
    Case("granitemoe-odd-tied", "granitemoe", {**ODD, **LOCAL_SEVEN, **GRANITE, "tie_word_embeddings": True}),
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
    Case("gpt_oss", "gpt_oss", {**HEAD, **LOCAL_EIGHT, **GPT_OSS}),
    Case("qwen3_next", "qwen3_next", {**WIDE_HEAD, **EIGHT, **DELTA, **PARTLY}),
    Case(
        "qwen3_next-odd-mixed-layers",
        "qwen3_next",
        {**ODD, **ODD_HEAD, **SEVEN, **ODD_DELTA, **HALF, "norm_topk_prob": False, "decoder_sparse_step": 2},
        fused=True,
    ),
    Case("qwen3_5_moe", "qwen3_5_moe_text", {**WIDE_HEAD, **EIGHT, **DELTA, **PARTLY}),
    Case(
        "qwen3_5_moe-odd-wrapped",
        "qwen3_5_moe_text",
        {**ODD, **ODD_HEAD, **SEVEN, **ODD_DELTA, **HALF},
        fused=True,
        wrapped=True,
    ),
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
    Case("nemotron_h-latent", "nemotron_h", {**HEAD, **NEMOTRON, "moe_latent_size": 28}),
    Case("gpt_oss-odd", "gpt_oss", {**ODD, **ODD_HEAD, **LOCAL_SEVEN, **GPT_OSS, "rope_parameters": THETA}),
)

# Models that are quantised: two layers, six experts, and blocks of 32 everywhere; in qwen3_moe and deepseek_v3 some
# matrices are whole blocks of 128 x 128 and some are not.
QUANTISED = {"num_hidden_layers": 2, "hidden_size": 128, "head_dim": 32, "num_experts_per_tok": 2}
QUANTISED_LATENT = {
    **{"num_hidden_layers": 2, "hidden_size": 128, "num_attention_heads": 2, "num_key_value_heads": 2},
    **{"q_lora_rank": 128, "kv_lora_rank": 128, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128},
    **{"n_routed_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 128, "n_shared_experts": 1},
    **{"first_k_dense_replace": 0, "n_group": 1, "topk_group": 1},
}
QUANTISED_DELTA = {
    **QUANTISED,
    **{"hidden_size": 256, "num_experts": 6, "moe_intermediate_size": 128, "shared_expert_intermediate_size": 128},
    **{"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 64, "linear_value_head_dim": 64},
    "layer_types": ["linear_attention", "full_attention"],
}
QUANTISED_NEMOTRON = {
    **QUANTISED,
    **{"hidden_size": 256, "n_routed_experts": 6, "moe_intermediate_size": 128},
    **{"moe_shared_expert_intermediate_size": 128, "time_step_min": NEMOTRON["time_step_min"]},
    **{"mamba_num_heads": 32, "mamba_head_dim": 8, "ssm_state_size": 24, "n_groups": 2},  # together five blocks of rows
    "layers_block_type": ["moe", STATE_SPACE, "moe", ATTENDS],
}
QUANTISED_CASES = {
    "qwen3_moe": Case(
        "qwen3_moe-quantised",
        "qwen3_moe",
        {**QUANTISED, **QWEN_MOE, "hidden_size": 256, "num_experts": 6, "moe_intermediate_size": 128},
    ),
    "mixtral": Case("mixtral-quantised", "mixtral", {**QUANTISED, "num_local_experts": 6, "sliding_window": None}),
    "gpt_oss": Case(
        "gpt_oss-quantised", "gpt_oss", {**QUANTISED, **GPT_OSS, "num_local_experts": 6, "intermediate_size": 96}
    ),
    "qwen3_next": Case("qwen3_next-quantised", "qwen3_next", QUANTISED_DELTA),
    "qwen3_5_moe": Case("qwen3_5_moe-quantised", "qwen3_5_moe_text", QUANTISED_DELTA),
    "nemotron_h": Case("nemotron_h-quantised", "nemotron_h", QUANTISED_NEMOTRON),
    "deepseek_v3": Case("deepseek_v3-quantised", "deepseek_v3", QUANTISED_LATENT),
}
