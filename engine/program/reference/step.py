"""What the reference executor's operations work on in one step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from torch import Tensor

from engine.program.executor import Batch
from engine.program.ir import Op, Program
from engine.program.reference.context import ReferenceContext


@dataclass(frozen=True)
class Step:
    """`buffers` are the program's by name; `weight` and `expert` look weights up, in f32."""

    program: Program
    batch: Batch
    tokens: Tensor
    positions: Tensor
    buffers: Mapping[str, Tensor]
    context: ReferenceContext
    page_tokens: int
    weight: Callable[[str], Tensor]
    expert: Callable[[int, int], Mapping[str, Tensor]]


Operation = Callable[[Op, Step], None]
