"""Products of dense matrices: native/cuda/{pack,linear,linear_many,head_linear}.cu."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from engine.device.products import (
    FEW_THREADS,
    MANY_ROWS,
    MANY_THREADS,
    PACK_THREADS,
    ROW_THREADS,
    few_grid,
    input_bytes,
    many_grid,
    pack_grid,
    row_grid,
    token_groups,
)
from engine.files.codecs import CODECS, TILE_ROWS
from engine.program.device.activations import PackedRows
from engine.program.device.buffers import Rows
from engine.program.device.launching import THREADS, Issue, OpReader, columns_grid
from engine.program.device.step_data import Extent
from engine.program.device.weights import Matrix

PLAIN_ORDER = 0  # no order of columns
NO_IDS = (0, 0)  # every head has the matrix of its number


@dataclass(frozen=True)
class Packing:
    """How rows of a buffer become the input of a product."""

    kernel: str
    address: int
    stride: int
    order: int
    cols: int
    rows: PackedRows

    def issue(self, op: OpReader) -> Callable[[Extent, bool], None]:
        """What launches it, for an extent and the domain of the buffer."""
        launch = op.context.launcher(self.kernel)
        grid_of, threads = (pack_grid, PACK_THREADS) if self.kernel == "pack_q16" else (row_grid, ROW_THREADS)

        def issue(extent: Extent, per_row: bool) -> None:
            grid = grid_of(self.cols, extent.grid_rows(per_row))
            source = (self.address, self.stride, self.order, extent.live(per_row), 1, self.cols)
            launch(grid, threads, *source, self.rows.address, self.rows.row_bytes)

        return issue


def make_linear(op: OpReader) -> Issue:
    x = op.read(0)
    scale = op.real("scale")
    op.require(len(op.op.weights) == 2 * len(op.op.writes) > 0, "it takes a matrix and a bias for each output")
    inputs = _Inputs(op, x)
    products = [_product(op, i, x, inputs, scale) for i in range(len(op.op.writes))]
    packings = [packing.issue(op) for packing in inputs.packings]

    def issue(extent: Extent) -> None:
        for pack in packings:
            pack(extent, x.per_row)
        for product in products:
            product(extent)

    return issue


def make_head_linear(op: OpReader) -> Issue:
    x, y = op.read(0), op.write(0)
    matrix = op.context.weights.matrix(op.op.weights[0])
    heads = op.integer("heads")
    in_stride, in_offset = op.integer("in_stride"), op.integer("in_offset")
    out_stride, out_offset = op.integer("out_stride"), op.integer("out_offset")
    op.require(heads > 0 and matrix.rows % heads == 0, "the heads do not divide the matrix")
    op.require(matrix.order == PLAIN_ORDER, "its columns are in another order")
    rows, cols = matrix.rows // heads, matrix.cols
    op.require(in_offset + cols <= in_stride and heads * in_stride <= x.width, "the heads reach beyond the input")
    op.require(out_offset + rows <= out_stride and heads * out_stride <= y.width, "the heads reach beyond the output")
    launch = op.context.launcher(f"head_linear_{matrix.codec}")
    source, target = x.address + 4 * in_offset, y.address + 4 * out_offset
    pack, packed = None, PackedRows(source, 4 * x.stride)
    head_bytes = 4 * in_stride
    if not CODECS[matrix.codec].is_float:
        pack, packed = _pack_heads(op, x, source, heads, in_stride, cols)
        head_bytes = input_bytes(matrix.codec, cols)

    def issue(extent: Extent) -> None:
        if pack is not None:
            pack(extent)
        tile_blocks, tokens, _ = few_grid(_touched(rows), extent.grid_rows(False))
        inputs = (matrix.address, rows, cols, *NO_IDS, packed.address, packed.row_bytes, head_bytes)
        launch((tile_blocks, tokens, heads), FEW_THREADS, *inputs, extent.live(False), target, y.stride, out_stride)

    return issue


def make_chosen_linear(op: OpReader) -> Issue:
    x, ids, y = op.read(0), op.read(1), op.write(0)
    matrix = op.context.weights.matrix(op.op.weights[0])
    matrices, top_k = op.integer("matrices"), ids.width
    op.require(matrices > 0 and matrix.rows % matrices == 0, "the rows do not divide into matrices")
    op.require(matrix.order == PLAIN_ORDER, "its columns are in another order")
    rows, cols = matrix.rows // matrices, matrix.cols
    op.require(x.width in (cols, top_k * cols), "the input has neither one run nor one for each chosen matrix")
    op.require(y.width == top_k * rows, "the output does not have a run for each chosen matrix")
    launch = op.context.launcher(f"head_linear_{matrix.codec}")
    runs = x.width // cols
    packs, packed, run_bytes = [], PackedRows(x.address, 4 * x.stride), 4 * cols
    if not CODECS[matrix.codec].is_float:
        pack, packed = _pack_heads(op, x, x.address, runs, cols, cols)
        packs, run_bytes = [pack], input_bytes(matrix.codec, cols)

    def issue(extent: Extent) -> None:
        for pack in packs:
            pack(extent)
        tile_blocks, tokens, _ = few_grid(_touched(rows), extent.grid_rows(False))
        source = (packed.address, packed.row_bytes, run_bytes if runs > 1 else 0)
        inputs = (matrix.address, rows, cols, ids.address, ids.stride, *source, extent.live(False))
        launch((tile_blocks, tokens, top_k), FEW_THREADS, *inputs, y.address, y.stride, rows)

    return issue


def _touched(rows: int) -> int:
    """Rows of the tiles that one of several matrices stacked by rows can touch."""
    return rows + (TILE_ROWS if rows % TILE_ROWS else 0)


class _Inputs:
    """What the matrices of one operation read: the buffer itself, or rows that are packed before the first of them."""

    def __init__(self, op: OpReader, x: Rows) -> None:
        self._op = op
        self._x = x
        self._ordered: dict[tuple[int, bool], PackedRows] = {}
        self.packings: list[Packing] = []

    def of(self, matrix: Matrix) -> PackedRows:
        x, activations = self._x, self._op.context.activations
        is_integer = not CODECS[matrix.codec].is_float
        kernel = "pack_q16" if is_integer else "gather_f32"
        if matrix.order == PLAIN_ORDER:
            if not is_integer:
                return PackedRows(x.address, 4 * x.stride)
            packed, is_stale = activations.packed(x)
            if is_stale:
                self.packings.append(Packing(kernel, x.address, x.stride, PLAIN_ORDER, x.width, packed))
            return packed
        key = matrix.order, is_integer
        if key not in self._ordered:
            self._ordered[key] = packed = activations.ordered(x, is_integer, len(self._ordered))
            self.packings.append(Packing(kernel, x.address, x.stride, matrix.order, x.width, packed))
        return self._ordered[key]


def _product(op: OpReader, i: int, x: Rows, inputs: _Inputs, scale: float) -> Issue:
    matrix, y = op.context.weights.matrix(op.op.weights[2 * i]), op.write(i)
    op.require(matrix.cols == x.width and matrix.rows == y.width, "the matrix does not fit its buffers")
    op.require(x.per_row == y.per_row, "it reads and writes rows of different kinds")
    bias = op.context.weights.vector(op.op.weights[2 * i + 1], matrix.rows)
    packed = inputs.of(matrix)
    few = op.context.launcher(f"linear_{matrix.codec}")
    many = op.context.launcher(f"linear_many_{matrix.codec}")
    source = (matrix.address, matrix.rows, matrix.cols, packed.address, packed.row_bytes)
    target = (bias, scale, y.address, y.stride)

    def issue(extent: Extent) -> None:
        rows, live = extent.grid_rows(x.per_row), extent.live(x.per_row)
        if rows < MANY_ROWS:
            few(few_grid(matrix.rows, rows), FEW_THREADS, *source, live, *target)
        else:
            many(many_grid(matrix.rows, token_groups(rows)), MANY_THREADS, *source, live, *target)

    return issue


def _pack_heads(op: OpReader, x: Rows, source: int, heads: int, in_stride: int, cols: int) -> tuple[Issue, PackedRows]:
    """Packs `cols` values of every head from `source` on, as one row a token; where they lie apart, gathers first."""
    activations, width = op.context.activations, heads * cols
    rows = activations.of_heads(width, is_integer=True)
    if in_stride == cols:
        pack = Packing("pack_q16", source, x.stride, PLAIN_ORDER, width, rows).issue(op)
        return lambda extent: pack(extent, False), rows
    plain = activations.of_heads(width, is_integer=False)
    stride = plain.row_bytes // 4
    gather = op.context.launcher("head_copy")
    pack = Packing("pack_q16", plain.address, stride, PLAIN_ORDER, width, rows).issue(op)

    def issue(extent: Extent) -> None:
        grid = columns_grid(width, extent.grid_rows(False))
        shape = (x.stride, in_stride, heads, cols, extent.live(False))
        gather(grid, THREADS, source, *shape, plain.address, stride, cols)
        pack(extent, False)

    return issue, rows
