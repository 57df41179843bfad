"""How many bytes of a model a decoded token reads: what its speed is bound by."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from engine.files.ftw import Ftw
from engine.program.ir import Program
from engine.spec.layout import ORDER


@dataclass(frozen=True)
class StepBytes:
    """Bytes that one decoded token reads: dense weights, its experts' records, and keys and values by depth."""

    dense: int
    experts: int
    kv: Callable[[int], int] = field(compare=False)

    def total(self, depth: int) -> int:
        """All bytes of a token that is decoded after `depth` others."""
        return self.dense + self.experts + self.kv(depth)


def step_bytes(program: Program, ftw: Ftw, kv_value_bytes: int) -> StepBytes:
    """What a step of one token must read. An embedding counts as one row, a matrix used twice counts twice."""
    dense = 0
    for op in program.ops:
        for name in filter(None, op.weights):
            tensor = ftw.dense[name]
            dense += tensor.data.nbytes // (tensor.rows if op.kind == "embed" else 1)
            if name + ORDER in ftw.dense:
                dense += ftw.dense[name + ORDER].data.nbytes
    records = {layer: bank.record_bytes for bank in ftw.banks for layer in bank.layers}
    experts = 0
    per_position: list[tuple[int, int]] = []  # bytes a position, positions a window holds (0: all)
    for op in program.ops:
        if op.kind == "experts":
            experts += program.buffers[op.reads[1]].width * records[int(op.attrs["layer"])]
        elif op.kind == "attention":
            cache = program.caches[int(op.attrs["cache"])]
            per_position.append((cache.bytes_per_token(kv_value_bytes), int(op.attrs["window"])))

    def kv(depth: int) -> int:
        return sum(size * (min(depth, window) if window else depth) for size, window in per_position)

    return StepBytes(dense, experts, kv)
