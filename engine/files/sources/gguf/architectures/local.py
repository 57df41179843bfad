"""Architectures with experts some of whose layers see a window or a chunk alone, and others everything."""

from __future__ import annotations

from engine.files.sources.gguf.architectures.latent import ROUTING
from engine.files.sources.gguf.architectures.record import LAYER_TYPES, WINDOW_WORDS, WINDOWS, Architecture, Key
from engine.files.sources.gguf.architectures.shared import (
    ATTENTION,
    ATTENTION_BIAS,
    CONFIG,
    DENSE_OR_SPARSE,
    EXPERT_WIDTH,
    EXPERTS,
    LOCAL_EXPERTS,
    MLP,
    MOE,
    QK_NORM,
    SHARED_EXPERTS,
    WIDTH,
    experts,
    feed_forward,
)

_WINDOW = {"sliding_window": Key("attention.sliding_window")}
_SHARED = {"n_shared_experts", "first_k_dense_replace"}

LOCAL = {
    # Only the smaller of the two models published so far, of 16 experts, norms queries and keys.
    "llama4": Architecture(
        "llama4_text",
        "Llama4ForCausalLM",
        config={
            **CONFIG,
            **LOCAL_EXPERTS,
            "intermediate_size": Key("expert_feed_forward_length"),
            "intermediate_size_mlp": Key("feed_forward_length"),
            "interleave_moe_layer_step": Key("interleave_moe_layer_step"),
        },
        stems={
            **ATTENTION,
            **feed_forward("feed_forward"),
            **experts("feed_forward.experts", "feed_forward.router"),
            **feed_forward("feed_forward.shared_expert", "_shexp"),
        },
        constants={
            "attention_chunk_size": 8192,
            "no_rope_layer_interval": 4,
            "attn_temperature_tuning": True,
            "floor_scale": 8192,
            "attn_scale": 0.1,
        },
        words={"use_qk_norm": (Key("expert_count"), {16: True, 128: False})},
        flags=ATTENTION_BIAS,
    ),
    "afmoe": Architecture(
        "afmoe",
        "AfmoeForCausalLM",
        config={
            **CONFIG,
            **WIDTH,
            **EXPERTS,
            **EXPERT_WIDTH,
            **_WINDOW,
            "num_shared_experts": Key("expert_shared_count"),
            "num_dense_layers": Key("leading_dense_block_count", 0),
            "route_scale": Key("expert_weights_scale", 1.0),
            "route_norm": Key("expert_weights_norm", True),
        },
        stems={
            **ATTENTION,
            **QK_NORM,
            **MLP,
            **MOE,
            **SHARED_EXPERTS,
            "attn_gate": "self_attn.gate_proj",
            "post_attention_norm": "post_attention_layernorm",
            "ffn_norm": "pre_mlp_layernorm",
            "post_ffw_norm": "post_mlp_layernorm",
            "ffn_gate_inp": "mlp.router.gate",
        },
        constants={"mup_enabled": True},
        exact={"exp_probs_b.bias": "mlp.expert_bias"},
        words=LAYER_TYPES,
        flags=ATTENTION_BIAS,
    ),
    "mimo2": Architecture(
        "mimo_v2_flash",
        "MiMoV2FlashForCausalLM",
        config={
            **CONFIG,
            **WIDTH,
            **EXPERT_WIDTH,
            **_WINDOW,
            **{name: key for name, key in ROUTING.items() if name not in _SHARED},
            "norm_topk_prob": Key("expert_weights_norm", True),
            "v_head_dim": Key("attention.value_length"),
            "attention_value_scale": Key("attention.value_scale", 1.0),
            "swa_rope_theta": Key("rope.freq_base_swa", 10000.0),
        },
        by_window={
            "num_key_value_heads": (Key("attention.head_count_kv"), False),
            "swa_num_key_value_heads": (Key("attention.head_count_kv"), True),
        },
        stems={**ATTENTION, **MLP, **MOE},
        constants={"add_full_attention_sink_bias": False},
        exact={
            "attn_sinks.weight": "self_attn.attention_sink_bias",
            "exp_probs_b.bias": "mlp.gate.e_score_correction_bias",
        },
        words={"layer_types": (Key(WINDOWS.name, listed=True), WINDOW_WORDS)},
        flags={"add_swa_attention_sink_bias": "attn_sinks.weight", "attention_bias": "attn_q.bias"},
        kinds=DENSE_OR_SPARSE,
        partial=True,
    ),
    "mellum": Architecture(
        "mellum",
        "MellumForCausalLM",
        config={**CONFIG, **WIDTH, **EXPERTS, **EXPERT_WIDTH, "sliding_window": Key("attention.sliding_window", None)},
        stems={**ATTENTION, **QK_NORM, **MLP, **MOE},
        constants={"norm_topk_prob": True},
        words=LAYER_TYPES,
        flags=ATTENTION_BIAS,
        kinds=DENSE_OR_SPARSE,
        window_pattern=(True, True, True, False),
        window_rope=True,
    ),
}
