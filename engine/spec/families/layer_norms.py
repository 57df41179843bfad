"""Families with experts and layer norms: Phi-3.5-MoE and DBRX."""

from __future__ import annotations

from engine.spec.families.attention_rules import ATTENTION_BIAS, AttentionRule, RopeRule, WindowRule
from engine.spec.families.config import key
from engine.spec.families.expert_rules import MoeRule
from engine.spec.families.naming import DECODER, EXPERTS, MIXTRAL_EXPERTS, SKIPPED, in_layer
from engine.spec.families.record import GATED, Family, NormRule
from engine.spec.families.sparse import COUNT, TOP_K
from engine.spec.names import Names, Source

PHIMOE = Family(
    name="phimoe",
    architecture="PhimoeForCausalLM",
    names=Names(
        (
            *DECODER,
            Source("model.norm.bias", ("final_norm_bias",)),
            Source("lm_head.bias", ("head_bias",)),
            in_layer("input_layernorm.bias", "attn_norm_bias"),
            in_layer("post_attention_layernorm.bias", "ffn_norm_bias"),
            *MIXTRAL_EXPERTS,
            in_layer("mlp.router.weight", "router"),
            *EXPERTS,
        ),
        SKIPPED,
    ),
    mixer=AttentionRule(qkv_bias=ATTENTION_BIAS, o_bias=ATTENTION_BIAS, rope=RopeRule(theta=1e6), window=WindowRule()),
    moe=MoeRule(
        count=COUNT,
        top_k=TOP_K,
        width=key("intermediate_size"),
        scoring="sparse_mixer",
        jitter=key("router_jitter_noise", default=0.01),
    ),
    dense_width=None,
    norm=NormRule("layer", bias=True),
    norm_eps=key("rms_norm_eps", default=1e-5),
    activations=GATED,
    head_bias=key("lm_head_bias", default=False),
    only={"num_experts_per_tok": (2,)},
)

BLOCK = "transformer.blocks.{layer}."

DBRX = Family(
    name="dbrx",
    architecture="DbrxForCausalLM",
    names=Names(
        (
            Source("transformer.wte.weight", ("embed",)),
            Source("transformer.norm_f.weight", ("final_norm",)),
            Source("lm_head.weight", ("head",)),
            Source(BLOCK + "norm_attn_norm.norm_1.weight", ("attn_norm",)),
            Source(BLOCK + "norm_attn_norm.attn.Wqkv.weight", ("attn.q", "attn.k", "attn.v")),
            Source(BLOCK + "norm_attn_norm.attn.out_proj.weight", ("attn.o",)),
            Source(BLOCK + "norm_attn_norm.norm_2.weight", ("ffn_norm",)),
            Source(BLOCK + "ffn.router.layer.weight", ("router",)),
            Source(BLOCK + "ffn.experts.mlp.w1", ("gate",), folded=True),
            Source(BLOCK + "ffn.experts.mlp.v1", ("up",), folded=True),
            Source(BLOCK + "ffn.experts.mlp.w2", ("down",), flipped=True, folded=True),
            *DECODER,  # GGUF files are presented under the names that others have
            *EXPERTS,
        ),
        SKIPPED,
    ),
    mixer=AttentionRule(
        kv_heads=key("attn_config.kv_n_heads", default=1),
        clip=key("attn_config.clip_qkv", default=0.0),
        rope=RopeRule(theta=key("attn_config.rope_theta", default=10000.0)),
    ),
    moe=MoeRule(
        count=key("ffn_config.moe_num_experts", default=4),
        top_k=key("ffn_config.moe_top_k", default=1),
        width=key("ffn_config.ffn_hidden_size", default=3584),
        normalize=key("ffn_config.moe_normalize_expert_weights", default=True, null=False),
    ),
    dense_width=None,
    norm=NormRule("layer"),
    norm_eps=1e-5,
    hidden_act=key("ffn_config.ffn_act_fn.name", default="silu"),
    activations=GATED,
    only={
        "ffn_config.moe_normalize_expert_weights": (1,),
        "ffn_config.uniform_expert_assignment": (False,),
    },
)

LAYER_NORM_FAMILIES = (PHIMOE, DBRX)
