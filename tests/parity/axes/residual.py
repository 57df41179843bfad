"""Axes of the residual stream: where norms stand, what they are, bounds and activations."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from engine.program.weights import Floats
from engine.spec.residual import Norm, Residual
from engine.spec.schema import Activation, Dense, Moe, Spec

from .changes import Change, attention, unless_same

OTHER_ACTIVATION = {"gelu_tanh": "silu", "gelu": "silu", "silu": "gelu_tanh"}


def _other_form(spec: Spec) -> Spec | None:
    """Without the norms before parts, where there are norms after them. Other forms would lack norms."""
    layers = [
        replace(layer, residual=Residual("post")) if layer.residual.norms_after else layer for layer in spec.layers
    ]
    return unless_same(spec, replace(spec, layers=tuple(layers)))


def _other_activation(spec: Spec) -> Spec | None:
    def changed(activation: Activation) -> Activation:
        return replace(activation, name=OTHER_ACTIVATION.get(activation.name, activation.name))

    def part(ffn: Dense | Moe | None) -> Dense | Moe | None:
        match ffn:
            case Dense():
                return replace(ffn, activation=changed(ffn.activation))
            case Moe():
                return replace(ffn, experts=replace(ffn.experts, activation=changed(ffn.experts.activation)))
        return None

    layers = [replace(layer, ffn=part(layer.ffn)) for layer in spec.layers]
    return unless_same(spec, replace(spec, layers=tuple(layers)))


SPEC_CHANGES: Mapping[str, Change] = {
    "norms before parts": _other_form,
    "activation": _other_activation,
    "kind of norm": lambda spec: None if spec.norm.kind == "rms" else replace(spec, norm=Norm()),
    "biases of norms": lambda spec: unless_same(spec, replace(spec, norm=Norm(spec.norm.kind))),
    "softcap of logits": lambda spec: None if not spec.logit_softcap else replace(spec, logit_softcap=0.0),
    "clip": attention(lambda mixer: replace(mixer, clip=0.0)),
}

DENSE_CHANGES: Mapping[str, tuple[str, Callable[[Floats], Floats]]] = {
    "norms after mixers": ("attn_post_norm", np.ones_like),
    "norms after feed-forward parts": ("ffn_post_norm", np.ones_like),
}
