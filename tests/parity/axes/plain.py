"""Axes of attention of several kinds in one model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from engine.spec.schema import Attention, Spec

from .changes import Change, mixers


def _rotated_everywhere(spec: Spec) -> Spec | None:
    """The positions of the layers that have some, given to those that have none."""
    ropes = [layer.mixer.rope for layer in spec.layers if isinstance(layer.mixer, Attention) and layer.mixer.rope]
    return mixers(spec, Attention, lambda mixer: replace(mixer, rope=mixer.rope or ropes[0])) if ropes else None


SPEC_CHANGES: Mapping[str, Change] = {
    "rope of some layers given to all": _rotated_everywhere,
}
