"""Architectures all of whose layers attend over keys and values of every head, by other publishers."""

from __future__ import annotations

from engine.files.sources.gguf.architectures.record import LAYER_TYPES, SIGMOID_SCORES, Architecture, Key
from engine.files.sources.gguf.architectures.shared import (
    ATTENTION,
    ATTENTION_BIAS,
    CONFIG,
    DENSE_OR_SPARSE,
    EXPERT_WIDTH,
    EXPERTS,
    LOCAL_EXPERTS,
    MIXTRAL,
    MLP,
    MOE,
    PAIRS,
    QK_NORM,
    SHARED_EXPERTS,
    WIDTH,
    feed_forward,
)

_LAYER_NORMED = {
    **{name: key for name, key in CONFIG.items() if name != "rms_norm_eps"},
    "layer_norm_eps": Key("attention.layer_norm_epsilon"),
}
_SCORES = {1: "softmax", SIGMOID_SCORES: "sigmoid"}
_HUNYUAN_NORMS = {"attn_q_norm": "self_attn.query_layernorm", "attn_k_norm": "self_attn.key_layernorm"}
_HUNYUAN_FLAGS = {**ATTENTION_BIAS, "use_qk_norm": "attn_q_norm.weight"}
_SHARED_MLP = feed_forward("mlp.shared_mlp", "_shexp")

PLAIN = {
    "arcee": Architecture(
        "arcee",
        "ArceeForCausalLM",
        config={**CONFIG, **WIDTH},
        stems={**ATTENTION, **MLP},
        constants={"hidden_act": "relu2"},
        flags={**ATTENTION_BIAS, "mlp_bias": "ffn_up.bias"},
        undo=PAIRS,
    ),
    # Olmo 3 is of this architecture too, and has windows.
    "olmo2": Architecture(
        "olmo2",
        "Olmo2ForCausalLM",
        config={**CONFIG, **WIDTH},
        stems={
            **{stem: name for stem, name in ATTENTION.items() if not stem.endswith("_norm")},
            **QK_NORM,
            **MLP,
            "post_attention_norm": "post_attention_layernorm",
            "post_ffw_norm": "post_feedforward_layernorm",
        },
        words={"sliding_window": (Key("attention.sliding_window", None), {0: None})},
        flags=ATTENTION_BIAS,
    ),
    "hunyuan-dense": Architecture(
        "hunyuan_v1_dense",
        "HunYuanDenseV1ForCausalLM",
        config={**CONFIG, **WIDTH},
        stems={**ATTENTION, **_HUNYUAN_NORMS, **MLP},
        flags=_HUNYUAN_FLAGS,
    ),
    "hunyuan-moe": Architecture(
        "hunyuan_v1_moe",
        "HunYuanMoEV1ForCausalLM",
        config={
            **CONFIG,
            **WIDTH,
            **EXPERT_WIDTH,
            "num_experts": Key("expert_count"),
            "moe_topk": Key("expert_used_count"),
            "num_shared_expert": Key("expert_shared_count"),
        },
        stems={**ATTENTION, **_HUNYUAN_NORMS, **MOE, "ffn_gate_inp": "mlp.gate.wg", **_SHARED_MLP},
        flags=_HUNYUAN_FLAGS,
    ),
    "hy_v3": Architecture(
        "hy_v3",
        "HYV3ForCausalLM",
        config={
            **CONFIG,
            **WIDTH,
            **EXPERTS,
            **EXPERT_WIDTH,
            "router_scaling_factor": Key("expert_weights_scale", 1.0),
            "route_norm": Key("expert_weights_norm", True),
        },
        stems={**ATTENTION, **QK_NORM, **MLP, **MOE, "ffn_gate_inp": "mlp.router.gate", **_SHARED_MLP},
        exact={"exp_probs_b": "mlp.expert_bias", "exp_probs_b.bias": "mlp.expert_bias"},
        ratios={"num_shared_experts": ("expert_shared_feed_forward_length", "expert_feed_forward_length")},
        flags=ATTENTION_BIAS,
        kinds=DENSE_OR_SPARSE,
    ),
    "bailingmoe2": Architecture(
        "bailing_moe_v2",
        "BailingMoeV2ForCausalLM",
        config={
            **CONFIG,
            **WIDTH,
            **EXPERTS,
            **EXPERT_WIDTH,
            "num_shared_experts": Key("expert_shared_count"),
            "first_k_dense_replace": Key("leading_dense_block_count", 0),
            "n_group": Key("expert_group_count", 1),
            "topk_group": Key("expert_group_used_count", 1),
            "norm_topk_prob": Key("expert_weights_norm", False),
            "routed_scaling_factor": Key("expert_weights_scale", 1.0),
        },
        stems={
            "attn_norm": "input_layernorm",
            "attn_qkv": "attention.query_key_value",
            "attn_q_norm": "attention.query_layernorm",
            "attn_k_norm": "attention.key_layernorm",
            "attn_output": "attention.dense",
            "ffn_norm": "post_attention_layernorm",
            **MLP,
            **MOE,
            **SHARED_EXPERTS,
        },
        exact={"exp_probs_b": "mlp.gate.expert_bias", "exp_probs_b.bias": "mlp.gate.expert_bias"},
        outer={"token_embd.weight": "model.word_embeddings.weight"},
        words={"score_function": (Key("expert_gating_func"), {2: "sigmoid"})},
        flags={"use_qkv_bias": "attn_qkv.bias"},
        partial=True,
    ),
    "cohere2": Architecture(
        "cohere2",
        "Cohere2ForCausalLM",
        config={
            **_LAYER_NORMED,
            **WIDTH,
            "sliding_window": Key("attention.sliding_window"),
            "logit_scale": Key("logit_scale"),
        },
        stems={**ATTENTION, **MLP},
        words=LAYER_TYPES,
        flags=ATTENTION_BIAS,
    ),
    "cohere2moe": Architecture(
        "cohere2_moe",
        "Cohere2MoeForCausalLM",
        config={
            **_LAYER_NORMED,
            **EXPERTS,
            "layer_norm_eps": Key("attention.layer_norm_epsilon", 1e-5),
            "rms_norm_eps": Key("attention.layer_norm_rms_epsilon", None),
            "intermediate_size": Key("expert_feed_forward_length"),
            "prefix_dense_intermediate_size": Key("feed_forward_length", None),
            "first_k_dense_replace": Key("leading_dense_block_count"),
            "num_shared_experts": Key("expert_shared_count", 0),
            "norm_topk_prob": Key("expert_weights_norm", False),
            "sliding_window": Key("attention.sliding_window"),
            "logit_scale": Key("logit_scale"),
        },
        stems={**ATTENTION, **MLP, **MOE, **SHARED_EXPERTS},
        constants={"shared_expert_combination_strategy": "average"},
        words={
            **LAYER_TYPES,
            "expert_selection_fn": (Key("expert_gating_func", SIGMOID_SCORES), _SCORES),
        },
        flags=ATTENTION_BIAS,
    ),
    "dbrx": Architecture(
        "dbrx",
        "DbrxForCausalLM",
        config={
            **{name: key for name, key in CONFIG.items() if name not in ("rms_norm_eps", "rope_theta")},
            "attn_config.kv_n_heads": Key("attention.head_count_kv"),
            "attn_config.clip_qkv": Key("attention.clamp_kqv"),
            "attn_config.rope_theta": Key("rope.freq_base"),
            "ffn_config.ffn_hidden_size": Key("feed_forward_length"),
            "ffn_config.moe_num_experts": Key("expert_count"),
            "ffn_config.moe_top_k": Key("expert_used_count"),
        },
        stems={**ATTENTION, **MOE, "attn_output_norm": "post_attention_layernorm"},
    ),
    "phimoe": Architecture(
        "phimoe",
        "PhimoeForCausalLM",
        config={**CONFIG, **WIDTH, **LOCAL_EXPERTS},
        stems={**ATTENTION, **MIXTRAL},
        outer={"output_norm.bias": "model.norm.bias", "output.bias": "lm_head.bias"},
        constants={"router_jitter_noise": 0.01, "sliding_window": None},
        flags={**ATTENTION_BIAS, "lm_head_bias": "output.bias"},
    ),
}
