"""Compiling Triton functions ahead, for a device that need not be there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

_WARP = 32


@dataclass(frozen=True)
class CompiledTriton:
    """Machine code of one Triton function, and what a launch of it needs."""

    name: str
    cubin: bytes
    threads: int
    shared: int


def compile_triton(
    function: Any, types: Mapping[str, str], constants: Mapping[str, int], compute_capability: int
) -> CompiledTriton:
    """`types` are those of the run-time parameters in order, as Triton writes them; pointers are aligned to 4 bytes."""
    signature = {**types, **dict.fromkeys(constants, "constexpr")}
    source = ASTSource(function, signature, constexprs=dict(constants), attrs={})
    compiled = triton.compile(source, target=GPUTarget("cuda", compute_capability, _WARP))
    metadata = compiled.metadata
    return CompiledTriton(metadata.name, compiled.asm["cubin"], _WARP * metadata.num_warps, metadata.shared)
