"""Families with gated delta nets: Qwen's since Qwen3-Next, Lara Mini, and Kimi Linear."""

from __future__ import annotations

from dataclasses import replace

from engine.spec.families.attention_rules import (
    ATTENTION_BIAS,
    FULL,
    SLIDING,
    SLIDING_LISTED,
    AttentionRule,
    LatentRule,
    RopeRule,
    WindowRule,
)
from engine.spec.families.config import key
from engine.spec.families.expert_rules import GroupRule, MoeRule, SharedRule
from engine.spec.families.layer_rules import DeltaRule, RecurrentRule
from engine.spec.families.naming import (
    DECODER,
    EXPERTS,
    GATED,
    LATENT_ATTENTION,
    MIXTRAL_EXPERTS,
    NEXT_TOKEN_LAYERS,
    SHARED_EXPERT,
    SKIPPED,
    also_under,
    delta_net,
    in_layer,
    projections,
    values_in_layer,
    zero_centred,
)
from engine.spec.families.record import Family
from engine.spec.names import PER_HEAD, Names

LINEAR = ("linear_attention",)
WIDTH = key("moe_intermediate_size")

# --- Qwen

QWEN_ATTENTION = AttentionRule(
    head_dim=key("head_dim", default=256),
    qk_norm="head",
    gated=True,
    rope=RopeRule(part=key("partial_rotary_factor", default=0.25)),
)
QWEN_DELTA = RecurrentRule(
    DeltaRule(
        key_heads=key("linear_num_key_heads"),
        heads=key("linear_num_value_heads"),
        k_dim=key("linear_key_head_dim"),
        v_dim=key("linear_value_head_dim"),
        kernel=key("linear_conv_kernel_dim"),
    ),
    names=LINEAR,
    interval=key("full_attention_interval", default=4),
)
QWEN_SHARED = SharedRule(key("shared_expert_intermediate_size"), gated=True)
# Norms are kept as what is added to one, but for those behind a delta net.
NORMS = ("final_norm", "attn_norm", "ffn_norm", "attn.q_norm", "attn.k_norm")
DELTA_NET = (
    values_in_layer("linear_attn.conv1d.weight", "delta.conv"),
    in_layer("linear_attn.A_log", "delta.a_log"),
    in_layer("linear_attn.dt_bias", "delta.dt_bias"),
    in_layer("linear_attn.norm.weight", "delta.norm"),
    in_layer("linear_attn.out_proj.weight", "delta.o"),
)
QWEN_SOURCES = (
    in_layer("self_attn.q_proj.weight", "attn.q", "attn.gate", arrangement=PER_HEAD),
    *zero_centred(DECODER, *NORMS),
    *EXPERTS,
    *SHARED_EXPERT,
    *DELTA_NET,
)

# Projections that lie together: of each key head's group of heads, or of all heads of a kind.
BY_HEADS = (
    in_layer("linear_attn.in_proj_qkvz.weight", "delta.q", "delta.k", "delta.v", "delta.gate", arrangement=PER_HEAD),
    in_layer("linear_attn.in_proj_ba.weight", "delta.beta", "delta.decay", arrangement=PER_HEAD),
)
BY_KINDS = (
    in_layer("linear_attn.in_proj_qkv.weight", "delta.q", "delta.k", "delta.v"),
    in_layer("linear_attn.in_proj_z.weight", "delta.gate"),
    in_layer("linear_attn.in_proj_b.weight", "delta.beta"),
    in_layer("linear_attn.in_proj_a.weight", "delta.decay"),
)

QWEN3_NEXT = Family(
    name="qwen3_next",
    architecture="Qwen3NextForCausalLM",
    names=Names((*QWEN_SOURCES, *BY_HEADS, *BY_KINDS), SKIPPED),
    mixer=QWEN_ATTENTION,
    recurrent=QWEN_DELTA,
    moe=MoeRule(
        count=key("num_experts", default=512),
        top_k=key("num_experts_per_tok"),
        width=WIDTH,
        normalize=key("norm_topk_prob", default=True),
        shared=QWEN_SHARED,
        step=key("decoder_sparse_step", default=1),
        dense_layers=key("mlp_only_layers", default=()),
    ),
    only={"attention_bias": (False,), "use_sliding_window": (False,)},
    tested=("f32", "fp8"),
)

QWEN3_5_NAMES = Names(also_under("model.language_model.", (*QWEN_SOURCES, *BY_KINDS)), SKIPPED)
QWEN3_5_MOE = Family(
    name="qwen3_5_moe",
    architecture="Qwen3_5MoeForConditionalGeneration",
    names=QWEN3_5_NAMES,
    inside="text_config",
    mixer=QWEN_ATTENTION,
    recurrent=QWEN_DELTA,
    moe=MoeRule(
        count=key("num_experts"),
        top_k=key("num_experts_per_tok"),
        width=WIDTH,
        normalize=True,
        shared=QWEN_SHARED,
    ),
    dense_width=None,
    only={"attention_bias": (False,), "attn_output_gate": (True,), "norm_topk_prob": (True,)},
    tested=("f32", "fp8", "nvfp4"),
    also=("qwen3_5_moe_text",),  # the decoder by itself
)

QWEN3_5 = Family(
    name="qwen3_5",
    architecture="Qwen3_5ForConditionalGeneration",
    names=QWEN3_5_NAMES,
    inside="text_config",
    mixer=QWEN_ATTENTION,
    recurrent=QWEN_DELTA,
    only={"attention_bias": (False,), "attn_output_gate": (True,)},
    also=("qwen3_5_text",),
)

# --- Translated's Lara Mini: positions are rotated in the layers with a window alone

LARA_EVERYWHERE = AttentionRule(
    head_dim=key("head_dim", default=128),
    qk_norm="head",
    qkv_bias=ATTENTION_BIAS,
    o_bias=ATTENTION_BIAS,
    rope=None,
    window=WindowRule(size=key("sliding_window", default=512), typed=True, layers=SLIDING_LISTED),
)
LARA_MINI = Family(
    name="lara_mini",
    architecture="LaraMiniForCausalLM",
    names=Names(
        (
            *DECODER,
            *EXPERTS,
            *projections("mlp.shared_expert", "shared.", GATED),
            in_layer(
                "linear_attn.in_proj.weight",
                *("delta.q", "delta.k", "delta.v", "delta.gate", "delta.beta", "delta.decay"),
            ),
            in_layer("linear_attn.out_norm.weight", "delta.norm"),
            *DELTA_NET,
        ),
        SKIPPED,
    ),
    mixer=LARA_EVERYWHERE,
    windowed=replace(LARA_EVERYWHERE, rope=RopeRule()),
    recurrent=RecurrentRule(
        DeltaRule(
            key_heads=key("linear_num_key_heads", default=8),
            heads=key("linear_num_value_heads", default=16),
            k_dim=key("linear_key_head_dim", default=128),
            v_dim=key("linear_value_head_dim", default=128),
            kernel=key("linear_conv_kernel_dim", default=4),
        ),
        names=LINEAR,
        attending=(FULL, SLIDING),
    ),
    moe=MoeRule(
        count=key("num_experts", default=128),
        top_k=key("num_experts_per_tok", default=4),
        width=WIDTH,
        normalize=key("norm_topk_prob", default=True),
        shared=SharedRule(key("shared_expert_intermediate_size", default=512)),
    ),
    dense_width=None,
    defaults={"tie_word_embeddings": True},
)

# --- Kimi

KIMI_LINEAR = Family(
    name="kimi_linear",
    architecture="KimiLinearForCausalLM",
    names=Names(
        (
            *LATENT_ATTENTION,
            *DECODER,
            *MIXTRAL_EXPERTS,
            in_layer("block_sparse_moe.gate.e_score_correction_bias", "router_choice_bias"),
            *projections("block_sparse_moe.shared_experts", "shared.", GATED),
            *projections("block_sparse_moe", "ffn.", GATED),  # as transformers writes dense layers
            *delta_net("self_attn", decay="f_b_proj", gate="g_b_proj"),
            in_layer("self_attn.f_a_proj.weight", "delta.decay_a"),
            in_layer("self_attn.g_a_proj.weight", "delta.gate_a"),
        ),
        (*SKIPPED, NEXT_TOKEN_LAYERS),
    ),
    mixer=LatentRule(rope=None),
    recurrent=RecurrentRule(
        DeltaRule(
            key_heads=key("linear_attn_config.num_heads", "linear_num_heads"),
            heads=key("linear_attn_config.num_heads", "linear_num_heads"),
            k_dim=key("linear_attn_config.head_dim", "linear_head_dim"),
            v_dim=key("linear_attn_config.head_dim", "linear_head_dim"),
            kernel=key("linear_attn_config.short_conv_kernel_size", "linear_conv_kernel_dim"),
            gate_activation="sigmoid",
            low_rank=True,
        ),
        names=LINEAR,
        numbers=key("linear_attn_config.kda_layers", default=()),
    ),
    moe=MoeRule(
        count=key("num_experts", "num_local_experts"),
        top_k=key("num_experts_per_token", "num_experts_per_tok"),
        width=WIDTH,
        scoring="sigmoid",
        normalize=key("moe_renormalize", "norm_topk_prob", default=True),
        scale=key("routed_scaling_factor", default=2.446),
        groups=GroupRule(key("num_expert_group", "n_group", default=1), key("topk_group", default=1), group_top=2),
        choice_bias=True,
        shared=SharedRule(WIDTH, count=key("num_shared_experts", "n_shared_experts", default=1)),
        first_dense=key("first_k_dense_replace", default=1),
        types=key("mlp_layer_types", default=()),
    ),
    norm_eps=key("rms_norm_eps", default=1e-5),
    only={
        "moe_router_activation_func": ("sigmoid",),
        "mla_use_nope": (True,),
        "moe_layer_freq": (1,),
        "use_grouped_topk": (True,),
        "num_nextn_predict_layers": (0,),
    },
)

DELTA_FAMILIES = (QWEN3_NEXT, QWEN3_5, QWEN3_5_MOE, LARA_MINI, KIMI_LINEAR)
