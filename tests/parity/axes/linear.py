"""Axes of linear attention and of what comes with it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from engine.program.weights import Floats

from .changes import Change, delta, latent

SPEC_CHANGES: Mapping[str, Change] = {
    "decay bound": delta(lambda mixer: replace(mixer, decay_bound=mixer.decay_bound * 1.1)),
    "decay unbounded": delta(lambda mixer: replace(mixer, decay_bound=0.0)),
    "latent attention's gate": latent(lambda mixer: replace(mixer, gated=False)),
}

DENSE_CHANGES: Mapping[str, tuple[str, Callable[[Floats], Floats]]] = {}
