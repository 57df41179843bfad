"""Architectures all of whose layers attend over keys and values of every head."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from engine.files.sources.gguf.architectures.record import LAYER_TYPES, ONE_ROW, Architecture, Key
from engine.files.sources.gguf.architectures.shared import (
    ATTENTION,
    ATTENTION_BIAS,
    CONFIG,
    EXPERT_WIDTH,
    EXPERTS,
    GRANITE,
    GRANITE_SHARED,
    GRANITE_SHARED_STACKED,
    GRANITE_STACKED,
    LOCAL_EXPERTS,
    MIXTRAL,
    MLP,
    MOE,
    MULTIPLIERS,
    PAIRS,
    QK_NORM,
    SHARED_EXPERT,
    WIDTH,
)

_NO_WINDOW = {"use_sliding_window": False}
_EVERY_LAYER = {"decoder_sparse_step": 1, "mlp_only_layers": [], **_NO_WINDOW}
_GRANITE_MOE_CONFIG = {**CONFIG, **WIDTH, **LOCAL_EXPERTS, **MULTIPLIERS}
_WINDOW = {"sliding_window": Key("attention.sliding_window")}
_SINKS = {"attn_sinks.weight": "self_attn.sinks"}
# A file that says which layers have no positions does not say so in a way that a config.json has.
_SWA_WORDS: Mapping[str, tuple[Key, Mapping[Any, Any]]] = {
    **LAYER_TYPES,
    "no_rope_layers": (Key("attention.rope_pattern", None, listed=True), {True: 1}),
}
_QWEN3_MOE = Architecture(
    "qwen3_moe",
    "Qwen3MoeForCausalLM",
    config={**CONFIG, **WIDTH, **EXPERTS, **EXPERT_WIDTH},
    stems={**ATTENTION, **QK_NORM, **MOE},
    constants={"norm_topk_prob": True, **_EVERY_LAYER},
    flags=ATTENTION_BIAS,
)

_LLAMA = Architecture(
    "llama",
    "LlamaForCausalLM",
    config={**CONFIG, **WIDTH},
    stems={**ATTENTION, **MLP},
    flags={**ATTENTION_BIAS, "mlp_bias": "ffn_gate.bias"},
    undo=PAIRS,
)
_QWEN2 = Architecture(
    "qwen2",
    "Qwen2ForCausalLM",
    config={**CONFIG, **WIDTH},
    stems={**ATTENTION, **MLP},
    constants=_NO_WINDOW,
)
_QWEN3 = Architecture(
    "qwen3",
    "Qwen3ForCausalLM",
    config={**CONFIG, **WIDTH},
    stems={**ATTENTION, **QK_NORM, **MLP},
    constants=_NO_WINDOW,
    flags=ATTENTION_BIAS,
)
_NO_SLIDING = {"sliding_window": None}

ATTENDING = {
    "llama": _LLAMA,
    "mistral3": replace(_LLAMA, model_type="mistral", hf_class="MistralForCausalLM", constants=_NO_SLIDING),
    "mistral3 with growing queries": replace(
        _LLAMA, model_type="ministral3", hf_class="Ministral3ForCausalLM", constants=_NO_SLIDING
    ),
    "llama with experts": Architecture(
        "mixtral",
        "MixtralForCausalLM",
        config={**CONFIG, **WIDTH, **LOCAL_EXPERTS},
        stems={**ATTENTION, **MIXTRAL},
        constants=_NO_SLIDING,
        undo=PAIRS,
    ),
    "qwen2": _QWEN2,
    "qwen2vl": replace(_QWEN2, model_type="qwen2_vl_text"),
    "qwen2moe": Architecture(
        "qwen2_moe",
        "Qwen2MoeForCausalLM",
        config={
            **CONFIG,
            **WIDTH,
            **EXPERTS,
            **EXPERT_WIDTH,
            "shared_expert_intermediate_size": Key("expert_shared_feed_forward_length"),
        },
        stems={**ATTENTION, **MOE, **SHARED_EXPERT},
        undo={"ffn_gate_inp_shexp": ONE_ROW},
        constants={"norm_topk_prob": False, **_EVERY_LAYER},
    ),
    "qwen3": _QWEN3,
    "qwen3vl": replace(_QWEN3, model_type="qwen3_vl_text"),
    "qwen3moe": _QWEN3_MOE,
    # The same for text. What it sees comes in a file of its own.
    "qwen3vlmoe": replace(_QWEN3_MOE, model_type="qwen3_vl_moe_text", hf_class="Qwen3VLMoeForConditionalGeneration"),
    "olmoe": Architecture(
        "olmoe",
        "OlmoeForCausalLM",
        config={**CONFIG, **WIDTH, **EXPERTS},
        stems={**ATTENTION, **QK_NORM, **MOE},
        constants={"norm_topk_prob": False, "clip_qkv": None},
        flags=ATTENTION_BIAS,
    ),
    "granite": Architecture(
        "granite",
        "GraniteForCausalLM",
        config={**CONFIG, **WIDTH, **MULTIPLIERS},
        stems={**ATTENTION, **MLP},
        flags={**ATTENTION_BIAS, "mlp_bias": "ffn_gate.bias"},
        undo=PAIRS,
    ),
    "granitemoe": Architecture(
        "granitemoe",
        "GraniteMoeForCausalLM",
        config=_GRANITE_MOE_CONFIG,
        stems={**ATTENTION, **GRANITE},
        flags=ATTENTION_BIAS,
        stacked=GRANITE_STACKED,
        undo=PAIRS,
    ),
    "granitemoe with shared experts": Architecture(
        "granitemoeshared",
        "GraniteMoeSharedForCausalLM",
        config={
            **_GRANITE_MOE_CONFIG,
            "shared_intermediate_size": Key("expert_shared_feed_forward_length"),
        },
        stems={**ATTENTION, **GRANITE, **GRANITE_SHARED},
        flags=ATTENTION_BIAS,
        stacked={**GRANITE_STACKED, **GRANITE_SHARED_STACKED},
        undo=PAIRS,
    ),
    "granite_swa": Architecture(
        "granite_swa",
        "GraniteSWAForCausalLM",
        config={**CONFIG, **WIDTH, **MULTIPLIERS, **_WINDOW},
        stems={**ATTENTION, **MLP},
        exact=_SINKS,
        words=_SWA_WORDS,
        flags={**ATTENTION_BIAS, "mlp_bias": "ffn_gate.bias"},
        undo=PAIRS,
    ),
    "granite_swa with experts": Architecture(
        "granitemoe_swa",
        "GraniteMoeSWAForCausalLM",
        config={
            **_GRANITE_MOE_CONFIG,
            **_WINDOW,
            "shared_intermediate_size": Key("expert_shared_feed_forward_length", 0),
        },
        stems={
            **ATTENTION,
            **GRANITE,
            **GRANITE_SHARED,
            "ffn_gate_up_exps": "block_sparse_moe.input_linear",
            "ffn_up_shexp": "shared_mlp.input_linear",
        },
        exact=_SINKS,
        words=_SWA_WORDS,
        flags=ATTENTION_BIAS,
        undo=PAIRS,
    ),
    "gpt-oss": Architecture(
        "gpt_oss",
        "GptOssForCausalLM",
        config={
            **CONFIG,
            "intermediate_size": Key("expert_feed_forward_length"),
            **LOCAL_EXPERTS,
            "sliding_window": Key("attention.sliding_window"),
        },
        stems={
            **ATTENTION,
            "post_attention_norm": "post_attention_layernorm",
            **MOE,
            "ffn_gate_inp": "mlp.router",
        },
        constants={"attention_bias": True, "swiglu_limit": 7.0, "hidden_act": "silu"},
        exact={"attn_sinks.weight": "self_attn.sinks"},
    ),
}
