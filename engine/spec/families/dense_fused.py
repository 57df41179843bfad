"""Families without experts whose checkpoints keep matrices that read the same in one."""

from __future__ import annotations

from dataclasses import replace

from engine.spec.families.attention_rules import AttentionRule, RopeRule, WindowRule
from engine.spec.families.config import key
from engine.spec.families.naming import DECODER, SKIPPED, in_layer
from engine.spec.families.record import Family
from engine.spec.names import Names
from engine.spec.residual import Residual

FUSED_GATE = in_layer("mlp.gate_up_proj.weight", "ffn.gate", "ffn.up")

PHI3 = Family(
    name="phi3",
    architecture="Phi3ForCausalLM",
    names=Names((in_layer("self_attn.qkv_proj.weight", "attn.q", "attn.k", "attn.v"), FUSED_GATE, *DECODER), SKIPPED),
    mixer=AttentionRule(rope=RopeRule(part=key("partial_rotary_factor", default=1.0)), window=WindowRule()),
    norm_eps=key("rms_norm_eps", default=1e-5),
    defaults={"original_max_position_embeddings": 4096},
    # what early models call yarn has LongRoPE's factors
    only={"rope_scaling.type": ("default", "linear", "longrope", "su")},
)

GLM = Family(
    name="glm",
    architecture="GlmForCausalLM",
    names=Names((FUSED_GATE, *DECODER), SKIPPED),
    mixer=AttentionRule(
        head_dim=key("head_dim", default=128),
        qkv_bias=key("attention_bias", default=True),
        rope=RopeRule(pairs=True, part=key("partial_rotary_factor", default=0.5)),
    ),
    norm_eps=key("rms_norm_eps", default=1.5625e-07),
)

GLM4 = replace(
    GLM,
    name="glm4",
    architecture="Glm4ForCausalLM",
    names=Names(
        (
            in_layer("post_self_attn_layernorm.weight", "attn_post_norm"),
            in_layer("post_mlp_layernorm.weight", "ffn_post_norm"),
            *GLM.names.sources,
        ),
        SKIPPED,
    ),
    residual=Residual("sandwich"),
)

DENSE_FUSED_FAMILIES = (PHI3, GLM, GLM4)
