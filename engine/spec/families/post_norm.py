"""OLMo: parts read the residual stream as it is, and what they make is normed before it is added."""

from __future__ import annotations

from engine.spec.families.attention_rules import ATTENTION_BIAS, AttentionRule, RopeRule
from engine.spec.families.config import Key, key
from engine.spec.families.expert_rules import MoeRule
from engine.spec.families.layer_rules import DeltaRule, RecurrentRule
from engine.spec.families.naming import DECODER, EXPERTS, SKIPPED, delta_net, in_layer, values_in_layer
from engine.spec.families.record import GATED, Family
from engine.spec.families.sparse import COUNT, NORMALIZE, TOP_K
from engine.spec.names import Names
from engine.spec.residual import PRE_NORM, Residual

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

# Layers with a state are normed before their parts, those that attend after them.
LINEAR = "linear_attn"
OLMO_HYBRID = Family(
    name="olmo_hybrid",
    architecture="OlmoHybridForCausalLM",
    names=Names(
        (
            *NORMED_AFTER,
            in_layer("feedforward_layer_norm.weight", "attn_post_norm"),  # as transformers saves it
            *delta_net(LINEAR, decay="a_proj"),
            values_in_layer(f"{LINEAR}.conv1d.weight", "delta.conv"),
            *(
                in_layer(f"{name}.weight", f"{part}_norm")
                for part, names in (
                    ("attn", ("attention_layer_norm", "input_layernorm")),
                    ("ffn", ("feedforward_layer_norm", "post_attention_layernorm")),
                )
                for name in names
            ),
        ),
        SKIPPED,
    ),
    mixer=AttentionRule(qk_norm="full", qkv_bias=ATTENTION_BIAS, o_bias=ATTENTION_BIAS, rope=RopeRule(nullable=True)),
    recurrent=RecurrentRule(
        DeltaRule(
            key_heads=key("linear_num_key_heads", "num_attention_heads"),
            heads=key("linear_num_value_heads", "num_attention_heads"),
            k_dim=key("linear_key_head_dim"),
            v_dim=key("linear_value_head_dim", default=Key(("linear_key_head_dim",), times=2)),
            kernel=key("linear_conv_kernel_dim", default=4),
            doubled_beta=key("linear_allow_neg_eigval", default=True),
            norm_eps=1e-5,
        ),
        names=("linear_attention",),
        interval=4,
    ),
    residual=Residual("post"),
    recurrent_residual=PRE_NORM,
)

POST_NORM_FAMILIES = (OLMO2, OLMO_HYBRID, FLEX_OLMO)
