"""Axes of grouped and latent attention, rope, experts and recurrences."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from engine.program.weights import Floats
from engine.spec.attention import Attention, LatentAttention
from engine.spec.feed_forward import Activation, Dense, Moe
from engine.spec.recurrent import DeltaNet, Mamba2, ShortConv
from engine.spec.rope import LongScaling, Rope, YarnScaling
from engine.spec.schema import Spec

from .changes import Change, any_mixer, attention, delta, ffns, latent, mixers, moe, rope, router, state_space


def _step_bounds(**changes: float) -> Change:
    return lambda spec: mixers(spec, Mamba2, lambda mixer: replace(mixer, **changes))


def _other_gate(mixer: DeltaNet) -> DeltaNet:
    return replace(mixer, gate_activation="silu" if mixer.gate_activation == "sigmoid" else "sigmoid")


def _other_opening(mixer: Attention) -> Attention:
    other = "softplus" if mixer.gate_activation == "sigmoid" else "sigmoid"
    return replace(mixer, gate_activation=other) if mixer.gated else mixer


def _rotated(mixer: LatentAttention) -> LatentAttention:
    there = mixer.rope is not None or not mixer.rope_dim
    return mixer if there else replace(mixer, rope=Rope(10000.0, mixer.rope_dim))


def scaled_rope(change: Callable[[Any], Any]) -> Change:
    return any_mixer(
        lambda mixer: (
            mixer
            if mixer.rope is None or mixer.rope.scaling is None
            else replace(mixer, rope=replace(mixer.rope, scaling=change(mixer.rope.scaling)))
        )
    )


def _yarn(**changes: Any) -> Change:
    return scaled_rope(lambda scaling: replace(scaling, **changes) if isinstance(scaling, YarnScaling) else scaling)


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


def _no_key_bias(mixer: Attention) -> Attention:
    """Without rope a bias of all keys moves all scores of a query alike, and no softmax without sinks sees that."""
    return replace(mixer, k_bias=False) if mixer.rope or mixer.sinks else mixer


def _other_side(scaling: Any) -> Any:
    """The factors of contexts on the other side of the one that was trained for."""
    if not isinstance(scaling, LongScaling):
        return scaling
    return replace(scaling, original_context=8 if scaling.original_context > 8 else 4096)


def _other_activation(moe: Moe) -> Moe:
    """Among those with a gate and without one."""
    if not moe.experts.activation.is_gated:
        return moe
    clamped = moe.experts.activation.name == "clamped_silu"
    other = Activation() if clamped else Activation("clamped_silu", alpha=1.7, limit=7.0)
    return replace(moe, experts=replace(moe.experts, activation=other))


def _fewer_experts(moe: Moe) -> Moe:
    """One less for a token; where a table names them, there are as many as it has."""
    router = moe.router
    return moe if router.by_token else replace(moe, router=replace(router, top_k=max(1, router.top_k - 1)))


def _no_clamp(moe: Moe) -> Moe:
    activation = moe.experts.activation
    changed = replace(activation, limit=100.0) if activation.name == "clamped_silu" else activation
    return replace(moe, experts=replace(moe.experts, activation=changed))


def _other_alpha(moe: Moe) -> Moe:
    activation = moe.experts.activation
    changed = replace(activation, alpha=1.0) if activation.name == "clamped_silu" else activation
    return replace(moe, experts=replace(moe.experts, activation=changed))


def _one_layer_unwindowed(spec: Spec) -> Spec | None:
    """The window moved from one layer to another where layers differ, and none reads the keys of another."""
    attending = [layer.mixer for layer in spec.layers if isinstance(layer.mixer, Attention)]
    if any(mixer.kv_layer >= 0 for mixer in attending):
        return None
    windows = [mixer.window for mixer in attending]
    moved = iter([*windows[1:], *windows[:1]])
    return mixers(spec, Attention, lambda mixer: replace(mixer, window=next(moved)))


def _otherwise_normalised(moe: Moe) -> Moe:
    """A norm of what experts make takes away what all of them are multiplied by."""
    if moe.router.scoring == "softmax_topk" or moe.apart:
        return moe
    return replace(moe, router=replace(moe.router, normalize=not moe.router.normalize))


SPEC_CHANGES: Mapping[str, Change] = {
    "norm eps": lambda spec: replace(spec, norm_eps=1e-2),
    "latent norm eps": latent(lambda mixer: replace(mixer, norm_eps=1e-2)),
    "embedding scale": lambda spec: None if spec.embedding_scale == 1 else replace(spec, embedding_scale=1.0),
    "residual scale": lambda spec: None if spec.residual_scale == 1 else replace(spec, residual_scale=1.0),
    "tied head": lambda spec: None if spec.tied_head else replace(spec, tied_head=True),
    "logit scale": lambda spec: None if spec.logit_scale == 1 else replace(spec, logit_scale=1.0),
    "score scale": any_mixer(lambda mixer: replace(mixer, scale=mixer.scale * 1.05)),
    "softcap": attention(lambda mixer: replace(mixer, softcap=5.0)),
    "rope style": rope(lambda rope: replace(rope, pairs=not rope.pairs)),
    "rope theta": rope(lambda rope: replace(rope, theta=rope.theta * 1.1)),
    "rope dropped": attention(lambda mixer: replace(mixer, rope=None)),
    "rope added": latent(_rotated),
    "rope partial": attention(
        lambda mixer: replace(mixer, rope=mixer.rope and replace(mixer.rope, dim=mixer.rope.dim - 2, scaling=None))
    ),
    "rope whole": attention(
        lambda mixer: replace(mixer, rope=mixer.rope and replace(mixer.rope, dim=mixer.head_dim, scaling=None))
    ),
    "attention gate": attention(lambda mixer: replace(mixer, gated=False, head_gates=False)),
    "what opens a gate": attention(_other_opening),
    "delta scale": delta(lambda mixer: replace(mixer, scale=mixer.scale * 1.05)),
    "delta norm eps": delta(lambda mixer: replace(mixer, norm_eps=1e-1)),
    "delta gate": delta(_other_gate),
    "update strengths doubled": delta(lambda mixer: replace(mixer, beta_scale=3 - mixer.beta_scale)),
    "state space norm eps": state_space(lambda mixer: replace(mixer, norm_eps=1e-1)),
    "state space biases": state_space(lambda mixer: replace(mixer, bias=False)),
    "convolution biases": state_space(lambda mixer: replace(mixer, conv_bias=False)),
    "lowest step": _step_bounds(step_min=0.0),
    "highest step": _step_bounds(step_max=0.0),
    "short convolution biases": lambda spec: mixers(spec, ShortConv, lambda mixer: replace(mixer, bias=False)),
    "rope scaling dropped": scaled_rope(lambda _scaling: None),
    "yarn magnitude": _yarn(magnitude=1.0),
    "yarn factor": _yarn(factor=3.0),
    "yarn ramp": scaled_rope(_later_ramp),
    "yarn context": _yarn(original_context=1024),
    "yarn rounding": scaled_rope(_other_rounding),
    "longrope context": scaled_rope(_other_side),
    "longrope magnitude": scaled_rope(
        lambda scaling: replace(scaling, magnitude=1.0) if isinstance(scaling, LongScaling) else scaling
    ),
    "q/k norm": attention(lambda mixer: replace(mixer, qk_norm="none")),
    "k bias": attention(_no_key_bias),
    "q bias": attention(lambda mixer: replace(mixer, q_bias=False)),
    "v bias": attention(lambda mixer: replace(mixer, v_bias=False)),
    "o bias": attention(lambda mixer: replace(mixer, o_bias=False)),
    "latent biases": latent(lambda mixer: replace(mixer, bias=False)),
    "sinks": attention(lambda mixer: replace(mixer, sinks=False)),
    "window + 1": attention(lambda mixer: _window(mixer, 1)),
    "window - 1": attention(lambda mixer: _window(mixer, -1)),
    "window's layer": _one_layer_unwindowed,
    "dense biases": lambda spec: ffns(spec, Dense, lambda dense: replace(dense, bias=False)),
    "top k": moe(_fewer_experts),
    "router normalises": moe(_otherwise_normalised),
    "router scale": moe(
        lambda moe: moe if moe.apart else replace(moe, router=replace(moe.router, scale=moe.router.scale * 1.1))
    ),
    "router scoring": moe(
        lambda moe: replace(
            moe, router=replace(moe.router, scoring="softmax" if moe.router.scoring == "sigmoid" else "sigmoid")
        )
    ),
    "router linear bias": router(linear_bias=False),
    "router choice bias": router(choice_bias=False),
    "groups": router(groups=1, top_groups=1, group_top=1),
    "top groups": moe(
        lambda moe: moe if moe.router.groups == 1 else replace(moe, router=replace(moe.router, top_groups=1, top_k=2))
    ),
    "group worth": moe(
        lambda moe: (
            moe
            if moe.router.groups == 1
            else replace(moe, router=replace(moe.router, group_top=3 - moe.router.group_top))
        )
    ),
    "activation": moe(_other_activation),
    "clamp": moe(_no_clamp),
    "alpha": moe(_other_alpha),
    "shared experts": moe(lambda moe: moe if moe.deferred else replace(moe, shared=None)),
    "shared gate": moe(lambda moe: replace(moe, shared=moe.shared and replace(moe.shared, gated=False))),
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
