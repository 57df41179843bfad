"""Gemma: norms kept as what is added to one, scaled embeddings, GELU gates; Gemma 2 norms what parts add too."""

from __future__ import annotations

from dataclasses import replace

from engine.spec.families.attention_rules import ATTENTION_BIAS, SLIDING_EVEN, AttentionRule, WindowRule
from engine.spec.families.config import key
from engine.spec.families.naming import DECODER, SKIPPED, in_layer, zero_centred
from engine.spec.families.record import GELU_TANH, Family
from engine.spec.names import Names
from engine.spec.residual import Residual

NORMS = ("attn_norm", "ffn_norm", "attn_post_norm", "ffn_post_norm", "final_norm")
CAUSAL = {"use_bidirectional_attention": (False,)}

ATTENTION = AttentionRule(head_dim=key("head_dim", default=256), qkv_bias=ATTENTION_BIAS, o_bias=ATTENTION_BIAS)

# The first release wrote "gelu" and meant the approximation.
GEMMA = Family(
    name="gemma",
    architecture="GemmaForCausalLM",
    names=Names(zero_centred(DECODER, *NORMS), SKIPPED),
    mixer=ATTENTION,
    hidden_act=key("hidden_act", "hidden_activation", default="gelu_pytorch_tanh"),
    activations={**GELU_TANH, "gelu": "gelu_tanh"},
    embedding_root=True,
    only=CAUSAL,
)

SANDWICH = (
    in_layer("post_attention_layernorm.weight", "attn_post_norm"),
    in_layer("pre_feedforward_layernorm.weight", "ffn_norm"),
    in_layer("post_feedforward_layernorm.weight", "ffn_post_norm"),
    *(source for source in DECODER if source.holds != ("ffn_norm",)),
)

GEMMA2 = replace(
    GEMMA,
    name="gemma2",
    architecture="Gemma2ForCausalLM",
    names=Names(zero_centred(SANDWICH, *NORMS), SKIPPED),
    mixer=replace(
        ATTENTION,
        score_width=key("query_pre_attn_scalar", default=256),
        softcap=key("attn_logit_softcapping", default=50.0, null=0.0),
        window=WindowRule(size=key("sliding_window", default=4096, null=0), typed=True, layers=SLIDING_EVEN),
    ),
    residual=Residual("sandwich"),
    hidden_act=key("hidden_activation", default="gelu_pytorch_tanh"),
    activations={**GELU_TANH, "gelu": "gelu"},
    logit_softcap=key("final_logit_softcapping", default=30.0, null=0.0),
)

GEMMA_DENSE_FAMILIES = (GEMMA, GEMMA2)
