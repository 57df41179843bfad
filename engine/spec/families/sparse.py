"""Families with routed experts and grouped-query attention."""

from __future__ import annotations

from dataclasses import replace

from engine.spec.families.attention_rules import ATTENTION_BIAS, SLIDING_EVEN, AttentionRule, RopeRule, WindowRule
from engine.spec.families.config import key
from engine.spec.families.expert_rules import ActivationRule, MoeRule, SharedRule
from engine.spec.families.naming import (
    DECODER,
    EXPERTS,
    EXPERTS_FLIPPED,
    GPT_OSS_EXPERTS,
    GRANITE_EXPERTS,
    MIXTRAL_EXPERTS,
    SHARED_EXPERT,
    SKIPPED,
)
from engine.spec.families.record import Family
from engine.spec.names import Names

COUNT = key("num_experts", "num_local_experts")
TOP_K = key("num_experts_per_tok")
NORMALIZE = key("norm_topk_prob", default=False)
STEP = key("decoder_sparse_step", default=1)
DENSE_LAYERS = key("mlp_only_layers", default=())

IN_GGUF = (
    "f32", "q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "mxfp4", "q2_k", "q3_k", "q4_k", "q5_k", "q6_k", "iq4_nl", "iq4_xs",
)  # fmt: skip

QWEN2_MOE = Family(
    name="qwen2_moe",
    architecture="Qwen2MoeForCausalLM",
    names=Names((*DECODER, *EXPERTS, *SHARED_EXPERT), SKIPPED),
    mixer=AttentionRule(qkv_bias=key("qkv_bias", default=True)),
    moe=MoeRule(
        count=COUNT,
        top_k=TOP_K,
        width=key("moe_intermediate_size"),
        normalize=NORMALIZE,
        shared=SharedRule(key("shared_expert_intermediate_size"), gated=True),
        step=STEP,
        dense_layers=DENSE_LAYERS,
    ),
    only={"use_sliding_window": (False,)},
)

QWEN3_MOE_EXPERTS = MoeRule(
    count=COUNT,
    top_k=TOP_K,
    width=key("moe_intermediate_size"),
    normalize=NORMALIZE,
    step=STEP,
    dense_layers=DENSE_LAYERS,
)
QWEN3_MOE_ATTENTION = AttentionRule(
    qk_norm="head",
    qkv_bias=ATTENTION_BIAS,
    o_bias=ATTENTION_BIAS,
    window=WindowRule(enabled=key("use_sliding_window", default=False)),
)
QWEN3_MOE = Family(
    name="qwen3_moe",
    architecture="Qwen3MoeForCausalLM",
    names=Names((*DECODER, *EXPERTS), SKIPPED),
    mixer=QWEN3_MOE_ATTENTION,
    moe=QWEN3_MOE_EXPERTS,
    tested=(*IN_GGUF, "fp8", "mxfp8", "nvfp4", "int4_32", "int4_32z", "int4_128z"),
    also=("qwen3_omni_moe_text",),
)

# Its experts are published in one tensor a layer, [in, out], and saved again as [out, in].
QWEN3_VL_MOE = replace(
    QWEN3_MOE,
    name="qwen3_vl_moe",
    architecture="Qwen3VLMoeForConditionalGeneration",
    names=Names((*DECODER, *EXPERTS_FLIPPED, *EXPERTS), SKIPPED),
    mixer=replace(QWEN3_MOE_ATTENTION, rope=RopeRule(theta=500000.0)),
    moe=replace(QWEN3_MOE_EXPERTS, normalize=True),
    only={"norm_topk_prob": (True,)},
    also=("qwen3_vl_moe_text",),
    tested=("f32",),
)

MIXTRAL = Family(
    name="mixtral",
    architecture="MixtralForCausalLM",
    names=Names((*DECODER, *MIXTRAL_EXPERTS, *EXPERTS), SKIPPED),
    mixer=AttentionRule(rope=RopeRule(theta=1e6), window=WindowRule()),
    moe=MoeRule(count=COUNT, top_k=TOP_K, width=key("intermediate_size"), normalize=True),
    dense_width=None,
    norm_eps=key("rms_norm_eps", default=1e-5),
    tested=(*IN_GGUF, "nvfp4"),
)

OLMOE = Family(
    name="olmoe",
    architecture="OlmoeForCausalLM",
    names=Names((*DECODER, *EXPERTS), SKIPPED),
    mixer=AttentionRule(
        qk_norm="full", qkv_bias=ATTENTION_BIAS, o_bias=ATTENTION_BIAS, clip=key("clip_qkv", default=0.0)
    ),
    moe=MoeRule(count=COUNT, top_k=TOP_K, width=key("intermediate_size"), normalize=NORMALIZE),
    dense_width=None,
    norm_eps=key("rms_norm_eps", default=1e-5),
)

GRANITE_MOE = Family(
    name="granitemoe",
    architecture="GraniteMoeForCausalLM",
    names=Names((*DECODER, *GRANITE_EXPERTS, *EXPERTS), SKIPPED),
    mixer=AttentionRule(
        scale=key("attention_multiplier", default=1.0),
        qkv_bias=ATTENTION_BIAS,
        o_bias=ATTENTION_BIAS,
    ),
    moe=MoeRule(count=COUNT, top_k=TOP_K, width=key("intermediate_size"), scoring="softmax_topk"),
    dense_width=None,
    embedding_scale=key("embedding_multiplier", default=1.0),
    residual_scale=key("residual_multiplier", default=1.0),
    logit_divisor=key("logits_scaling", default=1.0),
)

GPT_OSS = Family(
    name="gpt_oss",
    architecture="GptOssForCausalLM",
    names=Names((*DECODER, *GPT_OSS_EXPERTS), SKIPPED),
    mixer=AttentionRule(
        head_dim=key("head_dim", default=64),
        qkv_bias=key("attention_bias", default=True),
        o_bias=key("attention_bias", default=True),
        sinks=True,
        rope=RopeRule(theta=150000.0),
        window=WindowRule(typed=True, layers=SLIDING_EVEN),
    ),
    moe=MoeRule(
        count=COUNT,
        top_k=TOP_K,
        width=key("intermediate_size"),
        scoring="softmax_topk",
        linear_bias=True,
        expert_bias=True,
        clamped=ActivationRule(key("swiglu_alpha", default=1.702), key("swiglu_limit", default=7.0)),
    ),
    dense_width=None,
    norm_eps=key("rms_norm_eps", default=1e-5),
    defaults={
        "rope_scaling": {
            "rope_type": "yarn",
            "factor": 32.0,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "truncate": False,
            "original_max_position_embeddings": 4096,
        }
    },
    tested=("f32", "mxfp4"),
)

SPARSE_FAMILIES = (QWEN2_MOE, QWEN3_MOE, QWEN3_VL_MOE, MIXTRAL, OLMOE, GRANITE_MOE, GPT_OSS)
