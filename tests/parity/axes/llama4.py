"""Axes of Llama 4: queries that grow, norms without weights, chunks, inputs of experts that are scaled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from engine.spec.attention import Attention
from engine.spec.rope import Growth

from .changes import Change, any_mixer, attention, moe


def _growth(**changes: float) -> Change:
    return any_mixer(lambda mixer: replace(mixer, growth=mixer.growth and replace(mixer.growth, **changes)))


def _chunk(mixer: Attention, by: int) -> Attention:
    return replace(mixer, chunk=mixer.chunk + by) if 0 < mixer.chunk < 100 else mixer


def _grown(mixer: Attention) -> Attention:
    return replace(mixer, growth=Growth(0.3, 5, 1)) if mixer.qk_norm == "unit_after" else mixer


SPEC_CHANGES: Mapping[str, Change] = {
    "growth dropped": any_mixer(lambda mixer: replace(mixer, growth=None)),
    "growth added": attention(_grown),
    "growth's rate": _growth(rate=0.2),
    "growth's step": _growth(every=6),
    "growth's start": _growth(ahead=0),
    "chunk + 1": attention(lambda mixer: _chunk(mixer, 1)),
    "chunk - 1": attention(lambda mixer: _chunk(mixer, -1)),
    "scaled input": moe(lambda moe: replace(moe, scaled_input=False)),
}
