"""Axes of what chooses what attention sees."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from engine.program.weights import Floats
from engine.spec.attention import Attention, LatentAttention
from engine.spec.indexer import Indexer
from engine.spec.schema import Spec

from .changes import Change, any_mixer


def _index(change: Callable[[Indexer], Indexer]) -> Change:
    """Every indexer changed."""

    def changed(mixer: Attention | LatentAttention) -> Attention | LatentAttention:
        return mixer if mixer.indexer is None else replace(mixer, indexer=change(mixer.indexer))

    return any_mixer(changed)


def _last_shares(spec: Spec) -> Spec | None:
    """The last layer sees what was chosen before."""
    layer = spec.layers[-1]
    if not isinstance(layer.mixer, LatentAttention) or layer.mixer.indexer is None or layer.mixer.indexer.shared:
        return None
    mixer = replace(layer.mixer, indexer=replace(layer.mixer.indexer, shared=True))
    return replace(spec, layers=(*spec.layers[:-1], replace(layer, mixer=mixer)))


def _other_locality(indexer: Indexer) -> Indexer:
    """Only where whole blocks are chosen: a token among the best of all is no change to speak of."""
    return indexer if indexer.block == 1 or indexer.pooled else replace(indexer, local=1 - indexer.local)


def _wider_blocks(indexer: Indexer) -> Indexer:
    """Pools have weights for the places of so many tokens."""
    return indexer if indexer.pooled else replace(indexer, block=2 * indexer.block)


SPEC_CHANGES: Mapping[str, Change] = {
    "everything is seen": any_mixer(lambda mixer: replace(mixer, indexer=None)),
    "one more is seen": _index(lambda indexer: replace(indexer, top_k=indexer.top_k + 1)),
    "index rope style": _index(
        lambda indexer: replace(indexer, rope=indexer.rope and replace(indexer.rope, pairs=not indexer.rope.pairs))
    ),
    "index rope dropped": _index(lambda indexer: replace(indexer, rope=None)),
    "index norm eps": _index(lambda indexer: replace(indexer, norm_eps=1.0)),
    "selection shared": _last_shares,
    "blocks of a selection": _index(_wider_blocks),
    "pools": _index(lambda indexer: replace(indexer, pooled=False)),
    "local blocks": _index(_other_locality),
}

DENSE_CHANGES: Mapping[str, tuple[str, Callable[[Floats], Floats]]] = {
    "weights of an indexer's heads": ("index.weights", np.ones_like),
    "biases of an indexer's norm": ("index.k_norm_bias", np.zeros_like),
    "norm of an indexer's keys": ("index.k_norm", np.ones_like),
    "norm of an indexer's queries": ("index.q_norm", np.ones_like),
    "weights within a pool": ("index.gate", np.zeros_like),
    "places within a pool": ("index.places", np.zeros_like),
}
