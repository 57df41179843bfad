"""JetMoe: a router in every part chooses the experts of attention, which make queries and outputs, and of the rest."""

from __future__ import annotations

from engine.spec.families.attention_rules import AttentionRule, QueryExpertsRule
from engine.spec.families.config import key
from engine.spec.families.expert_rules import MoeRule
from engine.spec.families.naming import DECODER, SKIPPED, in_layer
from engine.spec.families.record import Family
from engine.spec.families.sparse import TOP_K
from engine.spec.names import BLOCKS, Names

COUNT = key("num_local_experts", default=8)

JETMOE = Family(
    name="jetmoe",
    architecture="JetMoeForCausalLM",
    names=Names(
        (
            *DECODER,
            in_layer("self_attention.kv_proj.weight", "attn.k", "attn.v"),
            in_layer("self_attention.experts.router.layer.weight", "attn.router"),
            in_layer("self_attention.experts.input_linear.weight", "attn.q", arrangement=BLOCKS),
            in_layer("self_attention.experts.output_linear.weight", "attn.o", arrangement=BLOCKS),
            in_layer("self_attention.experts.bias", "attn.o_bias"),
            in_layer("mlp.router.layer.weight", "router"),
            in_layer("mlp.input_linear.weight", "gate", "up"),
            in_layer("mlp.output_linear.weight", "down"),
            in_layer("mlp.bias", "experts_bias"),
        ),
        SKIPPED,
    ),
    mixer=AttentionRule(
        heads=key("num_attention_heads", default=0),
        kv_heads=key("num_key_value_heads", default=16),
        head_dim=key("kv_channels", "head_dim", default=128),
        o_bias=True,
        experts=QueryExpertsRule(COUNT, TOP_K),
    ),
    moe=MoeRule(
        count=COUNT,
        top_k=TOP_K,
        width=key("intermediate_size", default=5632),
        scoring="softmax_topk",
        bias=True,
    ),
    dense_width=None,
    norm_eps=1e-6,  # of the norms within layers, whatever config.json says of the last
    final_norm_eps=key("rms_norm_eps", default=1e-6),
    hidden_act=key("activation_function", default="silu"),
    defaults={"tie_word_embeddings": True},
)

JET_FAMILIES = (JETMOE,)
