"""The numbers by which kernels know what stands between the matrices of a feed-forward part."""

from __future__ import annotations

from collections.abc import Mapping

GLU_KINDS: Mapping[str, int] = {
    **{"silu": 0, "clamped_silu": 1, "relu2": 2, "limited_silu": 3, "gelu_tanh": 4, "gelu": 5, "capped_silu": 6}
}
"""GluKind of native/core/gated_unit.h."""

UNGATED = ("relu2",)
