"""Gemma: one is added to norms on their way into the file, but for Gemma 4; norms before and after every part."""

from __future__ import annotations

from engine.files.sources.gguf.architectures.record import (
    LAYER_TYPES,
    PLUS_ONE,
    WINDOW_WORDS,
    WINDOWS,
    Architecture,
    Key,
)
from engine.files.sources.gguf.architectures.shared import (
    ATTENTION,
    ATTENTION_BIAS,
    CONFIG,
    MLP,
    QK_NORM,
    WIDTH,
    feed_forward,
)

_SANDWICH = {
    **ATTENTION,
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
    **MLP,
}
_NORMS = (
    *("attn_norm", "ffn_norm", "post_attention_norm", "post_ffw_norm"),
    *("attn_q_norm", "attn_k_norm", "output_norm.weight"),
)
_UNDO = dict.fromkeys(_NORMS, PLUS_ONE)
_WINDOW = {"sliding_window": Key("attention.sliding_window")}
_FINAL_SOFTCAP = {"final_logit_softcapping": Key("final_logit_softcapping", 0.0)}

GEMMA = {
    "gemma": Architecture(
        "gemma",
        "GemmaForCausalLM",
        config={**CONFIG, **WIDTH},
        stems={**ATTENTION, **MLP},
        undo=_UNDO,
        flags=ATTENTION_BIAS,
    ),
    "gemma2": Architecture(
        "gemma2",
        "Gemma2ForCausalLM",
        config={
            **CONFIG,
            **WIDTH,
            **_WINDOW,
            "attn_logit_softcapping": Key("attn_logit_softcapping", 50.0),
            "final_logit_softcapping": Key("final_logit_softcapping", 30.0),
        },
        stems=_SANDWICH,
        undo=_UNDO,
        words=LAYER_TYPES,
        flags=ATTENTION_BIAS,
        root_width=46,
    ),
    "gemma3": Architecture(
        "gemma3_text",
        "Gemma3ForCausalLM",
        config={
            **CONFIG,
            **WIDTH,
            **_WINDOW,
            **_FINAL_SOFTCAP,
            "rope_local_base_freq": Key("rope.freq_base_swa", 10000.0),
        },
        stems={**_SANDWICH, **QK_NORM},
        undo=_UNDO,
        words=LAYER_TYPES,
        flags=ATTENTION_BIAS,
        root_width=62,
    ),
    "gemma4": Architecture(
        "gemma4_text",
        "Gemma4ForCausalLM",
        config={
            **CONFIG,
            **_WINDOW,
            **_FINAL_SOFTCAP,
            "intermediate_size": Key("feed_forward_length", first=True),
            "head_dim": Key("attention.key_length_swa"),
            "global_head_dim": Key("attention.key_length"),
            "num_kv_shared_layers": Key("attention.shared_kv_layers", 0),
            "hidden_size_per_layer_input": Key("embedding_length_per_layer_input", 0),
            "num_experts": Key("expert_count", 0),
            "top_k_experts": Key("expert_used_count", 0),
            "moe_intermediate_size": Key("expert_feed_forward_length", 0),
        },
        by_window={
            "num_key_value_heads": (Key("attention.head_count_kv"), True),
            "num_global_key_value_heads": (Key("attention.head_count_kv"), False),
        },
        doubled={"use_double_wide_mlp": "feed_forward_length"},
        stems={
            **_SANDWICH,
            **QK_NORM,
            **feed_forward("experts.{expert}", "_exps"),
            "ffn_gate_inp": "router.proj",
            "post_ffw_norm_1": "post_feedforward_layernorm_1",
            "pre_ffw_norm_2": "pre_feedforward_layernorm_2",
            "post_ffw_norm_2": "post_feedforward_layernorm_2",
            "inp_gate": "per_layer_input_gate",
            "proj": "per_layer_projection",
            "post_norm": "post_per_layer_input_norm",
        },
        exact={
            "layer_output_scale.weight": "layer_scalar",
            "ffn_gate_inp.scale": "router.scale",
            "ffn_down_exps.scale": "router.per_expert_scale",
        },
        outer={
            "per_layer_token_embd.weight": "model.embed_tokens_per_layer.weight",
            "per_layer_model_proj.weight": "model.per_layer_model_projection.weight",
            "per_layer_proj_norm.weight": "model.per_layer_projection_norm.weight",
        },
        words={"layer_types": (Key(WINDOWS.name, listed=True), WINDOW_WORDS)},
        flags={**ATTENTION_BIAS, "enable_moe_block": "ffn_gate_inp.weight"},
        lacking={"attention_k_eq_v": ("attn_k.weight", "attn_v.weight")},
        widths={"vocab_size_per_layer_input": "per_layer_token_embd.weight"},
        rotated="rope.dimension_count_swa",
        proportional=True,
    ),
}
