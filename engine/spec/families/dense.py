"""Families whose layers all have one dense feed-forward part."""

from __future__ import annotations

from engine.spec.families.attention_rules import (
    ATTENTION_BIAS,
    SLIDING_LATE,
    TOLD_GROWTH,
    AttentionRule,
    WindowRule,
)
from engine.spec.families.config import key
from engine.spec.families.naming import DECODER, SKIPPED
from engine.spec.families.record import Family
from engine.spec.names import Names

NAMES = Names(DECODER, SKIPPED)
LATE_WINDOW = WindowRule(enabled=key("use_sliding_window", default=False), typed=True, layers=SLIDING_LATE)

LLAMA = Family(
    name="llama",
    architecture="LlamaForCausalLM",
    names=NAMES,
    mixer=AttentionRule(qkv_bias=ATTENTION_BIAS, o_bias=ATTENTION_BIAS),
    dense_bias=key("mlp_bias", default=False),
)

MISTRAL = Family(
    name="mistral",
    architecture="MistralForCausalLM",
    names=NAMES,
    mixer=AttentionRule(window=WindowRule(size=key("sliding_window", default=4096, null=0))),
)

# Ministral 3 and Devstral 2: queries grow as Llama 4's do.
MINISTRAL3 = Family(
    name="ministral3",
    architecture="Ministral3ForCausalLM",
    names=NAMES,
    mixer=AttentionRule(head_dim=key("head_dim", default=128), growth=TOLD_GROWTH, window=WindowRule()),
    norm_eps=key("rms_norm_eps", default=1e-5),
    defaults={
        "rope_scaling": {
            "rope_type": "yarn",
            "rope_theta": 1000000.0,
            "factor": 16.0,
            "original_max_position_embeddings": 16384,
            "mscale": 1.0,
            "mscale_all_dim": 1.0,
            "llama_4_scaling_beta": 0.1,
        }
    },
)

QWEN2 = Family(
    name="qwen2",
    architecture="Qwen2ForCausalLM",
    names=NAMES,
    mixer=AttentionRule(qkv_bias=True, window=LATE_WINDOW),
    also=("qwen2_vl_text", "qwen2_5_vl_text"),
)

QWEN3 = Family(
    name="qwen3",
    architecture="Qwen3ForCausalLM",
    names=NAMES,
    mixer=AttentionRule(
        head_dim=key("head_dim", default=128),
        qk_norm="head",
        qkv_bias=ATTENTION_BIAS,
        o_bias=ATTENTION_BIAS,
        window=LATE_WINDOW,
    ),
    also=("qwen3_vl_text",),
)

GRANITE = Family(
    name="granite",
    architecture="GraniteForCausalLM",
    names=NAMES,
    mixer=AttentionRule(
        scale=key("attention_multiplier", default=1.0),
        qkv_bias=ATTENTION_BIAS,
        o_bias=ATTENTION_BIAS,
    ),
    dense_bias=key("mlp_bias", default=False),
    embedding_scale=key("embedding_multiplier", default=1.0),
    residual_scale=key("residual_multiplier", default=1.0),
    logit_divisor=key("logits_scaling", default=1.0),
)

ARCEE = Family(
    name="arcee",
    architecture="ArceeForCausalLM",
    names=NAMES,
    mixer=AttentionRule(qkv_bias=ATTENTION_BIAS, o_bias=ATTENTION_BIAS),
    dense_bias=key("mlp_bias", default=False),
    norm_eps=key("rms_norm_eps", default=1e-5),
    hidden_act=key("hidden_act", default="relu2"),
    activations={"relu2": "relu2"},
)

DENSE_FAMILIES = (LLAMA, MISTRAL, MINISTRAL3, QWEN2, QWEN3, GRANITE, ARCEE)
