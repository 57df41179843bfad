"""Which checkpoint tensors make up which tensor of ours. `spec` decides it as data, `files` carries it out.

All names in a `Piece` are Hugging Face names; a GGUF reader presents its tensors under those names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

ORDER = ".order"
"""A checkpoint tensor T whose columns are stored in another order than its input's has a companion T.order, a vector:
its value i is the column of the input that column i of T is multiplied by. A matrix of ours has one alike."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Some rows of one checkpoint tensor, seen as a matrix [rows, cols].

    `index` picks one index of the leading dimension (-1: there is none). `transpose` is applied next, then the row
    slice `start:stop:step` and the column slice `col_start:col_stop` (a stop of 0: to the end). Only a transposed
    piece slices columns.

    A `plain` piece is read as the f32 values that its tensor stands for, with its columns in the order of the input.
    What is quantised in blocks of columns has to be so before it can be transposed; 8-bit floats need not.

    In a `Vector` the tensor is read as its n values in row order, with an `index` those of that index;
    `start:stop:step` slices them, and `plus` is added to each.
    """

    tensor: str
    index: int = -1
    transpose: bool = False
    start: int = 0
    stop: int = 0
    step: int = 1
    col_start: int = 0
    col_stop: int = 0
    plain: bool = False
    plus: float = 0.0


@dataclass(frozen=True, slots=True)
class Matrix:
    """A packed matrix: pieces of one codec stacked by rows.

    With `row_order`, the name of a checkpoint tensor that holds an order, row i is row `order[i]` of what the pieces
    make. All rows of such a matrix are read at once: it has to be one expert's.

    `zero_bias` names a checkpoint tensor that has no place in the model and has to hold zeros alone: some quantisers
    write a bias for every matrix.
    """

    name: str
    rows: int
    cols: int
    pieces: tuple[Piece, ...]
    row_order: str = ""
    zero_bias: str = ""


@dataclass(frozen=True, slots=True)
class Vector:
    """Values kept as f32: pieces laid end to end; a `row_order` puts them in order as it does the rows of a matrix."""

    name: str
    length: int
    pieces: tuple[Piece, ...]
    row_order: str = ""


@dataclass(frozen=True, slots=True)
class ExpertRecord:
    """What one expert's record holds. Field names: gate, up, down (Matrix); gate_bias, up_bias, down_bias (Vector).

    When gate and up share codec and shape they are stored as one field `gate_up`, tile by tile in turn; but apart, with
    the vectors gate.order and up.order, where they have orders of their own. The rows of gate and up follow the order
    of down, of which nothing is left then.
    """

    layer: int  # index among the MoE layers
    expert: int
    matrices: tuple[Matrix, ...]
    vectors: tuple[Vector, ...] = ()

    @property
    def ordered(self) -> bool:
        """Whether gate or up reads its input in an order of its own."""
        return any(vector.name.endswith(ORDER) for vector in self.vectors)


@dataclass(frozen=True)
class Layout:
    """Everything a conversion writes, and how many checkpoint tensors it leaves out, by what they are for."""

    matrices: tuple[Matrix, ...]
    vectors: tuple[Vector, ...]
    experts: tuple[ExpertRecord, ...]
    left_out: Mapping[str, int] = field(default_factory=dict)
