"""How many bytes of a model a decoded token reads: what its speed is bound by."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from engine.files.conversion.plan import BankPlan, Plan
from engine.files.ftw.manifest import BankInfo, Manifest, Shape
from engine.program.ir import Cache, Op, Program
from engine.spec.layout import ORDER


@dataclass(frozen=True)
class WeightBytes:
    """Where the packed bytes of a model are, whether it is here or only planned.

    `rows` and `dense` are the rows and the bytes of each dense tensor, `records` the bytes of one expert of each MoE
    layer, `experts` those of all experts together.
    """

    rows: Mapping[str, int]
    dense: Mapping[str, int]
    records: Mapping[int, int]
    experts: int

    @property
    def total(self) -> int:
        """All weights."""
        return sum(self.dense.values()) + self.experts

    @classmethod
    def of(cls, model: Manifest | Plan) -> WeightBytes:
        """Those of a model that is here, or that a conversion is going to make."""
        if isinstance(model, Plan):
            return cls._of(model.dense, model.banks)
        return cls._of({name: info.shape for name, info in model.dense.items()}, model.banks)

    @classmethod
    def _of(cls, dense: Mapping[str, Shape], banks: Sequence[BankInfo | BankPlan]) -> WeightBytes:
        return cls(
            rows={name: shape.rows for name, shape in dense.items()},
            dense={name: shape.stored_bytes() for name, shape in dense.items()},
            records={layer: bank.record_bytes for bank in banks for layer in bank.layers},
            experts=sum(bank.record_bytes * bank.experts_per_layer * len(bank.layers) for bank in banks),
        )


@dataclass(frozen=True)
class StepBytes:
    """Bytes that one decoded token moves: dense weights, its experts' records, states (read and written), and keys and
    values by depth."""

    dense: int
    experts: int
    states: int
    kv: Callable[[int], int] = field(compare=False)

    def total(self, depth: int) -> int:
        """All bytes of a token that is decoded after `depth` others."""
        return self.dense + self.experts + self.states + self.kv(depth)


def step_bytes(program: Program, weights: WeightBytes, kv_value_bytes: int) -> StepBytes:
    """What a step of one token must read. An embedding counts as one row, of matrices that are
    chosen the chosen ones; a matrix used twice counts twice."""
    dense = 0
    for op in program.ops:
        for name in filter(None, op.weights):
            dense += _bytes_read(program, op, name, weights)
            dense += weights.dense.get(name + ORDER, 0)
    experts = 0
    entries: list[tuple[int, int, int]] = []  # bytes of an entry, tokens it stands for, how many are seen (0: all)
    for op in program.ops:
        if op.kind == "experts":
            experts += program.buffers[op.reads[1]].width * weights.records[int(op.attrs["layer"])]
        elif op.kind in ("attention", "choose"):
            cache = program.caches[int(op.attrs["cache"])]
            entries.append(_entries(cache, kv_value_bytes, _most_positions(program, op)))
        elif op.kind == "compressed_attention":
            entries.append(_entries(program.caches[int(op.attrs["cache"])], kv_value_bytes, int(op.attrs["window"])))
            if len(op.reads) > 2:
                chosen = program.buffers[op.reads[3]].width if len(op.reads) > 3 else 0
                entries.append(_entries(program.caches[int(op.attrs["entries"])], kv_value_bytes, chosen))

    def kv(depth: int) -> int:
        return sum(size * min(depth // every, seen or depth) for size, every, seen in entries)

    return StepBytes(dense, experts, 2 * program.state_bytes, kv)


def _bytes_read(program: Program, op: Op, name: str, weights: WeightBytes) -> int:
    size = weights.dense[name]
    if op.kind == "embed":
        return size // weights.rows[name]
    if op.kind == "chosen_linear":
        return size * program.buffers[op.reads[1]].width // int(op.attrs["matrices"])
    return size


def _most_positions(program: Program, op: Op) -> int:
    """How many positions an operation reads the keys of at most; 0: all."""
    if op.kind == "choose":
        return 0
    if len(op.reads) > 3:
        return program.buffers[op.reads[3]].width // int(op.attrs["sets"]) * int(op.attrs["block"])
    return program.caches[int(op.attrs["cache"])].reach or int(op.attrs["window"])


def _entries(cache: Cache, value_bytes: int, seen: int = 0) -> tuple[int, int, int]:
    """Bytes of an entry of a cache, the tokens that it stands for, and how many a token sees (0: all)."""
    return cache.entry_bytes(value_bytes), cache.every, seen
