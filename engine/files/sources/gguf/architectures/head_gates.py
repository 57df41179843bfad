"""Architectures whose heads have gates, and whose layers with a window have heads and positions of their own."""

from __future__ import annotations

from engine.files.sources.gguf.architectures.record import LAYER_TYPES, PLUS_ONE, SIGMOID_SCORES, Architecture, Key
from engine.files.sources.gguf.architectures.shared import (
    ATTENTION,
    ATTENTION_BIAS,
    CHOICE_BIAS,
    CONFIG,
    DENSE_OR_SPARSE,
    EXPERT_WIDTH,
    EXPERTS,
    MLP,
    MOE,
    QK_NORM,
    SHARED_EXPERTS,
    TOP_K,
    WIDTH,
)

_HEADS, _KV_HEADS = Key("attention.head_count"), Key("attention.head_count_kv")
_STEMS = {**ATTENTION, **QK_NORM, **MLP, **MOE, **SHARED_EXPERTS, "attn_gate": "self_attn.g_proj"}
_STEP_NORMS = ("attn_norm", "ffn_norm", "attn_q_norm", "attn_k_norm", "output_norm.weight")
_SIGMOID = {SIGMOID_SCORES: "sigmoid"}

HEAD_GATED = {
    # Step-3.5 and Step-3.7.
    "step35": Architecture(
        "step3p5",
        "Step3p5ForCausalLM",
        config={
            **CONFIG,
            **WIDTH,
            **EXPERT_WIDTH,
            **TOP_K,
            "n_routed_experts": Key("expert_count"),
            "share_expert_dim": Key("expert_shared_feed_forward_length"),
            "moe_router_scaling_factor": Key("expert_weights_scale", 1.0),
            "norm_expert_weight": Key("expert_weights_norm", True),
            "sliding_window": Key("attention.sliding_window"),
            "swiglu_limits": Key("swiglu_clamp_exp", None, listed=True),
            "swiglu_limits_shared": Key("swiglu_clamp_shexp", None, listed=True),
        },
        by_window={
            "num_attention_heads": (_HEADS, False),
            "num_key_value_heads": (_KV_HEADS, False),
            "attention_other_setting.num_attention_heads": (_HEADS, True),
            "attention_other_setting.num_attention_groups": (_KV_HEADS, True),
        },
        stems=_STEMS,
        exact=CHOICE_BIAS,
        undo=dict.fromkeys(_STEP_NORMS, PLUS_ONE),
        constants={"partial_rotary_factor": 0.5},
        words={**LAYER_TYPES, "moe_router_activation": (Key("expert_gating_func", SIGMOID_SCORES), _SIGMOID)},
        flags={**ATTENTION_BIAS, "use_head_wise_attn_gate": "attn_gate.weight"},
        kinds=DENSE_OR_SPARSE,
        window_rope=True,
    ),
    "laguna": Architecture(
        "laguna",
        "LagunaForCausalLM",
        config={
            **CONFIG,
            **WIDTH,
            **EXPERTS,
            **EXPERT_WIDTH,
            "num_attention_heads": Key("attention.head_count", first=True),
            "num_attention_heads_per_layer": Key("attention.head_count", listed=True),
            "shared_expert_intermediate_size": Key("expert_shared_feed_forward_length"),
            "moe_routed_scaling_factor": Key("expert_weights_scale", 1.0),
            "sliding_window": Key("attention.sliding_window", None),
        },
        stems=_STEMS,
        exact=CHOICE_BIAS,
        words={**LAYER_TYPES, "scoring_func": (Key("expert_gating_func", SIGMOID_SCORES), _SIGMOID)},
        flags=ATTENTION_BIAS,
        kinds=DENSE_OR_SPARSE,
        window_rope=True,
        window_pattern=(False, True, True, True),
        gates="attn_gate.weight",
        partial=True,
    ),
}
