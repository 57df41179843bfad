"""Axes of linear attention and of what comes with it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from engine.program.weights import Floats
from engine.spec.feed_forward import Moe
from engine.spec.recurrent import LinearAttention
from engine.spec.schema import Spec

from .changes import Change, delta, latent, mixers, moe, unless_same


def _stream(**changes: float) -> Change:
    """The scales of a stream that is normed changed in every layer."""

    def change(spec: Spec) -> Spec | None:
        layers = [
            replace(layer, residual=replace(layer.residual, **changes)) if layer.residual.is_normed else layer
            for layer in spec.layers
        ]
        return unless_same(spec, replace(spec, layers=tuple(layers)))

    return change


def _half_return(moe: Moe) -> Moe:
    """The later half of the experts as some of those that return what they see."""
    if not moe.zero:
        return moe
    kept = moe.experts.count // 2
    return replace(moe, experts=replace(moe.experts, count=kept), zero=moe.choices - kept)


SPEC_CHANGES: Mapping[str, Change] = {
    "decay bound": delta(lambda mixer: replace(mixer, decay_bound=mixer.decay_bound * 1.1)),
    "decay unbounded": delta(lambda mixer: replace(mixer, decay_bound=0.0)),
    "latent attention's gate": latent(lambda mixer: replace(mixer, gated=False)),
    "slope": lambda spec: mixers(spec, LinearAttention, lambda mixer: replace(mixer, slope=mixer.slope * 1.1)),
    "linear attention norm eps": lambda spec: mixers(
        spec, LinearAttention, lambda mixer: replace(mixer, norm_eps=1e-1)
    ),
    "stream kept": _stream(attn_keep=1.0),
    "stream kept by experts": _stream(ffn_keep=1.0),
    "part added": _stream(attn_add=1.0),
    "experts added": _stream(ffn_add=1.0),
    "latent scale": latent(lambda mixer: replace(mixer, latent_scale=1.0)),
    "experts without computation": moe(_half_return),
    "experts at once": moe(lambda moe: replace(moe, deferred=False)),
}

DENSE_CHANGES: Mapping[str, tuple[str, Callable[[Floats], Floats]]] = {}
