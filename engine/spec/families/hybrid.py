"""Families that mix attention with state spaces (Granite 4, Jamba, Nemotron-H) or with short convolutions (LFM2)."""

from __future__ import annotations

from engine.spec.families.attention_rules import ATTENTION_BIAS, AttentionRule, RopeRule
from engine.spec.families.config import key
from engine.spec.families.expert_rules import GroupRule, MoeRule, SharedRule
from engine.spec.families.layer_rules import RecurrentRule, SinglePartRule
from engine.spec.families.naming import (
    DECODER,
    EXPERTS,
    GATED,
    GRANITE_EXPERTS,
    SKIPPED,
    also_under,
    in_layer,
    projections,
    values_in_layer,
)
from engine.spec.families.record import Family
from engine.spec.families.state_spaces import ConvRule, Mamba2Rule, MambaRule
from engine.spec.names import Names, Source

STATE_SPACE = ("mamba", "linear_attention")  # what lists of layers call them
TOP_K = key("num_experts_per_tok")


def state_space(prefix: str) -> tuple[Source, ...]:
    """What both versions of a state space keep under the same names."""
    return (
        values_in_layer(f"{prefix}.conv1d.weight", "mamba.conv"),
        in_layer(f"{prefix}.conv1d.bias", "mamba.conv_bias"),
        values_in_layer(f"{prefix}.A_log", "mamba.a_log"),
        in_layer(f"{prefix}.D", "mamba.d"),
        in_layer(f"{prefix}.out_proj.weight", "mamba.o"),
        in_layer(f"{prefix}.out_proj.bias", "mamba.o_bias"),
    )


def state_space_2(prefix: str) -> tuple[Source, ...]:
    """A state space of the second version, whose one projection is for the gate, the convolution and the steps."""
    return (
        *state_space(prefix),
        in_layer(f"{prefix}.in_proj.weight", "mamba.gate", "mamba.in", "mamba.step"),
        in_layer(f"{prefix}.in_proj.bias", "mamba.gate_bias", "mamba.in_bias", "mamba.step_bias"),
        in_layer(f"{prefix}.dt_bias", "mamba.dt_bias"),
        in_layer(f"{prefix}.norm.weight", "mamba.norm"),
    )


# A Granite without experts has what others share as its only feed-forward part.
GRANITE_WIDTH = key("shared_intermediate_size")
GRANITE_MOE_HYBRID = Family(
    name="granitemoehybrid",
    architecture="GraniteMoeHybridForCausalLM",
    names=Names(
        (
            *DECODER,
            *GRANITE_EXPERTS,
            *EXPERTS,
            *state_space_2("mamba"),
            in_layer("shared_mlp.input_linear.weight", "shared.gate", "shared.up"),
            in_layer("shared_mlp.output_linear.weight", "shared.down"),
            in_layer("shared_mlp.input_linear.weight", "ffn.gate", "ffn.up"),
            in_layer("shared_mlp.output_linear.weight", "ffn.down"),
        ),
        SKIPPED,
    ),
    mixer=AttentionRule(
        scale=key("attention_multiplier", default=1.0),
        qkv_bias=ATTENTION_BIAS,
        o_bias=ATTENTION_BIAS,
        rope=RopeRule(when=("position_embedding_type", "rope")),
    ),
    recurrent=RecurrentRule(
        Mamba2Rule(
            heads=key("mamba_n_heads", default=128),
            head_dim=key("mamba_d_head", default="auto"),
            expand=key("mamba_expand", default=2),
            groups=key("mamba_n_groups", default=1),
            state_dim=key("mamba_d_state", default=256),
            kernel=key("mamba_d_conv", default=4),
            limits=key("time_step_limit", default=(0.0, float("inf"))),
            bias=key("mamba_proj_bias", default=False),
            conv_bias=key("mamba_conv_bias", default=True),
        ),
        names=STATE_SPACE,
    ),
    moe=MoeRule(
        count=key("num_local_experts", default=8),
        top_k=TOP_K,
        width=key("intermediate_size"),
        scoring="softmax_topk",
        shared=SharedRule(GRANITE_WIDTH),
    ),
    dense_width=GRANITE_WIDTH,
    embedding_scale=key("embedding_multiplier", default=1.0),
    residual_scale=key("residual_multiplier", default=1.0),
    logit_divisor=key("logits_scaling", default=1.0),
    only={"position_embedding_type": ("rope", "nope"), "normalization_function": ("rmsnorm",)},
)

LFM2_GATED = (("w1", "gate"), ("w3", "up"), ("w2", "down"))
LFM2_MOE = Family(
    name="lfm2_moe",
    architecture="Lfm2MoeForCausalLM",
    names=Names(
        (
            *DECODER,
            Source("model.embedding_norm.weight", ("final_norm",)),
            in_layer("operator_norm.weight", "attn_norm"),
            in_layer("ffn_norm.weight", "ffn_norm"),
            in_layer("self_attn.out_proj.weight", "attn.o"),
            in_layer("self_attn.q_layernorm.weight", "attn.q_norm"),
            in_layer("self_attn.k_layernorm.weight", "attn.k_norm"),
            in_layer("conv.in_proj.weight", "conv.before", "conv.after", "conv.x"),
            in_layer("conv.in_proj.bias", "conv.before_bias", "conv.after_bias", "conv.x_bias"),
            values_in_layer("conv.conv.weight", "conv.w"),
            in_layer("conv.conv.bias", "conv.w_bias"),
            in_layer("conv.out_proj.weight", "conv.o"),
            in_layer("conv.out_proj.bias", "conv.o_bias"),
            *(in_layer(f"feed_forward.{name}.weight", f"ffn.{kind}") for name, kind in LFM2_GATED),
            in_layer("feed_forward.gate.weight", "router"),
            in_layer("feed_forward.expert_bias", "router_choice_bias"),
            *(in_layer(f"feed_forward.experts.{{expert}}.{name}.weight", kind) for name, kind in LFM2_GATED),
            in_layer("feed_forward.experts.gate_up_proj", "gate", "up"),
            in_layer("feed_forward.experts.down_proj", "down"),
        ),
        SKIPPED,
    ),
    mixer=AttentionRule(qk_norm="head", rope=RopeRule(theta=1e6)),
    recurrent=RecurrentRule(
        ConvRule(kernel=key("conv_L_cache", default=3), bias=key("conv_bias", default=False)), names=("conv",)
    ),
    moe=MoeRule(
        count=key("num_experts"),
        top_k=TOP_K,
        width=key("moe_intermediate_size"),
        scoring="sigmoid",
        normalize=key("norm_topk_prob", default=True),
        scale=key("routed_scaling_factor", default=1.0),
        choice_bias=key("use_expert_bias", default=True),
        first_dense=key("num_dense_layers", default=2),
    ),
    norm_eps=key("norm_eps", default=1e-5),
)

JAMBA = Family(
    name="jamba",
    architecture="JambaForCausalLM",
    names=Names(
        (
            *DECODER,
            Source("model.final_layernorm.weight", ("final_norm",)),
            in_layer("pre_ff_layernorm.weight", "ffn_norm"),
            *state_space("mamba"),
            in_layer("mamba.in_proj.weight", "mamba.in", "mamba.gate"),
            in_layer("mamba.in_proj.bias", "mamba.in_bias", "mamba.gate_bias"),
            in_layer("mamba.x_proj.weight", "mamba.step_a", "mamba.b", "mamba.c"),
            in_layer("mamba.dt_proj.weight", "mamba.step"),
            in_layer("mamba.dt_proj.bias", "mamba.dt_bias"),
            in_layer("mamba.dt_layernorm.weight", "mamba.step_norm"),
            in_layer("mamba.b_layernorm.weight", "mamba.b_norm"),
            in_layer("mamba.c_layernorm.weight", "mamba.c_norm"),
            *projections("feed_forward", "ffn.", GATED),
            in_layer("feed_forward.router.weight", "router"),
            *projections("feed_forward.experts.{expert}", "", GATED),
            in_layer("feed_forward.experts.gate_up_proj", "gate", "up"),
            in_layer("feed_forward.experts.down_proj", "down"),
        ),
        SKIPPED,
    ),
    mixer=AttentionRule(rope=None),
    recurrent=RecurrentRule(
        MambaRule(
            expand=key("mamba_expand", default=2),
            state_dim=key("mamba_d_state", default=16),
            step_rank=key("mamba_dt_rank", default="auto"),
            kernel=key("mamba_d_conv", default=4),
            bias=key("mamba_proj_bias", default=False),
            conv_bias=key("mamba_conv_bias", default=True),
        ),
        names=STATE_SPACE,
        interval=key("attn_layer_period", default=8),
        offset=key("attn_layer_offset", default=4),
    ),
    moe=MoeRule(
        count=key("num_experts", "num_local_experts", default=16),
        top_k=key("num_experts_per_tok", default=2),
        width=key("intermediate_size"),
        step=key("expert_layer_period", default=2),
        offset=key("expert_layer_offset", default=1),
        fewest=2,
    ),
    only={"sliding_window": (), "mamba_inner_layernorms": (True,)},
)

# Every layer is one part, behind one norm. Time steps have the bounds of time_step_limit; time_step_min and
# time_step_max are of the steps that training begins with.
NEMOTRON_H = Family(
    name="nemotron_h",
    architecture="NemotronHForCausalLM",
    names=Names(
        also_under(
            "backbone.",
            (
                Source("model.embeddings.weight", ("embed",)),
                Source("model.norm_f.weight", ("final_norm",)),
                Source("lm_head.weight", ("head",)),
                in_layer("norm.weight", "attn_norm"),
                in_layer("norm.weight", "ffn_norm"),
                *state_space_2("mixer"),
                *projections("mixer", "attn.", ("q", "k", "v", "o")),
                *projections("mixer", "ffn.", ("up", "down")),
                in_layer("mixer.gate.weight", "router"),
                in_layer("mixer.gate.e_score_correction_bias", "router_choice_bias"),
                *projections("mixer.experts.{expert}", "", ("up", "down")),
                in_layer("mixer.experts.up_proj", "up"),
                in_layer("mixer.experts.down_proj", "down"),
                *projections("mixer.shared_experts", "shared.", ("up", "down")),
                in_layer("mixer.fc1_latent_proj.weight", "latent_in"),
                in_layer("mixer.fc2_latent_proj.weight", "latent_out"),
            ),
        ),
        SKIPPED,
    ),
    mixer=AttentionRule(head_dim=key("head_dim", "attention_head_dim", default=128), rope=None),
    recurrent=RecurrentRule(
        Mamba2Rule(
            heads=key("mamba_num_heads", default=128),
            head_dim=key("mamba_head_dim", default=64),
            expand=key("expand", "mamba_expand", default=2),
            groups=key("n_groups", "mamba_n_groups", default=8),
            state_dim=key("ssm_state_size", default=128),
            kernel=key("conv_kernel", "mamba_d_conv", default=4),
            limits=key("time_step_limit", "mamba_dt_limit", default=(0.0, float("inf"))),
            bias=key("use_bias", default=False),
            conv_bias=key("use_conv_bias", "mamba_conv_bias", default=True),
        ),
        names=STATE_SPACE,
    ),
    single_part=SinglePartRule(
        types=key("layers_block_type", "layer_types", default=()),
        pattern=key("hybrid_override_pattern", default=""),
        meanings={
            "recurrent": (*STATE_SPACE, "M"),
            "attention": ("attention", "full_attention", "*"),
            "experts": ("moe", "E"),
            "dense": ("mlp", "-"),
        },
    ),
    moe=MoeRule(
        count=key("n_routed_experts", default=0),
        top_k=TOP_K,
        width=key("moe_intermediate_size"),
        scoring="sigmoid",
        normalize=key("norm_topk_prob", default=True),
        scale=key("routed_scaling_factor", default=1.0),
        groups=GroupRule(key("n_group", default=1), key("topk_group", default=1), group_top=2),
        choice_bias=True,
        shared=SharedRule(key("moe_shared_expert_intermediate_size")),
        latent=key("moe_latent_size", default=0),
    ),
    hidden_act=key("mlp_hidden_act", default="relu2"),
    activations={"relu2": "relu2"},
    tested=("f32", "fp8", "nvfp4"),
    norm_eps=key("layer_norm_epsilon", "rms_norm_eps", default=1e-5),
    only={
        "hidden_act": ("silu", "swish"),
        "mamba_hidden_act": ("silu",),
        "attention_bias": (False,),
        "mlp_bias": (False,),
        "sliding_window": (),
    },
)

HYBRID_FAMILIES = (GRANITE_MOE_HYBRID, LFM2_MOE, JAMBA, NEMOTRON_H)
