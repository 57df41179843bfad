"""Families whose layers with a window attend in another way than those that see everything."""

from __future__ import annotations

from dataclasses import replace

from engine.spec.families.config import key
from engine.spec.families.naming import DECODER, EXPERTS, SHARED_EXPERTS, SKIPPED, in_layer
from engine.spec.families.record import SLIDING_MOST, AttentionRule, Family, RopeRule, SharedRule, WindowRule
from engine.spec.families.sigmoid_routed import LAYER_KINDS, MOE
from engine.spec.names import Names

# K-EXAONE: positions are rotated in the layers with a window alone.
EXAONE_EVERYWHERE = AttentionRule(
    qk_norm="head",
    rope=None,
    window=WindowRule(
        size=key("sliding_window"),
        typed=True,
        layers=SLIDING_MOST,
        interval=key("sliding_window_pattern", default=4),
    ),
)
EXAONE_MOE = Family(
    name="exaone_moe",
    architecture="ExaoneMoeForCausalLM",
    names=Names(
        (
            *DECODER,
            *EXPERTS,
            *SHARED_EXPERTS,
            in_layer("mlp.e_score_correction_bias", "router_choice_bias"),
        ),
        SKIPPED,
    ),
    mixer=EXAONE_EVERYWHERE,
    windowed=replace(EXAONE_EVERYWHERE, rope=RopeRule()),
    moe=replace(
        MOE,
        count=key("num_experts"),
        scale=key("routed_scaling_factor", default=2.5),
        shared=SharedRule(key("moe_intermediate_size"), count=key("num_shared_experts", default=1)),
        first_dense=key("first_k_dense_replace", default=1),
        types=LAYER_KINDS,
    ),
    norm_eps=key("rms_norm_eps", default=1e-5),
    only={"scoring_func": ("sigmoid",), "topk_method": ("noaux_tc",)},
)

LOCAL_FAMILIES = (EXAONE_MOE,)
