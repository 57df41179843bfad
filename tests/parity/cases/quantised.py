"""Models that are quantised."""

from __future__ import annotations

from .case import Case
from .deepseek_v4 import COMPRESSED, HEAVY, SPARSE
from .plain import MIMO
from .recurrent import ATTENDS, NEMOTRON, STATE_SPACE
from .sparse import GPT_OSS, QWEN_MOE

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
QUANTISED_GLM = {
    **QUANTISED,
    **{"hidden_size": 256, "n_routed_experts": 6, "moe_intermediate_size": 128, "n_shared_experts": 1},
    **{"first_k_dense_replace": 0, "n_group": 1, "topk_group": 1, "attention_bias": True, "use_qk_norm": True},
}
# All is seen: what rounding does to scores could choose otherwise, which no bound of differences allows for.
QUANTISED_INDEX = {**QUANTISED_LATENT, "index_topk": 64, "index_n_heads": 4, "index_head_dim": 64}
QUANTISED_COMPRESSED = {
    **COMPRESSED,
    **{"num_hidden_layers": 2, "hidden_size": 256, "num_attention_heads": 2, "head_dim": 128, "q_lora_rank": 128},
    **{"o_groups": 2, "o_lora_rank": 64, "intermediate_size": 128, "n_routed_experts": 6, "num_experts_per_tok": 2},
    **{
        "partial_rotary_factor": 0.125,
        "index_topk": 16,
        "layer_types": [SPARSE, HEAVY],
        "mlp_layer_types": ["hash_moe", "moe"],
    },
}
MIMO_ROPE = {"rope_type": "default", "partial_rotary_factor": 0.334}
QUANTISED_MIMO = {
    **MIMO,
    **{"num_hidden_layers": 2, "hidden_size": 256, "head_dim": 96, "v_head_dim": 64},
    **{"n_routed_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 128},
    **{"layer_types": ["full_attention", "sliding_attention"], "mlp_layer_types": ["sparse", "sparse"]},
    "rope_parameters": {
        "full_attention": {**MIMO_ROPE, "rope_theta": 300.0},
        "sliding_attention": {**MIMO_ROPE, "rope_theta": 70.0},
    },
}
QUANTISED_CASES = {
    "mimo_v2_flash": Case("mimo_v2_flash-quantised", "mimo_v2_flash", QUANTISED_MIMO),
    "deepseek_v4": Case("deepseek_v4-quantised", "deepseek_v4", QUANTISED_COMPRESSED),
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
    "glm4_moe": Case("glm4_moe-quantised", "glm4_moe", QUANTISED_GLM),
    "minimax_m2": Case(
        "minimax_m2-quantised",
        "minimax_m2",
        {**QUANTISED, "hidden_size": 256, "num_local_experts": 6, "intermediate_size": 128, "rotary_dim": 16},
    ),
    "deepseek_v3": Case("deepseek_v3-quantised", "deepseek_v3", QUANTISED_LATENT),
    "deepseek_v32": Case("deepseek_v32-quantised", "deepseek_v32", QUANTISED_INDEX),
    "glm_moe_dsa": Case(
        "glm_moe_dsa-quantised", "glm_moe_dsa", {**QUANTISED_INDEX, "indexer_types": ["full", "shared"]}
    ),
}
