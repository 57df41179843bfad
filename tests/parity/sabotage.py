"""Negative controls: changes, one for each axis of the schema, that the parity check has to notice.

Each takes a spec (or the weights) and returns a changed one, or None where the axis is not there to be changed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from engine.program.weights import Floats, Weights
from engine.spec.recurrent import DeltaNet, Mamba, Mamba2, ShortConv
from engine.spec.rope import Rope, YarnScaling
from engine.spec.schema import Attention, Dense, LatentAttention, Moe, Spec
from engine.spec.tensors import layer_tensors

Change = Callable[[Spec], Spec | None]


def _mixers(spec: Spec, kind: type, change: Callable[[Any], Any]) -> Spec | None:
    layers = [
        replace(layer, mixer=change(layer.mixer)) if isinstance(layer.mixer, kind) else layer for layer in spec.layers
    ]
    return _unless_same(spec, replace(spec, layers=tuple(layers)))


def _ffns(spec: Spec, kind: type, change: Callable[[Any], Any]) -> Spec | None:
    layers = [replace(layer, ffn=change(layer.ffn)) if isinstance(layer.ffn, kind) else layer for layer in spec.layers]
    return _unless_same(spec, replace(spec, layers=tuple(layers)))


def _unless_same(spec: Spec, changed: Spec) -> Spec | None:
    return None if changed == spec else changed


def _any_mixer(change: Callable[[Any], Any]) -> Change:
    return lambda spec: _mixers(spec, (Attention | LatentAttention), change)  # type: ignore[arg-type]


def _attention(change: Callable[[Attention], Attention]) -> Change:
    return lambda spec: _mixers(spec, Attention, change)


def _latent(change: Callable[[LatentAttention], LatentAttention]) -> Change:
    return lambda spec: _mixers(spec, LatentAttention, change)


def _delta(change: Callable[[DeltaNet], DeltaNet]) -> Change:
    return lambda spec: _mixers(spec, DeltaNet, change)


def _state_space(change: Callable[[Any], Any]) -> Change:
    return lambda spec: _mixers(spec, (Mamba | Mamba2), change)  # type: ignore[arg-type]


def _step_bounds(**changes: float) -> Change:
    return lambda spec: _mixers(spec, Mamba2, lambda mixer: replace(mixer, **changes))


def _rope(change: Callable[[Rope], Rope]) -> Change:
    return _any_mixer(lambda mixer: mixer if mixer.rope is None else replace(mixer, rope=change(mixer.rope)))


def _other_gate(mixer: DeltaNet) -> DeltaNet:
    return replace(mixer, gate_activation="silu" if mixer.gate_activation == "sigmoid" else "sigmoid")


def _rotated(mixer: LatentAttention) -> LatentAttention:
    return mixer if mixer.rope is not None else replace(mixer, rope=Rope(10000.0, mixer.rope_dim))


def _moe(change: Callable[[Moe], Moe]) -> Change:
    return lambda spec: _ffns(spec, Moe, change)


def _router(**changes: Any) -> Change:
    return _moe(lambda moe: replace(moe, router=replace(moe.router, **changes)))


def _scaled_rope(change: Callable[[Any], Any]) -> Change:
    return _any_mixer(
        lambda mixer: (
            mixer
            if mixer.rope is None or mixer.rope.scaling is None
            else replace(mixer, rope=replace(mixer.rope, scaling=change(mixer.rope.scaling)))
        )
    )


def _yarn(**changes: Any) -> Change:
    return _scaled_rope(lambda scaling: replace(scaling, **changes) if isinstance(scaling, YarnScaling) else scaling)


def _later_ramp(scaling: Any) -> Any:
    if not isinstance(scaling, YarnScaling):
        return scaling
    return replace(scaling, beta_slow=2.0, beta_fast=max(2.0, scaling.beta_fast))


def _other_rounding(scaling: Any) -> Any:
    """Where both ends of the ramp are one, no frequency lies between them, rounded or not."""
    if not isinstance(scaling, YarnScaling) or scaling.beta_fast == scaling.beta_slow:
        return scaling
    return replace(scaling, truncate=not scaling.truncate)


def _window(mixer: Attention, by: int) -> Attention:
    return replace(mixer, window=mixer.window + by) if mixer.window else mixer


def _no_clamp(moe: Moe) -> Moe:
    activation = moe.experts.activation
    changed = replace(activation, limit=100.0) if activation.name == "clamped_silu" else activation
    return replace(moe, experts=replace(moe.experts, activation=changed))


def _other_alpha(moe: Moe) -> Moe:
    activation = moe.experts.activation
    changed = replace(activation, alpha=1.0) if activation.name == "clamped_silu" else activation
    return replace(moe, experts=replace(moe.experts, activation=changed))


def _one_layer_unwindowed(spec: Spec) -> Spec | None:
    """The window moved from one layer to another where layers differ."""
    windows = [layer.mixer.window if isinstance(layer.mixer, Attention) else 0 for layer in spec.layers]
    mixers = [layer.mixer for layer in spec.layers]
    if len(set(windows)) == 1:
        return None
    layers = zip(spec.layers, [*mixers[1:], mixers[0]], strict=True)
    return replace(spec, layers=tuple(replace(layer, mixer=mixer) for layer, mixer in layers))


SPEC_CHANGES: Mapping[str, Change] = {
    "norm eps": lambda spec: replace(spec, norm_eps=1e-2),
    "latent norm eps": _latent(lambda mixer: replace(mixer, norm_eps=1e-2)),
    "embedding scale": lambda spec: None if spec.embedding_scale == 1 else replace(spec, embedding_scale=1.0),
    "residual scale": lambda spec: None if spec.residual_scale == 1 else replace(spec, residual_scale=1.0),
    "logit scale": lambda spec: None if spec.logit_scale == 1 else replace(spec, logit_scale=1.0),
    "score scale": _any_mixer(lambda mixer: replace(mixer, scale=mixer.scale * 1.05)),
    "softcap": _attention(lambda mixer: replace(mixer, softcap=5.0)),
    "rope style": _rope(lambda rope: replace(rope, pairs=not rope.pairs)),
    "rope theta": _rope(lambda rope: replace(rope, theta=rope.theta * 1.1)),
    "rope dropped": _attention(lambda mixer: replace(mixer, rope=None)),
    "rope added": _latent(_rotated),
    "rope partial": _attention(
        lambda mixer: replace(mixer, rope=mixer.rope and replace(mixer.rope, dim=mixer.rope.dim - 2, scaling=None))
    ),
    "rope whole": _attention(
        lambda mixer: replace(mixer, rope=mixer.rope and replace(mixer.rope, dim=mixer.head_dim, scaling=None))
    ),
    "attention gate": _attention(lambda mixer: replace(mixer, gated=False)),
    "delta scale": _delta(lambda mixer: replace(mixer, scale=mixer.scale * 1.05)),
    "delta norm eps": _delta(lambda mixer: replace(mixer, norm_eps=1e-1)),
    "delta gate": _delta(_other_gate),
    "state space norm eps": _state_space(lambda mixer: replace(mixer, norm_eps=1e-1)),
    "state space biases": _state_space(lambda mixer: replace(mixer, bias=False)),
    "convolution biases": _state_space(lambda mixer: replace(mixer, conv_bias=False)),
    "lowest step": _step_bounds(step_min=0.0),
    "highest step": _step_bounds(step_max=0.0),
    "short convolution biases": lambda spec: _mixers(spec, ShortConv, lambda mixer: replace(mixer, bias=False)),
    "rope scaling dropped": _scaled_rope(lambda _scaling: None),
    "yarn magnitude": _yarn(magnitude=1.0),
    "yarn factor": _yarn(factor=3.0),
    "yarn ramp": _scaled_rope(_later_ramp),
    "yarn context": _yarn(original_context=1024),
    "yarn rounding": _scaled_rope(_other_rounding),
    "q/k norm": _attention(lambda mixer: replace(mixer, qk_norm="none")),
    "q bias": _attention(lambda mixer: replace(mixer, q_bias=False)),
    "v bias": _attention(lambda mixer: replace(mixer, v_bias=False)),
    "o bias": _attention(lambda mixer: replace(mixer, o_bias=False)),
    "latent biases": _latent(lambda mixer: replace(mixer, bias=False)),
    "sinks": _attention(lambda mixer: replace(mixer, sinks=False)),
    "window + 1": _attention(lambda mixer: _window(mixer, 1)),
    "window - 1": _attention(lambda mixer: _window(mixer, -1)),
    "window's layer": _one_layer_unwindowed,
    "dense biases": lambda spec: _ffns(spec, Dense, lambda dense: replace(dense, bias=False)),
    "top k": _moe(lambda moe: replace(moe, router=replace(moe.router, top_k=moe.router.top_k - 1))),
    "router normalises": _moe(
        lambda moe: (
            moe
            if moe.router.scoring == "softmax_topk"
            else replace(moe, router=replace(moe.router, normalize=not moe.router.normalize))
        )
    ),
    "router scale": _moe(lambda moe: replace(moe, router=replace(moe.router, scale=moe.router.scale * 1.1))),
    "router scoring": _moe(
        lambda moe: replace(
            moe, router=replace(moe.router, scoring="softmax" if moe.router.scoring == "sigmoid" else "sigmoid")
        )
    ),
    "router linear bias": _router(linear_bias=False),
    "router choice bias": _router(choice_bias=False),
    "groups": _router(groups=1, top_groups=1, group_top=1),
    "top groups": _moe(
        lambda moe: moe if moe.router.groups == 1 else replace(moe, router=replace(moe.router, top_groups=1, top_k=2))
    ),
    "group worth": _moe(
        lambda moe: (
            moe
            if moe.router.groups == 1
            else replace(moe, router=replace(moe.router, group_top=3 - moe.router.group_top))
        )
    ),
    "clamp": _moe(_no_clamp),
    "alpha": _moe(_other_alpha),
    "shared experts": _moe(lambda moe: replace(moe, shared=None)),
    "shared gate": _moe(lambda moe: replace(moe, shared=moe.shared and replace(moe.shared, gated=False))),
}


@dataclass(frozen=True)
class ChangedExperts:
    """Weights whose experts go through `change(layer, expert, weights)`."""

    weights: Weights
    change: Callable[[int, int, Weights], Mapping[str, Floats]]

    def dense(self, name: str) -> Floats:
        return self.weights.dense(name)

    def expert(self, layer: int, expert: int) -> Mapping[str, Floats]:
        return self.change(layer, expert, self.weights)


def _swap_experts(layer: int, expert: int, weights: Weights) -> Mapping[str, Floats]:
    """Experts 0 and 1 of the first layer in each other's place."""
    return weights.expert(layer, 1 - expert if layer == 0 and expert < 2 else expert)


def _swap_layers(layer: int, expert: int, weights: Weights) -> Mapping[str, Floats]:
    """The experts of the first two layers in each other's place."""
    return weights.expert(1 - layer if layer < 2 else layer, expert)


def _swap_gate_and_up(layer: int, expert: int, weights: Weights) -> Mapping[str, Floats]:
    tensors = weights.expert(layer, expert)
    return {**tensors, "gate": tensors["up"], "up": tensors["gate"]}


def _experts_have_gates(spec: Spec) -> bool:
    return any(isinstance(layer.ffn, Moe) and layer.ffn.experts.activation.is_gated for layer in spec.layers)


def _drop_biases(layer: int, expert: int, weights: Weights) -> Mapping[str, Floats]:
    tensors = weights.expert(layer, expert)
    return {name: values for name, values in tensors.items() if not name.endswith("_bias")}


@dataclass(frozen=True)
class ChangedDense:
    """Weights whose dense tensors with a name that ends in `key` go through `change`."""

    weights: Weights
    key: str
    change: Callable[[Floats], Floats]

    def dense(self, name: str) -> Floats:
        values = self.weights.dense(name)
        return self.change(values) if name.endswith(f".{self.key}") else values

    def expert(self, layer: int, expert: int) -> Mapping[str, Floats]:
        return self.weights.expert(layer, expert)


def _experts_have_biases(spec: Spec) -> bool:
    return any(isinstance(layer.ffn, Moe) and layer.ffn.experts.bias for layer in spec.layers)


@dataclass(frozen=True)
class WeightChange:
    """A change of the weights, and whether a spec has what it changes."""

    change: Callable[[int, int, Weights], Mapping[str, Floats]]
    applies: Callable[[Spec], bool]


WEIGHT_CHANGES: Mapping[str, WeightChange] = {
    "experts swapped": WeightChange(_swap_experts, lambda spec: bool(spec.moe_layers)),
    "experts of two layers swapped": WeightChange(_swap_layers, lambda spec: len(spec.moe_layers) > 1),
    "gate and up swapped": WeightChange(_swap_gate_and_up, _experts_have_gates),
    "expert biases dropped": WeightChange(_drop_biases, _experts_have_biases),
}


# The end of a tensor's name, and what is done to it. Which models have such a tensor is said by what their specs need.
DENSE_CHANGES: Mapping[str, tuple[str, Callable[[Floats], Floats]]] = {
    "norms not centred": ("attn_norm", lambda values: values - np.float32(1)),
    "convolution turned": ("delta.conv", lambda values: values[::-1].copy()),
    "decay rates": ("delta.a_log", lambda values: values + np.float32(0.1)),
    "decay biases": ("delta.dt_bias", np.zeros_like),
    "update strengths": ("delta.beta", np.zeros_like),
    "state space convolution turned": ("mamba.conv", lambda values: values[::-1].copy()),
    "state space decay rates": ("mamba.a_log", lambda values: values + np.float32(0.1)),
    "state space step biases": ("mamba.dt_bias", np.zeros_like),
    "what passes the state by": ("mamba.d", np.zeros_like),
    "state space norm": ("mamba.norm", np.ones_like),
    "norm of steps": ("mamba.step_norm", np.ones_like),
    "norm of a state's input": ("mamba.b_norm", np.ones_like),
    "norm of a state's output": ("mamba.c_norm", np.ones_like),
    "latent of experts": ("latent_out", np.zeros_like),
    "short convolution turned": ("conv.w", lambda values: values[::-1].copy()),
    "gate before a short convolution": ("conv.before", np.zeros_like),
}


def _has(spec: Spec, key: str) -> bool:
    return any(wanted.key == key for layer in range(len(spec.layers)) for wanted in layer_tensors(spec, layer))


def sabotaged(axis: str, spec: Spec, weights: Weights) -> tuple[Spec, Weights] | None:
    """The spec and weights with the axis changed; None where the model does not have it."""
    if axis in SPEC_CHANGES:
        changed = SPEC_CHANGES[axis](spec)
        return None if changed is None else (changed, weights)
    if axis in DENSE_CHANGES:
        key, values = DENSE_CHANGES[axis]
        return (spec, ChangedDense(weights, key, values)) if _has(spec, key) else None
    change = WEIGHT_CHANGES[axis]
    return (spec, ChangedExperts(weights, change.change)) if change.applies(spec) else None


AXES = (*SPEC_CHANGES, *DENSE_CHANGES, *WEIGHT_CHANGES)
