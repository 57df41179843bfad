"""OLMo: parts read the residual stream as it is, and what they make is normed before it is added."""

from __future__ import annotations

from engine.spec.families.attention_rules import ATTENTION_BIAS, AttentionRule, RopeRule
from engine.spec.families.config import key
from engine.spec.families.expert_rules import MoeRule
from engine.spec.families.naming import DECODER, EXPERTS, SKIPPED, in_layer
from engine.spec.families.record import GATED, Family
from engine.spec.families.sparse import COUNT, NORMALIZE, TOP_K
from engine.spec.names import Names
from engine.spec.residual import Residual

NORMED_AFTER = (
    in_layer("post_attention_layernorm.weight", "attn_post_norm"),
    in_layer("post_feedforward_layernorm.weight", "ffn_post_norm"),
    *(source for source in DECODER if source.holds not in (("attn_norm",), ("ffn_norm",))),
)

OLMO2 = Family(
    name="olmo2",
    architecture="Olmo2ForCausalLM",
    names=Names(NORMED_AFTER, SKIPPED),
    mixer=AttentionRule(qk_norm="full", qkv_bias=ATTENTION_BIAS, o_bias=ATTENTION_BIAS),
    residual=Residual("post"),
    activations=GATED,
    norm_eps=key("rms_norm_eps", default=1e-5),
)

FLEX_OLMO = Family(
    name="flex_olmo",
    architecture="FlexOlmoForCausalLM",
    names=Names((*NORMED_AFTER, *EXPERTS), SKIPPED),
    mixer=AttentionRule(qk_norm="full", qkv_bias=ATTENTION_BIAS, o_bias=ATTENTION_BIAS, rope=RopeRule(theta=500000.0)),
    moe=MoeRule(count=COUNT, top_k=TOP_K, width=key("intermediate_size"), normalize=NORMALIZE),
    dense_width=None,
    residual=Residual("post"),
    activations=GATED,
)

POST_NORM_FAMILIES = (OLMO2, FLEX_OLMO)
