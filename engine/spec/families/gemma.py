"""Gemma: norms before and after every part, windows in most layers; since Gemma 4 also experts beside a dense part."""

from __future__ import annotations

from dataclasses import replace

from engine.spec.families.attention_rules import (
    ATTENTION_BIAS,
    FULL,
    KV_HEADS,
    SLIDING,
    SLIDING_MOST,
    AttentionRule,
    RopeRule,
    WindowRule,
)
from engine.spec.families.config import key
from engine.spec.families.expert_rules import MoeRule, SharedRule
from engine.spec.families.gemma_dense import CAUSAL, NORMS, SANDWICH
from engine.spec.families.naming import (
    GATED,
    SKIPPED,
    in_layer,
    projections,
    zero_centred,
)
from engine.spec.families.record import DENSE_WIDTH, GELU_TANH, Family, LayerInputsRule, SharedKeysRule
from engine.spec.names import Names, Skipped, Source
from engine.spec.residual import Residual

WINDOW = WindowRule(
    size=key("sliding_window", default=4096),
    typed=True,
    layers=SLIDING_MOST,
    interval=key("sliding_window_pattern", default=6),
)
HIDDEN_ACT = key("hidden_activation", default="gelu_pytorch_tanh")

# --- Gemma 3

GEMMA3_FULL = AttentionRule(
    score_width=key("query_pre_attn_scalar", default=256),
    qk_norm="head",
    qkv_bias=ATTENTION_BIAS,
    o_bias=ATTENTION_BIAS,
    rope=RopeRule(theta=1e6, kind=FULL),
    window=WINDOW,
)
GEMMA3_SOURCES = zero_centred(SANDWICH, *NORMS, "attn.q_norm", "attn.k_norm")
GEMMA3 = Family(
    name="gemma3",
    architecture="Gemma3ForConditionalGeneration",
    names=Names(GEMMA3_SOURCES, SKIPPED),
    mixer=GEMMA3_FULL,
    windowed=replace(GEMMA3_FULL, rope=RopeRule(kind=SLIDING, own_theta=key("rope_local_base_freq", default=10000.0))),
    embedding_root=True,
    logit_softcap=key("final_logit_softcapping", default=0.0),
    residual=Residual("sandwich"),
    hidden_act=HIDDEN_ACT,
    activations=GELU_TANH,
    also=("gemma3_text",),
    inside="text_config",
    defaults={
        "vocab_size": 262208,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "max_position_embeddings": 131072,
    },
    only={**CAUSAL, "attn_logit_softcapping": ()},
)

# --- Gemma 4

GEMMA4_FULL = AttentionRule(
    kv_heads=key("this_layer.num_key_value_heads", "num_global_key_value_heads", default=KV_HEADS),
    head_dim=key("this_layer.head_dim", "global_head_dim", default=512),
    scale=1.0,
    qk_norm="head",
    qkv_bias=ATTENTION_BIAS,
    o_bias=ATTENTION_BIAS,
    rope=RopeRule(theta=1e6, kind=FULL),
    window=replace(WINDOW, size=key("sliding_window", default=512), interval=6, ends_full=True),
    v_norm=True,
    v_from_k=key("attention_k_eq_v", default=False),
)
GEMMA4_WINDOWED = replace(
    GEMMA4_FULL,
    kv_heads=key("this_layer.num_key_value_heads", default=KV_HEADS),
    head_dim=key("this_layer.head_dim", default=key("head_dim", default=256)),
    rope=RopeRule(kind=SLIDING),
    v_from_k=False,
)
GEMMA4_SOURCES = (
    *SANDWICH,
    in_layer("layer_scalar", "layer_scalar"),
    in_layer("router.proj.weight", "router"),
    in_layer("router.scale", "router_norm"),
    in_layer("router.per_expert_scale", "router_expert_scale"),
    in_layer("experts.gate_up_proj", "gate", "up"),
    in_layer("experts.down_proj", "down"),
    *projections("experts.{expert}", "", GATED),
    *projections("mlp", "shared.", GATED),
    in_layer("post_feedforward_layernorm_1.weight", "shared_post_norm"),
    in_layer("pre_feedforward_layernorm_2.weight", "experts_norm"),
    in_layer("post_feedforward_layernorm_2.weight", "experts_post_norm"),
    Source("model.embed_tokens_per_layer.weight", ("inputs.embed",)),
    Source("model.per_layer_model_projection.weight", ("inputs.proj",)),
    Source("model.per_layer_projection_norm.weight", ("inputs.norm",)),
    in_layer("per_layer_input_gate.weight", "input.gate"),
    in_layer("per_layer_projection.weight", "input.proj"),
    in_layer("post_per_layer_input_norm.weight", "input.post_norm"),
)
# Layers that read the keys and values of another may have some of their own, which nothing reads.
UNREAD = tuple(Skipped(f"*.self_attn.{name}.weight", "unread") for name in ("k_proj", "v_proj", "k_norm", "v_norm"))
GEMMA4 = Family(
    name="gemma4",
    architecture="Gemma4ForConditionalGeneration",
    names=Names(
        GEMMA4_SOURCES,
        (*SKIPPED, Skipped("*embed_vision.*", "vision"), Skipped("*embed_audio.*", "audio"), *UNREAD),
    ),
    mixer=GEMMA4_FULL,
    windowed=GEMMA4_WINDOWED,
    moe=MoeRule(
        count=key("num_experts", default=0),
        top_k=key("top_k_experts"),
        width=key("moe_intermediate_size"),
        normalize=True,
        shared=SharedRule(DENSE_WIDTH),
        apart=True,
        normed=True,
        expert_scale=True,
        enabled=key("enable_moe_block", default=False),
    ),
    embedding_root=True,
    logit_softcap=key("final_logit_softcapping", default=0.0),
    residual=Residual("sandwich", scaled=True),
    shared_keys=SharedKeysRule(
        key("num_kv_shared_layers", default=0), doubled=key("use_double_wide_mlp", default=False)
    ),
    layer_inputs=LayerInputsRule(
        key("hidden_size_per_layer_input", default=256), key("vocab_size_per_layer_input", default=262144)
    ),
    hidden_act=HIDDEN_ACT,
    activations=GELU_TANH,
    also=("gemma4_text",),
    inside="text_config",
    defaults={
        "rope_parameters": {
            SLIDING: {"rope_type": "default", "rope_theta": 10000.0},
            FULL: {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e6},
        }
    },
    only={"use_bidirectional_attention": ("vision",)},
)

GEMMA_FAMILIES = (GEMMA3, GEMMA4)
