"""From a spec, a family's names and a checkpoint's tensors to the layout of a conversion."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase

from engine.base.errors import CorruptFileError, UnsupportedError
from engine.spec.feed_forward import Moe
from engine.spec.layout import ORDER, ExpertRecord, Layout, Matrix, Piece, Vector
from engine.spec.names import BLOCKS, PER_HEAD, STACKED, STRIDED, Names, Skipped, Source
from engine.spec.schema import Spec
from engine.spec.tensors import expert_tensors, layer_tensors, outer_tensors
from engine.spec.wanted import Wanted, tensor_name

MOST_NEXT_TOKEN_LAYERS = 4
WEIGHT, BIAS = ".weight", ".bias"
INTEGERS = "int4"  # what the names of forms of quantised integers begin with
TRANSPOSABLE = frozenset({"f32", "f16", "bf16", "fp8"})
Tensors = Mapping[str, tuple[str, tuple[int, ...]]]  # name -> codec and shape, as the checkpoint has them


def arrange(spec: Spec, names: Names, tensors: Tensors) -> Layout:
    """Say which pieces of which checkpoint tensors make up every tensor of the spec.

    Raises CorruptFileError for missing tensors and wrong shapes, UnsupportedError for a tensor that no rule explains,
    for quantised experts that would have to be transposed and for an order that cannot be followed. Each names the
    tensor.
    """
    plan = _planned(spec, names, tensors)
    plan.check_missing()
    left_out = plan.left_out(_spelt_out(names, spec))
    return Layout(tuple(plan.matrices), tuple(plan.vectors), tuple(plan.experts), left_out)


def compare(spec: Spec, names: Names, tensors: Tensors) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The tensors that a checkpoint lacks, by the first name of each, and those of it that no rule explains.

    Raises as `arrange` does for all else.
    """
    plan = _planned(spec, names, tensors)
    skipped = _spelt_out(names, spec)
    return tuple(plan.missing), tuple(name for name in plan.unused() if _purpose(name, skipped) is None)


def _planned(spec: Spec, names: Names, tensors: Tensors) -> _Plan:
    """Where everything of the spec lies, as far as it is there."""
    plan = _Plan(names, tensors)
    for wanted in outer_tensors(spec):
        plan.add(wanted, {wanted.key: wanted}, _Place())
    moe_index = 0
    for index, layer in enumerate(spec.layers):
        group = {wanted.key: wanted for wanted in layer_tensors(spec, index)}
        for wanted in group.values():
            plan.add(wanted, group, _Place(index))
        if isinstance(layer.ffn, Moe):
            group = {wanted.key: wanted for wanted in expert_tensors(spec, layer.ffn)}
            for expert in range(layer.ffn.experts.count):
                plan.add_expert(group, _Place(index, expert, layer.ffn.experts.count), moe_index)
            moe_index += 1
    return plan


@dataclass(frozen=True)
class _Place:
    """Where in the model a tensor belongs; -1: outside the layers, not an expert's."""

    layer: int = -1
    expert: int = -1
    experts: int = 0


@dataclass
class _Plan:
    """A layout in the making."""

    names: Names
    tensors: Tensors
    matrices: list[Matrix] = field(default_factory=list)
    vectors: list[Vector] = field(default_factory=list)
    experts: list[ExpertRecord] = field(default_factory=list)
    used: set[str] = field(default_factory=set)
    missing: dict[str, None] = field(default_factory=dict)  # in order of discovery
    by_key: dict[str, tuple[Source, ...]] = field(default_factory=dict)

    def add(self, wanted: Wanted, group: Mapping[str, Wanted], place: _Place) -> None:
        name, pieces = tensor_name(wanted.key, place.layer), self._pieces(wanted, group, place)
        if wanted.is_vector:
            self.vectors.append(Vector(name, wanted.cols, pieces))
        else:
            bias = self._zero_bias(group, place, pieces)
            self.matrices.append(Matrix(name, wanted.rows, wanted.cols, pieces, zero_bias=bias))
            self.vectors += self._orders(name, wanted, pieces)

    def add_expert(self, group: Mapping[str, Wanted], place: _Place, moe_index: int) -> None:
        pieces = {key: self._pieces(wanted, group, place) for key, wanted in group.items()}
        down = self._orders("down", group["down"], pieces["down"])
        row_order = down[0].pieces[0].tensor if down else ""  # what comes out of gate and up is what down reads
        matrices: list[Matrix] = []
        vectors: list[Vector] = []
        orders: list[Vector] = []
        for key, wanted in group.items():
            follows = row_order if key in ("gate", "up", "gate_bias", "up_bias") else ""
            if wanted.is_vector:
                vectors.append(Vector(key, wanted.cols, pieces[key], follows))
                continue
            bias = self._zero_bias(group, place, pieces[key])
            matrices.append(Matrix(key, wanted.rows, wanted.cols, pieces[key], follows, bias))
            if key != "down":
                orders += self._orders(key, wanted, pieces[key])
        self.experts.append(ExpertRecord(moe_index, place.expert, tuple(matrices), (*vectors, *orders)))

    def check_missing(self) -> None:
        if not self.missing:
            return
        first, *others = self.missing
        more = f" (and {len(others)} more)" if others else ""
        raise CorruptFileError(
            f"The checkpoint has no tensor {first}{more}.", "Fetch it again, or check that no shard is absent."
        )

    def unused(self) -> Iterator[str]:
        """Tensors of the checkpoint that nothing was made of."""
        return (name for name in self.tensors if name not in self.used)

    def left_out(self, skipped: tuple[Skipped, ...]) -> Mapping[str, int]:
        """How many tensors are left out, by purpose; one that is neither used nor skipped is refused."""
        counts: Counter[str] = Counter()
        for name in self.unused():
            purpose = _purpose(name, skipped)
            if purpose is None:
                raise UnsupportedError(
                    f"The checkpoint has a tensor that this family does not explain: {name}.",
                    "The model may be a variant that this release does not know.",
                )
            counts[purpose] += 1
        return dict(counts)

    def _pieces(self, wanted: Wanted, group: Mapping[str, Wanted], place: _Place) -> tuple[Piece, ...]:
        source = self._source(wanted.key, group, place)
        names = [source.tensor(place.layer, place.expert, part) for part in range(len(source.parts))]
        missing = [name for name in names if name not in self.tensors]
        self.missing.update(dict.fromkeys(missing))
        if missing:
            return ()
        return tuple(piece for name in names for piece in self._cut(source, name, wanted, group, place))

    def _cut(
        self, source: Source, tensor: str, wanted: Wanted, group: Mapping[str, Wanted], place: _Place
    ) -> Iterable[Piece]:
        """The pieces of one checkpoint tensor."""
        held = tuple(_part(group[key], len(source.parts)) for key in source.holds)
        stacked_experts = place.experts if place.expert >= 0 and not source.per_expert else 0
        self._check_shape(tensor, _expected_shape(source, held, stacked_experts), source.flat)
        self.used.add(tensor)
        if source.flipped:
            self._check_transposable(tensor)
        if source.folded:
            pieces: Iterable[Piece] = (_unfolded(source, wanted, tensor, place.expert),)
        else:
            index = place.expert if stacked_experts else -1
            pieces = _cut(source, source.holds.index(wanted.key), held, tensor, index)
        plain = self._has_to_be_plain(wanted, source, tensor)
        return (replace(piece, plain=plain, plus=source.plus) if plain or source.plus else piece for piece in pieces)

    def _has_to_be_plain(self, wanted: Wanted, source: Source, tensor: str) -> bool:
        """Whether a matrix cannot stay as quantised: one that is turned over, or one of parts with an order.

        Where parts of a matrix have inputs of their own, none of these is gathered.
        """
        ordered = wanted.apart and tensor + ORDER in self.tensors
        return ordered or (wanted.key in source.transposed and self.tensors[tensor][0] not in TRANSPOSABLE)

    def _orders(self, name: str, wanted: Wanted, pieces: tuple[Piece, ...]) -> tuple[Vector, ...]:
        """The vector that holds the order of a matrix's columns; none where the checkpoint has no order for it.

        A product gathers its input in that order; an embedding has no input. A plain piece is in order again.
        """
        tensor = pieces[0].tensor if pieces else ""
        if tensor + ORDER not in self.tensors:
            return ()
        if wanted.key == "embed" or pieces[0].index >= 0:
            raise UnsupportedError(
                f"The tensor {tensor} has its columns in an order of its own, which cannot be followed for {name}.",
                "Use a checkpoint without activation order.",
            )
        self._check_shape(tensor + ORDER, tuple(self.tensors[tensor][1][-1:]))
        self.used.add(tensor + ORDER)
        if pieces[0].plain:
            return ()
        return (Vector(name + ORDER, wanted.cols, (Piece(tensor + ORDER),)),)

    def _zero_bias(self, group: Mapping[str, Wanted], place: _Place, pieces: tuple[Piece, ...]) -> str:
        """The bias of an integer matrix that the family has none for; "" where there is none."""
        tensor = pieces[0].tensor if pieces else ""
        bias = tensor.removesuffix(WEIGHT) + BIAS
        if bias not in self.tensors or not self.tensors[tensor][0].startswith(INTEGERS):
            return ""
        named = (source.tensor(place.layer, place.expert) for key in group for source in self._sources(key))
        if bias in named:
            return ""
        self.used.add(bias)
        return bias

    def _sources(self, key: str) -> tuple[Source, ...]:
        if key not in self.by_key:
            self.by_key[key] = self.names.holding(key)
        return self.by_key[key]

    def _source(self, key: str, group: Mapping[str, Wanted], place: _Place) -> Source:
        """The rule that names a tensor: the first whose tensor the checkpoint has and fits, else the first it has.

        Of a checkpoint that has none of them, the first of all.
        """
        candidates = self._sources(key)
        if not candidates:
            raise UnsupportedError(f"The family has no name for the tensor {tensor_name(key, place.layer)}.")
        there = [source for source in candidates if source.tensor(place.layer, place.expert) in self.tensors]
        if len(there) < 2 or not there[0].flipped:
            return there[0] if there else candidates[0]
        return next((source for source in there if self._fits(source, group, place)), there[0])

    def _fits(self, source: Source, group: Mapping[str, Wanted], place: _Place) -> bool:
        held = tuple(_part(group[key], len(source.parts)) for key in source.holds if key in group)
        experts = place.experts if place.expert >= 0 and not source.per_expert else 0
        shape = tuple(self.tensors[source.tensor(place.layer, place.expert)][1])
        return len(held) == len(source.holds) and shape == _expected_shape(source, held, experts)

    def _check_shape(self, tensor: str, expected: tuple[int, ...], flat: bool = False) -> None:
        shape = tuple(self.tensors[tensor][1])
        if shape != expected and not (flat and math.prod(shape) == math.prod(expected)):
            raise CorruptFileError(
                f"The tensor {tensor} has the shape {list(shape)}, but config.json calls for {list(expected)}.",
                "Check that config.json and the weights belong together.",
            )

    def _check_transposable(self, tensor: str) -> None:
        codec = self.tensors[tensor][0]
        if codec not in TRANSPOSABLE:
            raise UnsupportedError(
                f"The tensor {tensor} is in {codec}, and would have to be transposed.",
                f"Use a checkpoint that keeps it in {', '.join(sorted(TRANSPOSABLE))}.",
            )


def _purpose(name: str, skipped: tuple[Skipped, ...]) -> str | None:
    """What a tensor that is left out is for; None where no rule says that it may be."""
    name = name.removesuffix(ORDER)
    return next((rule.purpose for rule in skipped if fnmatchcase(name, rule.pattern)), None)


def _part(wanted: Wanted, parts: int) -> Wanted:
    """What one of several tensors of equal size holds."""
    if parts == 1:
        return wanted
    return replace(wanted, rows=wanted.rows // parts, cols=wanted.cols if wanted.rows else wanted.cols // parts)


def _expected_shape(source: Source, held: tuple[Wanted, ...], experts: int) -> tuple[int, ...]:
    lead = (experts,) if experts else ()
    extent = sum(_extent(source, wanted) for wanted in held)
    if held[0].is_vector:
        return (*lead, extent)
    if source.arrangement == BLOCKS:
        return (held[0].heads, extent // held[0].heads, held[0].cols)
    cols = held[0].rows // held[0].heads if held[0].key in source.transposed else held[0].cols
    rows, cols = (cols, extent) if source.flipped else (extent, cols)
    return (experts * rows, cols) if source.folded else (*lead, rows, cols)


def _unfolded(source: Source, wanted: Wanted, tensor: str, expert: int) -> Piece:
    """An expert's matrix out of those of all experts, one below the other."""
    rows = wanted.cols if source.flipped else wanted.rows
    start, stop = expert * rows, (expert + 1) * rows
    if source.flipped:
        return Piece(tensor, transpose=True, col_start=start, col_stop=stop)
    return Piece(tensor, start=start, stop=stop)


def _extent(source: Source, wanted: Wanted) -> int:
    """Rows (or values) of the checkpoint tensor that a tensor of ours takes up."""
    return wanted.cols * wanted.heads if wanted.key in source.transposed else wanted.extent


def _cut(source: Source, place: int, held: tuple[Wanted, ...], tensor: str, index: int) -> Iterable[Piece]:
    """The pieces of the tensor of ours that is number `place` of those held."""
    wanted = held[place]
    whole = len(held) == 1
    if source.arrangement == STACKED:
        start = 0 if whole else sum(_extent(source, other) for other in held[:place])
        stop = 0 if whole else start + _extent(source, wanted)
        yield Piece(tensor, index, source.flipped, start, stop)
    elif source.arrangement == STRIDED:
        yield Piece(tensor, index, source.flipped, start=place, step=len(held))
    elif source.arrangement == BLOCKS:
        yield from (Piece(tensor, block) for block in range(wanted.heads))
    elif source.arrangement == PER_HEAD:
        extents = [_extent(source, other) // other.heads for other in held]
        for head in range(wanted.heads):
            start = head * sum(extents) + sum(extents[:place])
            stop = start + extents[place]
            if wanted.key in source.transposed:
                yield Piece(tensor, index, transpose=True, col_start=start, col_stop=stop)
            else:
                yield Piece(tensor, index, start=start, stop=stop)


def _spelt_out(names: Names, spec: Spec) -> tuple[Skipped, ...]:
    """The family's rules, with `{next}` spelt out for as many extra layers as checkpoints are known to carry."""
    layers, moes = len(spec.layers), [layer.ffn for layer in spec.layers if isinstance(layer.ffn, Moe)]
    numbers = {
        "next": range(layers, layers + MOST_NEXT_TOKEN_LAYERS),
        "zero": sorted({expert for moe in moes for expert in range(moe.experts.count, moe.choices)}),
    }
    rules: list[Skipped] = []
    for rule in names.skipped:
        named = next((name for name in numbers if f"{{{name}}}" in rule.pattern), None)
        each = [{named: number} for number in numbers[named]] if named else [{}]
        rules += [replace(rule, pattern=rule.pattern.format(**values)) for values in each]
    return tuple(rules)
