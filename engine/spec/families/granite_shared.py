"""Granite with routed experts and shared ones beside them, or with windows and sinks."""

from __future__ import annotations

from dataclasses import replace

from engine.spec.families.attention_rules import SLIDING_MOST, AttentionRule, RopeRule, WindowRule
from engine.spec.families.config import key
from engine.spec.families.dense import GRANITE
from engine.spec.families.expert_rules import SharedRule
from engine.spec.families.naming import in_layer
from engine.spec.families.sparse import GRANITE_MOE
from engine.spec.names import Names

assert GRANITE_MOE.moe is not None
ATTENTION = GRANITE_MOE.mixer
assert isinstance(ATTENTION, AttentionRule)

GRANITE_MOE_SHARED = replace(
    GRANITE_MOE,
    name="granitemoeshared",
    architecture="GraniteMoeSharedForCausalLM",
    names=Names(
        (
            *GRANITE_MOE.names.sources,
            in_layer("shared_mlp.input_linear.weight", "shared.gate", "shared.up"),
            in_layer("shared_mlp.output_linear.weight", "shared.down"),
        ),
        GRANITE_MOE.names.skipped,
    ),
    moe=replace(GRANITE_MOE.moe, shared=SharedRule(key("shared_intermediate_size", default=0))),
)

# Every layer may have positions of its own, or none.
WINDOWED = replace(
    ATTENTION,
    sinks=True,
    rope=RopeRule(by_layer=key("layer_rope_theta", default=())),
    window=WindowRule(
        size=key("sliding_window", default=128, null=0), typed=True, layers=SLIDING_MOST, interval=4, first=1
    ),
)
GRANITE_MOE_SWA = replace(
    GRANITE_MOE_SHARED,
    name="granitemoe_swa",
    architecture="GraniteMoeSWAForCausalLM",
    names=Names(
        (
            *GRANITE_MOE_SHARED.names.sources,
            in_layer("block_sparse_moe.router.weight", "router"),
            in_layer("block_sparse_moe.experts.gate_up_proj", "gate", "up"),
            in_layer("block_sparse_moe.experts.down_proj", "down"),
        ),
        GRANITE_MOE.names.skipped,
    ),
    mixer=WINDOWED,
)

GRANITE_SWA = replace(
    GRANITE,
    name="granite_swa",
    architecture="GraniteSWAForCausalLM",
    mixer=WINDOWED,
    norm_eps=key("rms_norm_eps", default=1e-5),
)

GRANITE_SHARED_FAMILIES = (GRANITE_MOE_SHARED, GRANITE_MOE_SWA, GRANITE_SWA)
