"""Axes of attention to compressed entries, of several residual streams, and of experts that a table names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from engine.program.weights import Floats
from engine.spec.compressed import CompressedAttention, Compression
from engine.spec.feed_forward import Activation, Dense, Moe
from engine.spec.rope import Rope
from engine.spec.schema import Spec
from engine.spec.streams import Streams

from .changes import Change, ffns, mixers, moe, unless_same


def _compressed(change: Callable[[CompressedAttention], CompressedAttention]) -> Change:
    return lambda spec: mixers(spec, CompressedAttention, change)


def _rope(change: Callable[[Rope], Rope]) -> Change:
    return _compressed(lambda mixer: replace(mixer, rope=change(mixer.rope)))


def _compression(change: Callable[[Compression], Compression | None]) -> Change:
    return _compressed(
        lambda mixer: mixer if mixer.compression is None else replace(mixer, compression=change(mixer.compression))
    )


def _fewer_chosen(compression: Compression) -> Compression:
    indexer = compression.indexer
    return compression if indexer is None else replace(compression, indexer=replace(indexer, top_k=indexer.top_k - 2))


def _streams(**changes: Any) -> Callable[[Spec], Spec | None]:
    def change(spec: Spec) -> Spec | None:
        streams: Streams | None = spec.streams
        return None if streams is None else unless_same(spec, replace(spec, streams=replace(streams, **changes)))

    return change


def _unlimited(part: Moe) -> Moe:
    activation = part.experts.activation
    if activation.name not in ("limited_silu", "capped_silu"):
        return part
    return replace(part, experts=replace(part.experts, activation=replace(activation, limit=100.0)))


def _uncapped(part: Dense) -> Dense:
    activation = part.activation
    return replace(part, activation=Activation()) if activation.name == "capped_silu" else part


def _shared_alike(part: Moe) -> Moe:
    return replace(part, shared=part.shared and replace(part.shared, activation=None))


SPEC_CHANGES: Mapping[str, Change] = {
    "score scale beside entries": _compressed(lambda mixer: replace(mixer, scale=mixer.scale * 1.05)),
    "window + 1 beside entries": _compressed(lambda mixer: replace(mixer, window=mixer.window + 1)),
    "window - 1 beside entries": _compressed(lambda mixer: replace(mixer, window=mixer.window - 1)),
    "norm eps beside entries": _compressed(lambda mixer: replace(mixer, norm_eps=1e-2)),
    "rope theta beside entries": _rope(lambda rope: replace(rope, theta=rope.theta * 1.5)),
    "rope style beside entries": _rope(lambda rope: replace(rope, pairs=False)),
    "rope partial beside entries": _rope(lambda rope: replace(rope, dim=rope.dim - 2)),
    "rope scaling beside entries": _rope(lambda rope: replace(rope, scaling=None)),
    "entries": _compression(lambda _compression: None),
    "choice of entries": _compression(lambda compression: replace(compression, indexer=None)),
    "entries that are chosen": _compression(_fewer_chosen),
    "rounds of mixing": _streams(iterations=1),
    "eps of mixing": _streams(eps=1e-1),
    "streams alike at the end": _streams(weighed_at_the_end=False),
    "experts by token": moe(lambda part: replace(part, router=replace(part.router, by_token=False))),
    "limit of silu": moe(_unlimited),
    "cap of dense parts": lambda spec: ffns(spec, Dense, _uncapped),
    "cap of shared experts": moe(_shared_alike),
}

DENSE_CHANGES: Mapping[str, tuple[str, Callable[[Floats], Floats]]] = {
    "mixture around mixers": ("attn_mix", np.zeros_like),
    "mixture around feed-forward parts": ("ffn_mix_scale", np.zeros_like),
    "weights of streams at rest": ("attn_mix_base", np.zeros_like),
    "places within an entry": ("attn.entries_bias", np.zeros_like),
    "places within an index": ("attn.index_bias", lambda values: -values),
    "norm of entries": ("attn.entries_norm", np.ones_like),
    "heads of an indexer": ("attn.index_weights", lambda values: -values),
    "experts of other tokens": ("router_by_token", lambda values: values[::-1].copy()),
}
