"""ERNIE 4.5: softmax scores with a bias that counts for the choice alone, and experts in some of the layers."""

from __future__ import annotations

from engine.spec.families.attention_rules import AttentionRule, RopeRule
from engine.spec.families.config import key
from engine.spec.families.expert_rules import MoeRule, SharedRule
from engine.spec.families.naming import DECODER, EXPERTS, NEXT_TOKEN, SHARED_EXPERTS, SKIPPED, values_in_layer
from engine.spec.families.record import Family
from engine.spec.names import Names, Skipped

WIDTH = key("moe_intermediate_size")

ERNIE4_5_MOE = Family(
    name="ernie4_5_moe",
    architecture="Ernie4_5_MoeForCausalLM",
    names=Names(
        (
            *DECODER,
            *EXPERTS,
            *SHARED_EXPERTS,
            values_in_layer("mlp.moe_statics.e_score_correction_bias", "router_choice_bias"),
            values_in_layer("mlp.gate.moe_statics.e_score_correction_bias", "router_choice_bias"),
        ),
        (*SKIPPED, Skipped("model.mtp_*", NEXT_TOKEN)),
    ),
    mixer=AttentionRule(rope=RopeRule(theta=500000.0, pairs=True)),
    moe=MoeRule(
        count=key("moe_num_experts", "num_experts"),
        top_k=key("moe_k", "num_experts_per_tok", default=6),
        width=WIDTH,
        normalize=True,
        choice_bias=True,
        shared=SharedRule(WIDTH, count=key("moe_num_shared_experts", default=2, null=0)),
        first_dense=key("moe_layer_start_index", default=1),
        last=key("moe_layer_end_index", default=-1),
        step=key("moe_layer_interval", default=1),
    ),
    norm_eps=key("rms_norm_eps", default=1e-5),
    only={"use_bias": (False,), "moe_use_aux_free": (True,), "moe_norm_min": (1e-12,)},
)

ERNIE_FAMILIES = (ERNIE4_5_MOE,)
