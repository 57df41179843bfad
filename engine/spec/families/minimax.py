"""MiniMax-01 and M1: linear attention in most layers, and a residual stream that is normed where parts read it."""

from __future__ import annotations

from engine.spec.families.attention_rules import AttentionRule, RopeRule
from engine.spec.families.config import key
from engine.spec.families.expert_rules import MoeRule
from engine.spec.families.layer_rules import LinearRule, RecurrentRule
from engine.spec.families.naming import DECODER, EXPERTS, MIXTRAL_EXPERTS, SKIPPED, in_layer
from engine.spec.families.record import Family, StreamRule
from engine.spec.names import PER_HEAD, Names, Skipped

TABLES = ("slope_rate", "query_decay", "key_decay", "diagonal_decay")  # which transformers keeps beside the weights

MINIMAX = Family(
    name="minimax",
    architecture="MiniMaxForCausalLM",
    names=Names(
        (
            in_layer("self_attn.qkv_proj.weight", "linear.q", "linear.k", "linear.v", arrangement=PER_HEAD),
            in_layer("self_attn.output_gate.weight", "linear.gate"),
            in_layer("self_attn.norm.weight", "linear.norm"),
            in_layer("self_attn.out_proj.weight", "linear.o"),
            *DECODER,
            *MIXTRAL_EXPERTS,
            *EXPERTS,
        ),
        (*SKIPPED, *(Skipped(f"*.self_attn.{table}", "decay-table") for table in TABLES)),
    ),
    mixer=AttentionRule(
        rope=RopeRule(theta=1e6, part=key("partial_rotary_factor", default=1.0), dim=key("rotary_dim")),
    ),
    recurrent=RecurrentRule(LinearRule(), names=("linear_attention",), marks=key("attn_type_list", default=())),
    moe=MoeRule(
        count=key("num_local_experts", "num_experts"),
        top_k=key("num_experts_per_tok"),
        width=key("intermediate_size"),
        normalize=True,
    ),
    dense_width=None,
    norm_eps=key("rms_norm_eps", default=1e-5),
    residual=StreamRule(
        attention=(
            key("full_attn_alpha_factor", "layernorm_full_attention_alpha", default=1.0),
            key("full_attn_beta_factor", "layernorm_full_attention_beta", default=1.0),
        ),
        recurrent=(
            key("linear_attn_alpha_factor", "layernorm_linear_attention_alpha", default=1.0),
            key("linear_attn_beta_factor", "layernorm_linear_attention_beta", default=1.0),
        ),
        ffn=(
            key("mlp_alpha_factor", "layernorm_mlp_alpha", default=1.0),
            key("mlp_beta_factor", "layernorm_mlp_beta", default=1.0),
        ),
    ),
    only={"postnorm": (True,), "shared_intermediate_size": (0,), "sliding_window": (), "attention_bias": (False,)},
    also=("minimax_text_01", "minimax_m1"),
)

MINIMAX_FAMILIES = (MINIMAX,)
