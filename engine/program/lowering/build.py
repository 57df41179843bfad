"""A program in the making: what lowering adds operations, buffers, caches and states to."""

from __future__ import annotations

from dataclasses import dataclass, field

from engine.program.ir import Attr, Buffer, Cache, Op, RopeTable, State
from engine.program.lowering.angles import rope_table
from engine.spec.rope import Growth, Rope
from engine.spec.schema import Spec
from engine.spec.wanted import tensor_name

RESIDUAL = "x"  # the residual stream


@dataclass
class Build:
    """All that is added belongs to decoder layer `layer`; `context` is how many tokens a sequence can have."""

    spec: Spec
    context: int
    layer: int = -1
    moe_layers: int = 0
    buffers: dict[str, Buffer] = field(default_factory=dict)
    ops: list[Op] = field(default_factory=list)
    caches: list[Cache] = field(default_factory=list)
    ropes: list[RopeTable] = field(default_factory=list)
    layer_ends: list[int] = field(default_factory=list)
    states: list[State] = field(default_factory=list)
    kept: set[str] = field(default_factory=set)  # buffers that outlive their layer
    cache_of: dict[int, int] = field(default_factory=dict)  # by layer

    def stream_norm(self, source: str, target: str, key: str, eps: float = 0.0) -> None:
        """A norm of the residual stream, of the kind that the model has."""
        norm = self.spec.norm
        if norm.kind == "rms":
            return self.norm(source, target, key, eps=eps)
        bias = self.weight(f"{key}_bias") if norm.bias else ""
        attrs = {"eps": eps or self.spec.norm_eps, "group": self.buffers[target].width}
        self.op("layer_norm", (source,), (target,), (self.weight(key), bias), **attrs)

    def norm(self, source: str, target: str, key: str, group: int = 0, eps: float = 0.0) -> None:
        """A norm by the root mean square of every `group` values; 0: of all together. Key "": without weights."""
        group = group or self.buffers[target].width
        weight = self.weight(key) if key else ""
        self.op("rms_norm", (source,), (target,), (weight,), eps=eps or self.spec.norm_eps, group=group)

    def linears(
        self, source: str, outputs: dict[str, str], biases: dict[str, bool] | None = None, scale: float = 1.0
    ) -> None:
        """One `linear` that reads `source` once for all `outputs` (buffer -> key)."""
        weights: list[str] = []
        for key in outputs.values():
            has_bias = biases is not None and biases.get(key, False)
            weights += [self.weight(key), self.weight(f"{key}_bias") if has_bias else ""]
        self.op("linear", (source,), tuple(outputs), tuple(weights), scale=scale)

    def head_linear(
        self, source: str, target: str, key: str, heads: int, read: tuple[int, int], write: tuple[int, int]
    ) -> None:
        """`read` and `write` are (stride, offset) of a head's values."""
        self.op(
            "head_linear",
            (source,),
            (target,),
            (self.weight(key),),
            heads=heads,
            in_stride=read[0],
            in_offset=read[1],
            out_stride=write[0],
            out_offset=write[1],
        )

    def rope(
        self, buffer: str, rope: Rope, heads: int, stride: int, offset: int, table: RopeTable | None = None
    ) -> None:
        """Rotates a run of every head; `table` replaces that of the rope."""
        self._rotate(buffer, table or rope_table(rope, self.context), heads, stride, offset, rope.pairs)

    def grow(self, buffer: str, growth: Growth, heads: int, stride: int) -> None:
        """Every head multiplied by a factor that grows with the position: a rotation by nothing."""
        still = RopeTable((0.0,) * (stride // 2), 1.0, growth.rate, growth.every, growth.ahead)
        self._rotate(buffer, still, heads, stride, 0, False)

    def _rotate(self, buffer: str, table: RopeTable, heads: int, stride: int, offset: int, pairs: bool) -> None:
        if table not in self.ropes:
            self.ropes.append(table)
        dim = 2 * len(table.inv_freq)
        attrs = {"heads": heads, "stride": stride, "offset": offset, "dim": dim, "pairs": pairs}
        self.op("rope", (buffer,), (buffer,), **attrs, table=self.ropes.index(table))

    def cache(self, cache: Cache) -> int:
        """A cache of the layer's own."""
        self.caches.append(cache)
        self.cache_of[self.layer] = len(self.caches) - 1
        return self.cache_of[self.layer]

    def state(self, values: int) -> int:
        self.states.append(State(values))
        return len(self.states) - 1

    def weight(self, key: str) -> str:
        return tensor_name(key, self.layer)

    def buffer(self, role: str, width: int, domain: str = "token", dtype: str = "f32") -> str:
        """The buffer for a role; layers whose widths differ get buffers of their own."""
        return self._declare(role, Buffer(width, domain, dtype))

    def view(self, role: str, base: str, offset: int, width: int) -> str:
        return self._declare(role, Buffer(width, base=base, offset=offset, domain=self.buffers[base].domain))

    def _declare(self, role: str, buffer: Buffer) -> str:
        name, number = role, 1
        while self.buffers.get(name, buffer) != buffer:
            number += 1
            name = f"{role}.{number}"
        self.buffers[name] = buffer
        return name

    def op(
        self,
        kind: str,
        reads: tuple[str, ...],
        writes: tuple[str, ...],
        weights: tuple[str, ...] = (),
        /,
        **attrs: Attr,
    ) -> None:
        self.ops.append(Op(kind, reads, writes, weights, attrs, self.layer))
