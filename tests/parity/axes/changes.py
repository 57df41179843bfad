"""How a spec is changed on one axis: every mixer or feed-forward part of a kind, or None where there is none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from engine.spec.attention import Attention, LatentAttention
from engine.spec.feed_forward import Moe
from engine.spec.recurrent import DeltaNet, Mamba, Mamba2
from engine.spec.rope import Rope
from engine.spec.schema import Spec

Change = Callable[[Spec], Spec | None]


def mixers(spec: Spec, kind: type, change: Callable[[Any], Any]) -> Spec | None:
    """Every mixer of a kind changed."""
    layers = [
        replace(layer, mixer=change(layer.mixer)) if isinstance(layer.mixer, kind) else layer for layer in spec.layers
    ]
    return unless_same(spec, replace(spec, layers=tuple(layers)))


def ffns(spec: Spec, kind: type, change: Callable[[Any], Any]) -> Spec | None:
    """Every feed-forward part of a kind changed."""
    layers = [replace(layer, ffn=change(layer.ffn)) if isinstance(layer.ffn, kind) else layer for layer in spec.layers]
    return unless_same(spec, replace(spec, layers=tuple(layers)))


def unless_same(spec: Spec, changed: Spec) -> Spec | None:
    """None where nothing changed."""
    return None if changed == spec else changed


def any_mixer(change: Callable[[Any], Any]) -> Change:
    return lambda spec: mixers(spec, (Attention | LatentAttention), change)  # type: ignore[arg-type]


def attention(change: Callable[[Attention], Attention]) -> Change:
    return lambda spec: mixers(spec, Attention, change)


def latent(change: Callable[[LatentAttention], LatentAttention]) -> Change:
    return lambda spec: mixers(spec, LatentAttention, change)


def delta(change: Callable[[DeltaNet], DeltaNet]) -> Change:
    return lambda spec: mixers(spec, DeltaNet, change)


def state_space(change: Callable[[Any], Any]) -> Change:
    return lambda spec: mixers(spec, (Mamba | Mamba2), change)  # type: ignore[arg-type]


def rope(change: Callable[[Rope], Rope]) -> Change:
    return any_mixer(lambda mixer: mixer if mixer.rope is None else replace(mixer, rope=change(mixer.rope)))


def moe(change: Callable[[Moe], Moe]) -> Change:
    return lambda spec: ffns(spec, Moe, change)


def router(**changes: Any) -> Change:
    return moe(lambda moe: replace(moe, router=replace(moe.router, **changes)))
