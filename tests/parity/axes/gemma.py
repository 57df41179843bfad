"""Axes of Gemma 4: norms of values, keys shared between layers, experts beside a dense part, inputs of every layer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from engine.program.weights import Floats
from engine.spec.attention import Attention
from engine.spec.feed_forward import Activation
from engine.spec.rope import LinearScaling, ProportionalScaling, Rope
from engine.spec.schema import Layer, Mixer, Spec

from .changes import Change, attention, moe, rope, router, unless_same


def _values_from_keys(mixer: Attention) -> Attention:
    return replace(mixer, v_from_k=True) if mixer.v_norm else mixer


def _values_as_they_are(mixer: Attention) -> Attention:
    return replace(mixer, v_norm=mixer.v_from_k)


def _keys_of_another(spec: Spec) -> Spec | None:
    """Layers that norm their values read the keys and values of the first one of their kind."""
    layers = tuple(replace(layer, mixer=_shared(layer.mixer, spec.layers[:i])) for i, layer in enumerate(spec.layers))
    return unless_same(spec, replace(spec, layers=layers))


def _shared(mixer: Mixer | None, before: tuple[Layer, ...]) -> Mixer | None:
    if not isinstance(mixer, Attention) or not mixer.v_norm:
        return mixer
    mixers = [layer.mixer for layer in before]
    return replace(mixer, kv_layer=mixers.index(mixer), v_norm=False, v_from_k=False) if mixer in mixers else mixer


def _unscaled(spec: Spec) -> Spec | None:
    layers = (replace(layer, residual=replace(layer.residual, scaled=False)) for layer in spec.layers)
    return unless_same(spec, replace(spec, layers=tuple(layers)))


def _other_gate(spec: Spec) -> Spec | None:
    inputs = spec.layer_inputs
    return inputs and replace(spec, layer_inputs=replace(inputs, activation=Activation("silu")))


def _scaling(kind: type[LinearScaling] | type[ProportionalScaling], **changes: float) -> Change:
    def change(rope: Rope) -> Rope:
        scaling = rope.scaling
        return replace(rope, scaling=replace(scaling, **changes)) if isinstance(scaling, kind) else rope

    return rope(change)


SPEC_CHANGES: Mapping[str, Change] = {
    "values as they are": attention(_values_as_they_are),
    "values from keys": attention(_values_from_keys),
    "keys of another layer": _keys_of_another,
    "layers not scaled": _unscaled,
    "no inputs of layers": lambda spec: unless_same(spec, replace(spec, layer_inputs=None)),
    "gates of layer inputs": _other_gate,
    "experts not apart": moe(lambda moe: replace(moe, apart=False)),
    "experts not normed": moe(lambda moe: replace(moe, normed=False)),
    "router not normed": router(normed=False),
    "weights of experts not scaled": router(expert_scale=False),
    "linear factor": _scaling(LinearScaling, factor=5.0),
    "proportional part": _scaling(ProportionalScaling, part=0.2),
    "proportional factor": _scaling(ProportionalScaling, factor=3.0),
}

DENSE_CHANGES: Mapping[str, tuple[str, Callable[[Floats], Floats]]] = {
    "layer scalars": ("layer_scalar", np.ones_like),
    "norm of the router": ("router_norm", np.ones_like),
    "norm of what experts see": ("experts_norm", np.ones_like),
    "norm of what experts make": ("experts_post_norm", np.ones_like),
    "norm of what shared experts make": ("shared_post_norm", np.ones_like),
    "norm of what all experts make": ("experts_shared_norm", np.ones_like),
    "norm of layer inputs": ("input.post_norm", np.ones_like),
}
