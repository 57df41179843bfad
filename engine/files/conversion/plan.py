"""What a conversion will write, byte for byte, before it writes anything."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from engine.base.collector import no_cycles
from engine.base.errors import UnsupportedError, UsageError
from engine.files.codecs import CODECS, align
from engine.files.conversion.gather import Gather
from engine.files.conversion.requantise import ENCODED, check_expert_codec
from engine.files.ftw.manifest import (
    DENSE_ALIGNMENT,
    DENSE_NAME,
    GATE_UP,
    MAX_SHARD_BYTES,
    BankInfo,
    DenseInfo,
    Field,
    Shape,
    Shard,
    record_size,
)
from engine.files.safetensors_header import build_header
from engine.files.source_file import SourceFile
from engine.files.sources.checkpoint import Checkpoint
from engine.spec.families import resolve
from engine.spec.layout import ExpertRecord, Layout, Matrix, Vector
from engine.spec.schema import Spec


@dataclass(frozen=True, slots=True)
class Part:
    """One tensor of an item: a vector, a matrix, or matrices whose tiles take turns. `stored_bytes` on disk."""

    shape: Shape
    sources: tuple[Matrix, ...] | Vector
    stored_bytes: int

    @property
    def all_sources(self) -> tuple[Matrix | Vector, ...]:
        return (self.sources,) if isinstance(self.sources, Vector) else self.sources


@dataclass(frozen=True, slots=True)
class Item:
    """A run of `size` bytes of one output file that is written and hashed as one: a dense tensor or a record.

    The parts lie end to end; zeros fill the item up. `reads` are the numbers of the source files that it is made of,
    ascending.
    """

    name: str
    file: str
    offset: int
    size: int
    parts: tuple[Part, ...]
    reads: tuple[int, ...]


@dataclass(frozen=True)
class BankPlan:
    """A bank without its hashes: `shards` are file names with the number of records in each."""

    fields: tuple[Field, ...]
    record_bytes: int
    experts_per_layer: int
    layers: tuple[int, ...]
    shards: tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class Plan:
    """All output files of a conversion but the small ones.

    `items` are in the order of writing: that of the last source file that each needs, so that a source can be read and
    given up file by file. Items of one file are in the order of the output, dense tensors first, then bank by bank.
    `sizes` are the bytes of each output file, `left_out` the number of source tensors without a place, by purpose.
    """

    dense: Mapping[str, Shape]
    dense_header: bytes
    banks: tuple[BankPlan, ...]
    items: tuple[Item, ...]
    sizes: Mapping[str, int]
    left_out: Mapping[str, int]

    @property
    def total_bytes(self) -> int:
        return sum(self.sizes.values())


@no_cycles()
def plan_conversion(checkpoint: Checkpoint, expert_codec: str | None = None) -> tuple[Spec, Plan]:
    """What a checkpoint is, and what it becomes. All is checked here, so that nothing but reading can fail later.

    `expert_codec` is what experts are put into; without one they keep theirs. Errors: those of `check_expert_codec`,
    `resolve` and `make_plan`; UsageError for a codec where there are no experts.
    """
    check_expert_codec(expert_codec)
    seen = {name: (tensor.form, tensor.shape) for name, tensor in checkpoint.tensors.items()}
    spec, layout = resolve(checkpoint.config, seen)
    if expert_codec and not layout.experts:
        raise UsageError(
            f"{checkpoint.name} has no experts that could be put into {expert_codec}.", "Take it as it is published."
        )
    return spec, make_plan(layout, Gather(checkpoint.tensors), checkpoint.files, expert_codec)


def make_plan(
    layout: Layout,
    gather: Gather,
    files: tuple[SourceFile, ...],
    expert_codec: str | None = None,
    max_shard_bytes: int = MAX_SHARD_BYTES,
) -> Plan:
    """Turns a layout into output files; `files` are all that its tensors lie in, in the order in which they are read.

    Raises UnsupportedError for a codec that cannot be packed, for columns that are not whole blocks of their codec, and
    for a layer whose experts differ in codec or shape.
    """
    reads = _Reads(gather, files)
    dense_parts = {matrix.name: _matrix_part((matrix,), _matrix_shape(matrix, gather)) for matrix in layout.matrices}
    dense_parts |= {vector.name: _vector_part(vector, gather) for vector in layout.vectors}
    header = build_header(
        [(name, *_safetensors_type(part)) for name, part in dense_parts.items()], alignment=DENSE_ALIGNMENT
    )
    items = _lay_out_dense(dense_parts, len(header), reads)
    sizes = {DENSE_NAME: items[-1].offset + items[-1].size if items else len(header)}
    banks: list[BankPlan] = []
    for records in _group_by_layout(layout.experts, gather, expert_codec):
        bank, bank_items = _lay_out_bank(len(banks), records, max_shard_bytes, reads)
        banks.append(bank)
        items += bank_items
        sizes |= {file: count * bank.record_bytes for file, count in bank.shards}
    shapes = {name: part.shape for name, part in dense_parts.items()}
    items.sort(key=lambda item: item.reads[-1] if item.reads else -1)
    return Plan(shapes, header, tuple(banks), tuple(items), sizes, layout.left_out)


def describe(plan: Plan, hashes: Iterable[str]) -> tuple[dict[str, DenseInfo], tuple[BankInfo, ...]]:
    """What the manifest says of a written plan; `hashes` are those of its items, in the order of writing."""
    written = {(item.file, item.offset): digest for item, digest in zip(plan.items, hashes, strict=True)}
    by_name = {item.name: written[item.file, item.offset] for item in plan.items if item.file == DENSE_NAME}
    dense = {name: DenseInfo(shape, by_name[name]) for name, shape in plan.dense.items()}
    banks = []
    for bank in plan.banks:
        shards = tuple(
            Shard(
                file,
                count * bank.record_bytes,
                tuple(written[file, place * bank.record_bytes] for place in range(count)),
            )
            for file, count in bank.shards
        )
        banks.append(BankInfo(bank.fields, bank.record_bytes, bank.experts_per_layer, bank.layers, shards))
    return dense, tuple(banks)


class _Reads:
    """Tells the numbers of the source files that some parts are made of, ascending."""

    def __init__(self, gather: Gather, files: tuple[SourceFile, ...]) -> None:
        self._gather = gather
        self._numbers = {id(file): number for number, file in enumerate(files)}

    def __call__(self, parts: tuple[Part, ...]) -> tuple[int, ...]:
        wanted = (source for part in parts for source in part.all_sources)
        return tuple(sorted({self._numbers[id(file)] for source in wanted for file in self._gather.files(source)}))


def _matrix_part(matrices: tuple[Matrix, ...], shape: Shape) -> Part:
    """Matrices of one shape."""
    return Part(shape, matrices, shape.stored_bytes(len(matrices)))


def _matrix_shape(matrix: Matrix, gather: Gather, codec: str | None = None) -> Shape:
    """The shape of a matrix in `codec`, or in its own."""
    own = gather.codec(matrix)
    for name in (own, codec or own):
        if not CODECS[name].valid_cols(matrix.cols):
            raise UnsupportedError(
                f"The tensor {matrix.pieces[0].tensor} has rows of {matrix.cols} values, which are not whole blocks of "
                f"{CODECS[name].cols_unit}, as {name} needs.",
                "Use a checkpoint in another codec." if name == own else "Leave the experts in the codec they are in.",
            )
    return Shape(codec or own, matrix.rows, matrix.cols)


def _vector_part(vector: Vector, gather: Gather) -> Part:
    gather.check_vector(vector)
    shape = Shape("f32", 1, vector.length, vector=True)
    return Part(shape, vector, shape.stored_bytes())


def _safetensors_type(part: Part) -> tuple[str, tuple[int, ...]]:
    return ("F32", (part.stored_bytes // 4,)) if part.shape.vector else ("U8", (part.stored_bytes,))


def _lay_out_dense(parts: Mapping[str, Part], start: int, reads: _Reads) -> list[Item]:
    items = []
    for name, part in parts.items():
        items.append(Item(name, DENSE_NAME, start, part.stored_bytes, (part,), reads((part,))))
        start += part.stored_bytes
    return items


# --- banks -----------------------------------------------------------------------------------------------------------

_Record = tuple[ExpertRecord, tuple[Part, ...]]
_RecordLayout = tuple[Field, ...]


def _record_parts(record: ExpertRecord, gather: Gather, codec: str | None) -> tuple[tuple[str, Part], ...]:
    """The tensors of a record by field name; gate and up become one where they share codec, shape and input."""
    shapes = {matrix.name: _matrix_shape(matrix, gather, codec) for matrix in record.matrices}
    matrices = {matrix.name: matrix for matrix in record.matrices}
    parts: list[tuple[str, Part]] = []
    if shapes.keys() >= {"gate", "up"} and shapes["gate"] == shapes["up"] and not record.ordered:
        parts.append((GATE_UP, _matrix_part((matrices.pop("gate"), matrices.pop("up")), shapes["gate"])))
    parts += [(name, _matrix_part((matrix,), shapes[name])) for name, matrix in matrices.items()]
    parts += [(vector.name, _vector_part(vector, gather)) for vector in record.vectors]
    return tuple(parts)


def _fields(parts: tuple[tuple[str, Part], ...]) -> _RecordLayout:
    fields = []
    offset = 0
    for name, part in parts:
        fields.append(Field(name, part.shape, offset))
        offset += part.stored_bytes
    return tuple(fields)


def _group_by_layout(
    experts: tuple[ExpertRecord, ...], gather: Gather, codec: str | None
) -> list[tuple[_RecordLayout, dict[int, list[_Record]]]]:
    """The records of each bank, by layer; banks in the order of their first layer."""
    layouts: dict[int, _RecordLayout] = {}
    banks: dict[_RecordLayout, dict[int, list[_Record]]] = {}
    for record in sorted(experts, key=lambda record: (record.layer, record.expert)):
        parts = _record_parts(record, gather, codec)
        fields = _fields(parts)
        if layouts.setdefault(record.layer, fields) != fields:
            raise _odd_one(record, fields, layouts[record.layer])
        layers = banks.setdefault(fields, {})
        layers.setdefault(record.layer, []).append((record, tuple(part for _, part in parts)))
    return _split_by_count(banks)


def _odd_one(record: ExpertRecord, fields: _RecordLayout, expected: _RecordLayout) -> UnsupportedError:
    """The error for an expert whose record is not laid out as the others of its layer are."""
    here, there = (", ".join(_described(field) for field in layout) for layout in (fields, expected))
    return UnsupportedError(
        f"Expert {record.expert} of MoE layer {record.layer} differs from those before it in codec or shape: {here}; "
        f"those before it: {there}.",
        "Use a checkpoint whose experts are alike within a layer, or put all of them into one codec with "
        f"--expert-codec {ENCODED[0]}.",
    )


def _described(field: Field) -> str:
    shape = field.shape
    return f"{field.name} {shape.cols}" if shape.vector else f"{field.name} {shape.codec} {shape.rows} x {shape.cols}"


def _split_by_count(
    banks: Mapping[_RecordLayout, dict[int, list[_Record]]],
) -> list[tuple[_RecordLayout, dict[int, list[_Record]]]]:
    """A bank has one number of experts a layer; layers with another number go to a bank of their own."""
    split: dict[tuple[_RecordLayout, int], dict[int, list[_Record]]] = {}
    for fields, layers in banks.items():
        for layer, records in layers.items():
            split.setdefault((fields, len(records)), {})[layer] = records
    return [(fields, layers) for (fields, _), layers in split.items()]


def _lay_out_bank(
    number: int, records: tuple[_RecordLayout, dict[int, list[_Record]]], max_shard_bytes: int, reads: _Reads
) -> tuple[BankPlan, list[Item]]:
    fields, layers = records
    record_bytes = record_size(fields)
    per_shard = max(1, max_shard_bytes // record_bytes)
    everything = [record for layer in layers.values() for record in layer]
    items = []
    for index, (record, parts) in enumerate(everything):
        shard, place = divmod(index, per_shard)
        name = f"expert {record.expert} of MoE layer {record.layer}"
        file, offset = _shard_name(number, shard), place * record_bytes
        items.append(Item(name, file, offset, record_bytes, parts, reads(parts)))
    shards = [
        (_shard_name(number, shard), min(per_shard, len(everything) - shard * per_shard))
        for shard in range(align(len(everything), per_shard) // per_shard)
    ]
    experts_per_layer = len(next(iter(layers.values())))
    return BankPlan(fields, record_bytes, experts_per_layer, tuple(layers), tuple(shards)), items


def _shard_name(bank: int, shard: int) -> str:
    return f"experts-{bank}-{shard}.bank"
