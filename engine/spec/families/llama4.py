"""Llama 4: chunks with rope, now and then a layer that sees everything without; experts that see a scaled input."""

from __future__ import annotations

from dataclasses import replace

from engine.spec.families.attention_rules import (
    ATTENTION_BIAS,
    SLIDING_MOST,
    AttentionRule,
    GrowthRule,
    RopeRule,
    WindowRule,
)
from engine.spec.families.config import key
from engine.spec.families.expert_rules import MoeRule, SharedRule
from engine.spec.families.naming import DECODER, GATED, SKIPPED, in_layer, projections
from engine.spec.families.positions import CONTEXT
from engine.spec.families.record import Family
from engine.spec.names import Names

WIDTH = key("intermediate_size")
FAR = AttentionRule(
    head_dim=key("head_dim", default=128),
    qkv_bias=ATTENTION_BIAS,
    o_bias=ATTENTION_BIAS,
    rope=None,
    window=WindowRule(
        size=key("attention_chunk_size", default=CONTEXT),
        chunked=True,
        layers=SLIDING_MOST,
        interval=key("no_rope_layer_interval", default=4),
        marked=key("no_rope_layers", default=()),  # of layers with rope, whatever the name says
        name="chunked_attention",
    ),
    growth=GrowthRule(
        rate=key("attn_scale", default=0.1),
        every=key("floor_scale", default=8192),
        ahead=1,
        enabled=key("attn_temperature_tuning", default=True),
    ),
)
NEAR = replace(
    FAR,
    qk_norm="unit_after",
    normed=key("use_qk_norm", default=True),
    rope=RopeRule(theta=500000.0, pairs=True),
    growth=None,
)

# Experts lie as [in, out], gate beside up; quantised ones lie apart.
SOURCES = (
    *DECODER,
    *projections("feed_forward", "ffn.", GATED),
    in_layer("feed_forward.router.weight", "router"),
    in_layer("feed_forward.experts.gate_up_proj", "gate", "up", flipped=True),
    in_layer("feed_forward.experts.down_proj", "down", flipped=True),
    *projections("feed_forward.experts.{expert}", "", GATED),
    *projections("feed_forward.shared_expert", "shared.", GATED),
)

LLAMA4 = Family(
    name="llama4",
    architecture="Llama4ForConditionalGeneration",
    names=Names(SOURCES, SKIPPED),
    mixer=FAR,
    windowed=NEAR,
    moe=MoeRule(
        count=key("num_local_experts", default=16),
        top_k=key("num_experts_per_tok", default=1),
        width=WIDTH,
        scoring="sigmoid",
        shared=SharedRule(WIDTH),
        scaled_input=True,
        step=key("interleave_moe_layer_step", default=1),
        layers=key("moe_layers", default=()),
    ),
    dense_width=key("intermediate_size_mlp"),
    norm_eps=key("rms_norm_eps", default=1e-5),
    also=("llama4_text",),
    inside="text_config",
    only={"num_experts_per_tok": (1,)},
)
