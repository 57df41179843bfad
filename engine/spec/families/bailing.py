"""inclusionAI's Ling and Ring: grouped attention (2.0), then Kimi's delta nets beside latent attention (3.0)."""

from __future__ import annotations

from dataclasses import replace

from engine.spec.families.attention_rules import AttentionRule, LatentRule, RopeRule
from engine.spec.families.config import Key, key
from engine.spec.families.expert_rules import GroupRule, MoeRule, SharedRule
from engine.spec.families.layer_rules import DeltaRule, RecurrentRule
from engine.spec.families.naming import (
    DECODER,
    EXPERTS,
    LATENT_ATTENTION,
    NEXT_TOKEN_LAYERS,
    SHARED_EXPERTS,
    SKIPPED,
    delta_net,
    in_layer,
)
from engine.spec.families.record import Family
from engine.spec.names import Names, Source

WIDTH = key("moe_intermediate_size")
MOE = MoeRule(
    count=key("num_experts", "num_local_experts", "n_routed_experts"),
    top_k=key("num_experts_per_tok", "num_experts_per_token"),
    width=WIDTH,
    scoring="sigmoid",
    normalize=key("norm_topk_prob", "moe_renormalize", default=True),
    scale=key("routed_scaling_factor", default=2.5),
    groups=GroupRule(key("n_group", "num_expert_group", default=1), key("topk_group", default=1), group_top=2),
    choice_bias=True,
    shared=SharedRule(WIDTH, count=key("num_shared_experts", "n_shared_experts", default=1)),
    first_dense=key("first_k_dense_replace", default=0),
    types=key("mlp_layer_types", default=()),
)
ROUTER = {
    "score_function": ("sigmoid",),
    "moe_router_enable_expert_bias": (True,),
    "multi_gate": (False,),
    "use_bias": (False,),
    "use_rmsnorm": (True,),
}


def _in_attention(sources: tuple[Source, ...]) -> tuple[Source, ...]:
    """The rules for checkpoints that call a layer's mixer `attention`, and its last projection `dense`."""
    renamed = (
        replace(source, template=source.template.replace("self_attn.o_proj", "attention.dense"))
        if "self_attn.o_proj" in source.template
        else replace(source, template=source.template.replace("self_attn", "attention"))
        for source in sources
    )
    return tuple(renamed)


SOURCES = (
    Source("model.word_embeddings.weight", ("embed",)),
    *_in_attention(DECODER),
    *EXPERTS,
    *SHARED_EXPERTS,
    in_layer("mlp.gate.expert_bias", "router_choice_bias"),
)

BAILING_MOE_V2 = Family(
    name="bailing_moe_v2",
    architecture="BailingMoeV2ForCausalLM",
    names=Names(
        (
            in_layer("attention.query_key_value.weight", "attn.q", "attn.k", "attn.v"),
            in_layer("attention.query_key_value.bias", "attn.q_bias", "attn.k_bias", "attn.v_bias"),
            in_layer("attention.query_layernorm.weight", "attn.q_norm"),
            in_layer("attention.key_layernorm.weight", "attn.k_norm"),
            *SOURCES,
        ),
        (*SKIPPED, NEXT_TOKEN_LAYERS),
    ),
    mixer=AttentionRule(
        qk_norm="head",
        qkv_bias=key("use_qkv_bias", "attention_bias", default=False),
        rope=RopeRule(theta=600000.0, part=key("partial_rotary_factor", default=1.0)),
    ),
    moe=MOE,
    only={**ROUTER, "use_qk_norm": (True,)},
    also_defaults={"sarvam_moe": {"rope_theta": 8e6}},
    also=("bailing_moe", "sarvam_moe"),  # Ling 2.0's own name, which older models without norms share; Sarvam's models
)

BAILING_HYBRID = Family(
    name="bailing_hybrid",
    architecture="BailingHybridForCausalLM",
    names=Names(
        (
            *delta_net("attention", output="dense"),
            in_layer("attention.g_proj.weight", "attn.gate"),
            *_in_attention(LATENT_ATTENTION),
            *SOURCES,
        ),
        (*SKIPPED, NEXT_TOKEN_LAYERS),
    ),
    # A head's rotated values are counted by qk_rope_head_dim; partial_rotary_factor says the same of head_dim.
    mixer=LatentRule(gated=True, rope=RopeRule(theta=6e6, pairs=True, part=Key((), 1.0))),
    recurrent=RecurrentRule(
        DeltaRule(
            key_heads=key("linear_num_heads", "num_attention_heads"),
            heads=key("linear_num_heads", "num_attention_heads"),
            k_dim=key("linear_head_dim", "head_dim"),
            v_dim=key("linear_head_dim", "head_dim"),
            kernel=key("linear_conv_kernel_dim", "short_conv_kernel_size", default=4),
            gate_activation="sigmoid",
            channelwise=True,
            bounded=key("kda_safe_gate", default=True),
            bound=key("kda_lower_bound", default=-5.0),
        ),
        names=("linear_attention",),
        interval=key("layer_group_size", default=6),
    ),
    moe=MOE,
    only=ROUTER,
)

BAILING_FAMILIES = (BAILING_MOE_V2, BAILING_HYBRID)
