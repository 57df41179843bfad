"""Reading what a layout asks for: rows of a matrix and values of a vector, from pieces of checkpoint tensors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import numpy.typing as npt

from engine.base.errors import CorruptFileError, UnsupportedError
from engine.files.codecs import CODECS, FORMS, INTEGER_BYTES
from engine.files.conversion.plain_values import PlainTensor
from engine.files.conversion.transpose import transposed_form, transposed_rows
from engine.files.source_file import Bytes, SourceFile
from engine.files.sources.tensors import IndexedTensor, SourceTensor, row_count
from engine.spec.layout import ORDER, Matrix, Piece, Vector

VECTOR_FORMS: Mapping[str, type[np.generic]] = {
    "f32": np.float32,
    "f16": np.float16,
    "bf16": np.uint16,
    "i32": np.int32,
    "i64": np.int64,
}
"""What a vector may be kept in: floats, and whole numbers such as experts by token ids."""


class Gather:
    """Reads pieces of `tensors`; that they are there and of the right shape was checked when the layout was made.

    What is to be transposed for one piece is kept, since its rows are asked for a few at a time, and so are the
    matrices of an expert whose rows are put in order.
    """

    def __init__(self, tensors: Mapping[str, SourceTensor]) -> None:
        self._tensors = tensors
        self._kept: tuple[tuple[str, int, int, int], Bytes] | None = None
        self._in_order: tuple[str, dict[tuple[Piece, ...], Bytes]] = ("", {})

    def form(self, matrix: Matrix) -> str:
        """The form of a matrix: the one of all its pieces. Raises UnsupportedError for mixed or unknown forms."""
        forms = {self._piece_form(piece) for piece in matrix.pieces}
        if forms == {"f32", "fp8"} and all(piece.transpose for piece in matrix.pieces):
            return "f32"
        if len(forms) != 1:
            first = {self._piece_form(piece): piece.tensor for piece in reversed(matrix.pieces)}
            parts = " and ".join(f"{tensor} in {form}" for form, tensor in sorted(first.items()))
            raise UnsupportedError(
                f"{matrix.name} is made of several tensors, and they differ: {parts}.",
                "Use a checkpoint that keeps them alike.",
            )
        form = forms.pop()
        if form not in FORMS:
            raise UnsupportedError(
                f"The tensor {matrix.pieces[0].tensor} is in {form}, which this release does not convert.",
                f"Use a checkpoint in {', '.join(CODECS)}.",
            )
        return form

    def codec(self, matrix: Matrix) -> str:
        """The codec that a matrix is packed in. Raises UnsupportedError as `form` does."""
        return FORMS[self.form(matrix)].codec

    def check_vector(self, vector: Vector) -> None:
        """Raises UnsupportedError unless all pieces of a vector hold plain values."""
        for piece in vector.pieces:
            form = self._tensors[piece.tensor].form
            if form not in VECTOR_FORMS:
                raise UnsupportedError(
                    f"The tensor {piece.tensor} is in {form}; a vector has to be in {', '.join(VECTOR_FORMS)}.",
                    "Use a checkpoint that keeps its norms and biases as plain values.",
                )

    def files(self, source: Matrix | Vector) -> Iterator[SourceFile]:
        """The files that reading `source` reads, some of them perhaps twice."""
        others = (source.row_order, source.zero_bias if isinstance(source, Matrix) else "")
        for piece in source.pieces:
            yield from self._tensor(piece).files
        for name in filter(None, others):
            yield from self._tensors[name].files

    def origin(self, matrix: Matrix, row: int) -> tuple[str, int]:
        """The tensor that a row of a checked matrix comes from, with its index if it has one, and its row there.

        Of a transposed tensor it is the column.
        """
        if matrix.row_order:
            row = int(self._order(matrix.row_order)[row])
        pieces = iter(matrix.pieces)
        piece = next(pieces)
        while row >= self._piece_rows(piece):
            row -= self._piece_rows(piece)
            piece = next(pieces)
        name = piece.tensor if piece.index < 0 else f"{piece.tensor}[{piece.index}]"
        return name, piece.start + row * piece.step

    def rows(self, matrix: Matrix, start: int, stop: int) -> Bytes:
        """Raw bytes of rows `start .. stop` of a checked matrix, as an array [rows, bytes a row]."""
        if matrix.zero_bias and start == 0:
            self._check_zeros(matrix.zero_bias)
        if matrix.row_order:
            return self._all_in_order(matrix)[start:stop]
        return self._rows(matrix, start, stop)

    def _rows(self, matrix: Matrix, start: int, stop: int) -> Bytes:
        runs = []
        base = 0
        form = self.form(matrix) if matrix.pieces[0].transpose else ""
        for piece in matrix.pieces:
            count = self._piece_rows(piece)
            low, high = max(start, base), min(stop, base + count)
            if low < high:
                wanted = range(low - base, high - base)
                runs.append(self._columns(piece, wanted, form) if piece.transpose else self._read(piece, wanted))
            base += count
        return runs[0] if len(runs) == 1 else np.concatenate(runs)

    def values(self, vector: Vector) -> npt.NDArray[np.float32]:
        """The values of a checked vector; all become f32 without loss, before anything is added.

        Raises CorruptFileError for an integer that f32 does not hold, and for what is no number.
        """
        parts = []
        for piece in vector.pieces:
            tensor = self._tensor(piece)
            raw = tensor.read(0, row_count(tensor)).reshape(-1).view(VECTOR_FORMS[tensor.form])
            values = raw[_slice(piece.start, piece.stop, piece.step, len(raw))]
            plain = _bf16_values(values) if tensor.form == "bf16" else values.astype(np.float32)
            if tensor.form in INTEGER_BYTES and (plain != values).any():
                raise CorruptFileError(
                    f"The tensor {piece.tensor} has integers beyond those that a vector keeps.", "Fetch it again."
                )
            if np.isnan(plain).any():
                raise CorruptFileError(f"The tensor {piece.tensor} has values that are no numbers.", "Fetch it again.")
            parts.append(plain + np.float32(piece.plus) if piece.plus else plain)
        whole = np.concatenate(parts)
        return whole[self._order(vector.row_order)] if vector.row_order else whole

    def _check_zeros(self, name: str) -> None:
        tensor = self._tensors[name]
        if tensor.form in VECTOR_FORMS and not tensor.read(0, 1).view(VECTOR_FORMS[tensor.form]).any():
            return
        raise UnsupportedError(
            f"The tensor {name} is a bias that this model has no place for, and it is not zero.",
            "The model may be a variant that this release does not know.",
        )

    def _order(self, tensor: str) -> npt.NDArray[np.int64]:
        return self._tensors[tensor].read(0, 1).reshape(-1).view(np.float32).astype(np.int64)

    def _all_in_order(self, matrix: Matrix) -> Bytes:
        """All rows of a matrix with an order; kept until another order is asked for."""
        if self._in_order[0] != matrix.row_order:
            self._in_order = (matrix.row_order, {})
        kept = self._in_order[1]
        if matrix.pieces not in kept:
            kept[matrix.pieces] = self._rows(matrix, 0, matrix.rows)[self._order(matrix.row_order)]
        return kept[matrix.pieces]

    def _tensor(self, piece: Piece) -> SourceTensor:
        tensor = self._tensors[piece.tensor]
        if piece.index >= 0:
            tensor = IndexedTensor(tensor, piece.index)
        if piece.plain and tensor.form in FORMS:  # `form` refuses the others
            return PlainTensor(piece.tensor, tensor, self._tensors.get(piece.tensor + ORDER))
        return tensor

    def _piece_rows(self, piece: Piece) -> int:
        rows = self._tensor(piece).shape[-1 if piece.transpose else 0]
        return len(range(piece.start, piece.stop or rows, piece.step))

    def _piece_form(self, piece: Piece) -> str:
        tensor = self._tensor(piece)
        if not piece.transpose:
            return tensor.form
        return transposed_form(piece.tensor, tensor, *self._columns_of(piece))

    def _columns_of(self, piece: Piece) -> tuple[int, int]:
        """The rows of its tensor that are the columns of a transposed piece."""
        return piece.col_start, piece.col_stop or row_count(self._tensor(piece))

    def _read(self, piece: Piece, wanted: range) -> Bytes:
        """Raw rows of a piece."""
        self._kept = None
        first, last = piece.start + wanted[0] * piece.step, piece.start + wanted[-1] * piece.step
        raw = self._tensor(piece).read(first, last + 1)
        return raw if piece.step == 1 else np.ascontiguousarray(raw[:: piece.step])

    def _columns(self, piece: Piece, wanted: range, form: str) -> Bytes:
        """Rows of a transposed piece, raw rows of `form`."""
        tensor, columns = self._tensor(piece), self._columns_of(piece)
        key = (piece.tensor, piece.index, *columns)
        if self._kept is None or self._kept[0] != key:
            self._kept = None  # not two at once
            self._kept = (key, tensor.read(*columns))
        picked = range(piece.start + wanted[0] * piece.step, piece.start + wanted[-1] * piece.step + 1, piece.step)
        return transposed_rows(self._kept[1], tensor.form, tensor.shape[-1], form, picked)


def _slice(start: int, stop: int, step: int, size: int) -> slice:
    return slice(start, stop or size, step)


def _bf16_values(words: npt.NDArray[np.uint16]) -> npt.NDArray[np.float32]:
    return (words.astype(np.uint32) << 16).view(np.float32)
