"""Axes of the residual stream: where norms stand, what they are, bounds and activations."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from engine.program.weights import Floats
from engine.spec.feed_forward import Activation, Dense, Moe
from engine.spec.residual import Norm, Residual
from engine.spec.rope import LongScaling
from engine.spec.schema import Spec

from .changes import Change, attention, moe, unless_same
from .general import scaled_rope

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


def _longrope(changes: Callable[[LongScaling], dict[str, Any]]) -> Change:
    return scaled_rope(
        lambda scaling: replace(scaling, **changes(scaling)) if isinstance(scaling, LongScaling) else scaling
    )


SPEC_CHANGES: Mapping[str, Change] = {
    "norms before parts": _other_form,
    "activation": _other_activation,
    "kind of norm": lambda spec: None if spec.norm.kind == "rms" else replace(spec, norm=Norm()),
    "biases of norms": lambda spec: unless_same(spec, replace(spec, norm=Norm(spec.norm.kind))),
    "softcap of logits": lambda spec: None if not spec.logit_softcap else replace(spec, logit_softcap=0.0),
    "clip": attention(lambda mixer: replace(mixer, clip=0.0)),
    "head bias": lambda spec: unless_same(spec, replace(spec, head_bias=False)),
    "jitter of a router": moe(
        lambda moe: replace(moe, router=replace(moe.router, jitter=0.0)) if moe.router.jitter else moe
    ),
    "shared experts' scale": moe(lambda moe: replace(moe, shared=moe.shared and replace(moe.shared, scale=0.8))),
    "magnitude of longrope": _longrope(lambda scaling: {"magnitude": 1.0, "long_magnitude": 1.0}),
    "factors of longrope": _longrope(
        lambda scaling: {
            "short_factors": tuple(1.2 * factor for factor in scaling.short_factors),
            "long_factors": tuple(1.2 * factor for factor in scaling.long_factors),
        }
    ),
}

DENSE_CHANGES: Mapping[str, tuple[str, Callable[[Floats], Floats]]] = {
    "norms after mixers": ("attn_post_norm", np.ones_like),
    "norms after feed-forward parts": ("ffn_post_norm", np.ones_like),
}
