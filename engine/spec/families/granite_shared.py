"""Granite with routed experts and shared ones beside them."""

from __future__ import annotations

from dataclasses import replace

from engine.spec.families.config import key
from engine.spec.families.naming import in_layer
from engine.spec.families.record import SharedRule
from engine.spec.families.sparse import GRANITE_MOE
from engine.spec.names import Names

assert GRANITE_MOE.moe is not None

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

GRANITE_SHARED_FAMILIES = (GRANITE_MOE_SHARED,)
