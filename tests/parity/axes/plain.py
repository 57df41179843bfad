"""Axes of attention of several kinds in one model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from engine.spec.attention import Attention
from engine.spec.feed_forward import Moe
from engine.spec.schema import Spec

from .changes import Change, attention, mixers, router


def _rotated_everywhere(spec: Spec) -> Spec | None:
    """The positions of the layers that have some, given to those that have none."""
    ropes = [layer.mixer.rope for layer in spec.layers if isinstance(layer.mixer, Attention) and layer.mixer.rope]
    return mixers(spec, Attention, lambda mixer: replace(mixer, rope=mixer.rope or ropes[0])) if ropes else None


def _one_theta(spec: Spec) -> Spec | None:
    """The base of the first layer's positions, given to all; None where layers do not differ."""
    ropes = [layer.mixer.rope for layer in spec.layers if isinstance(layer.mixer, Attention) and layer.mixer.rope]
    if not ropes:
        return None
    return mixers(
        spec,
        Attention,
        lambda mixer: replace(mixer, rope=mixer.rope and replace(mixer.rope, theta=ropes[0].theta)),
    )


def _one_top_k(spec: Spec) -> Spec | None:
    """As many experts a token in every layer as in the last."""
    numbers = [layer.ffn.router.top_k for layer in spec.layers if isinstance(layer.ffn, Moe)]
    return router(top_k=numbers[-1])(spec) if numbers else None


def _normed_before(mixer: Attention) -> Attention:
    return replace(mixer, qk_norm="head") if mixer.qk_norm == "head_after" else mixer


SPEC_CHANGES: Mapping[str, Change] = {
    "rope of some layers given to all": _rotated_everywhere,
    "one theta for all layers": _one_theta,
    "one top k for all layers": _one_top_k,
    "q/k norm before rope": attention(_normed_before),
    "value scale": attention(lambda mixer: replace(mixer, value_scale=1.0)),
}
