"""Architectures whose heads share a latent key and value.

The matrix of keys and values from the latent is one (older files) or two, that of keys transposed.
"""

from __future__ import annotations

from engine.files.sources.gguf.architectures.record import BY_HEAD, Architecture, Key
from engine.files.sources.gguf.architectures.shared import (
    CHOICE_BIAS,
    EVERY_CONFIG,
    EXPERT_WIDTH,
    MLP,
    MOE,
    SHARED_EXPERTS,
    WIDTH,
)

LATENT_HEADS = {
    "q_lora_rank": Key("attention.q_lora_rank", None),
    "kv_lora_rank": Key("attention.kv_lora_rank"),
    "qk_rope_head_dim": Key("rope.dimension_count"),
}
ROUTING = {
    "n_routed_experts": Key("expert_count", 0),
    "num_experts_per_tok": Key("expert_used_count", 0),
    "n_shared_experts": Key("expert_shared_count", 0),
    "n_group": Key("expert_group_count", 1),
    "topk_group": Key("expert_group_used_count", 1),
    "first_k_dense_replace": Key("leading_dense_block_count", 0),
    "norm_topk_prob": Key("expert_weights_norm", False),
    "routed_scaling_factor": Key("expert_weights_scale", 1.0),
}
LATENT_CONFIG = {**EVERY_CONFIG, **WIDTH, **EXPERT_WIDTH, **LATENT_HEADS, **ROUTING}
LATENT_ATTENTION = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_q_a": "self_attn.q_a_proj",
    "attn_q_a_norm": "self_attn.q_a_layernorm",
    "attn_q_b": "self_attn.q_b_proj",
    "attn_kv_a_mqa": "self_attn.kv_a_proj_with_mqa",
    "attn_kv_a_norm": "self_attn.kv_a_layernorm",
    "attn_kv_b": "self_attn.kv_b_proj",
    "attn_k_b": "self_attn.k_b_proj",
    "attn_v_b": "self_attn.v_b_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
}
HEADS_APART = {"attn_k_b": BY_HEAD, "attn_v_b": BY_HEAD}
LATENT_STEMS = {**LATENT_ATTENTION, **MLP, **MOE, **SHARED_EXPERTS}
INDEXER = {
    "indexer.attn_q_b": "self_attn.indexer.wq_b",
    "indexer.attn_k": "self_attn.indexer.wk",
    "indexer.k_norm": "self_attn.indexer.k_norm",
    "indexer.proj": "self_attn.indexer.weights_proj",
}
INDEX = {
    "index_n_heads": Key("attention.indexer.head_count"),
    "index_head_dim": Key("attention.indexer.key_length"),
    "index_topk": Key("attention.indexer.top_k"),
}

_MISTRAL = Architecture(
    "mistral4",
    "Mistral4ForCausalLM",
    config=LATENT_CONFIG,
    stems=LATENT_STEMS,
    undo=HEADS_APART,
    words={"scoring_func": (Key("expert_gating_func", None), {1: "softmax"})},
    latent=True,
)

LATENT = {
    "deepseek2": Architecture(
        "deepseek_v2",
        "DeepseekV2ForCausalLM",
        config=LATENT_CONFIG,
        stems=LATENT_STEMS,
        undo=HEADS_APART,
        latent=True,
    ),
    "deepseek2 with sigmoid scores": Architecture(
        "deepseek_v3",
        "DeepseekV3ForCausalLM",
        config=LATENT_CONFIG,
        stems=LATENT_STEMS,
        exact=CHOICE_BIAS,
        undo=HEADS_APART,
        latent=True,
    ),
    # Mistral Large 3.
    "deepseek2 with growing queries": _MISTRAL,
    "mistral4": _MISTRAL,
    "deepseek32": Architecture(
        "deepseek_v32",
        "DeepseekV32ForCausalLM",
        config={**LATENT_CONFIG, **INDEX},
        stems={**LATENT_STEMS, **INDEXER},
        exact=CHOICE_BIAS,
        undo=HEADS_APART,
        latent=True,
    ),
    "glm-dsa": Architecture(
        "glm_moe_dsa",
        "GlmMoeDsaForCausalLM",
        config={**LATENT_CONFIG, **INDEX},
        stems={**LATENT_STEMS, **INDEXER},
        exact=CHOICE_BIAS,
        undo=HEADS_APART,
        words={"indexer_types": (Key("attention.indexer.types", None, listed=True), {True: "full", False: "shared"})},
        # GLM-5.2, whose first files do not list them: three layers choose, then every fourth. Source: llama.cpp.
        far={"index_topk_freq": 4, "index_skip_topk_offset": 3},
        latent=True,
    ),
}
