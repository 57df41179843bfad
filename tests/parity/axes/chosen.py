"""Axes of attention with experts, and of what stands around it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from engine.program.weights import Floats

from .changes import Change, moe, unless_same


def _reversed_rows(values: Floats) -> Floats:
    return np.ascontiguousarray(values[::-1])


SPEC_CHANGES: Mapping[str, Change] = {
    "bias of all experts together": moe(lambda moe: replace(moe, bias=False)),
    "epsilon of the last norm": lambda spec: unless_same(spec, replace(spec, final_norm_eps=0.0)),
}

DENSE_CHANGES: Mapping[str, tuple[str, Callable[[Floats], Floats]]] = {
    "which queries are chosen": ("attn.router", _reversed_rows),
    "weights of chosen queries": ("attn.router", lambda values: 0.5 * values),
}
