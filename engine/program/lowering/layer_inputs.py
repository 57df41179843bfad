"""Lowering of what layers add at their ends: values of each token that are made once, for all layers."""

from __future__ import annotations

from engine.program.lowering.build import RESIDUAL, Build
from engine.program.lowering.feed_forward import activation_attrs
from engine.spec.schema import LayerInputs

INPUTS = "inputs"  # [layers][width], read by every layer


def lower_layer_inputs(build: Build, inputs: LayerInputs) -> None:
    """What the embedding is projected to, normed, and a row of a table; their sum is sqrt(2) times what layers read."""
    width = len(build.spec.layers) * inputs.width
    projected, looked_up = build.buffer(INPUTS, width), build.buffer("looked_up", width)
    build.kept.add(projected)
    build.op("embed", (), (looked_up,), (build.weight("inputs.embed"),), scale=inputs.width**0.5)
    build.linears(RESIDUAL, {projected: "inputs.proj"}, scale=build.spec.hidden_size**-0.5)
    build.norm(projected, projected, "inputs.norm", group=inputs.width)
    build.op("add", (projected, looked_up), (projected,), scale=1.0)


def lower_layer_input(build: Build, inputs: LayerInputs, part: str) -> None:
    """`x += norm(proj(act(gate(x)) * own / sqrt(2)))`; `part` is a buffer for what is added."""
    gate = build.buffer("input_gate", inputs.width)
    own = build.view(f"{INPUTS}.of_{build.layer}", INPUTS, build.layer * inputs.width, inputs.width)
    build.linears(RESIDUAL, {gate: "input.gate"})
    build.op("glu", (gate, own), (gate,), **activation_attrs(inputs.activation))
    build.linears(gate, {part: "input.proj"}, scale=2**-0.5)
    build.stream_norm(part, part, "input.post_norm")
    build.op("add", (RESIDUAL, part), (RESIDUAL,), scale=1.0)
