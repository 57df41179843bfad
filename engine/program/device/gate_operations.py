"""Norms, gates and decays around recurrences: native/cuda/{norm,rows}.cu."""

from __future__ import annotations

from engine.program.device.buffers import Rows
from engine.program.device.launching import THREADS, Issue, OpReader, columns_grid
from engine.program.device.row_operations import group_threads
from engine.program.device.step_data import Extent

ACTIVATIONS = {"none": 0, "sigmoid": 1, "silu": 2, "softplus": 3}  # GateKind of native/ops/recurrences.h


def make_l2_norm(op: OpReader) -> Issue:
    x, y = _alike(op, op.read(0), op.write(0))
    group, eps = _group(op, x), op.real("eps")
    launch = op.context.launcher("l2_norm")

    def issue(extent: Extent) -> None:
        grid = (x.width // group, extent.grid_rows(x.per_row), 1)
        launch(grid, group_threads(group), x.address, x.stride, eps, group, extent.live(x.per_row), y.address, y.stride)

    return issue


def make_gated_norm(op: OpReader) -> Issue:
    x, gate = _alike(op, op.read(0), op.read(1))
    _, y = _alike(op, x, op.write(0))
    group, eps = _group(op, x), op.real("eps")
    gate_first, kind = op.integer("gate_first"), op.choice("activation", ACTIVATIONS)
    weights, name = op.context.weights, op.op.weights[0]
    repeated = weights.length(name) == group
    w = weights.vector(name, group if repeated else x.width)
    launch = op.context.launcher("gated_norm")

    def issue(extent: Extent) -> None:
        inputs = (x.address, x.stride, gate.address, gate.stride, w, 0 if repeated else group)
        grid = (x.width // group, extent.grid_rows(x.per_row), 1)
        shape = (eps, group, gate_first, kind)
        launch(grid, group_threads(group), *inputs, *shape, extent.live(x.per_row), y.address, y.stride)

    return issue


def make_gate(op: OpReader) -> Issue:
    x, y = _alike(op, op.read(0), op.write(0))
    gate = op.read(1)
    op.require(gate.per_row == x.per_row and x.width % gate.width == 0, "its gate differs in width or kind")
    run = x.width // gate.width
    kind = op.choice("activation", ACTIVATIONS)
    launch = op.context.launcher("gate_rows")

    def issue(extent: Extent) -> None:
        inputs = (x.address, x.stride, gate.address, gate.stride, run, x.width, kind)
        grid = columns_grid(x.width, extent.grid_rows(x.per_row))
        launch(grid, THREADS, *inputs, extent.live(x.per_row), y.address, y.stride)

    return issue


def make_relu2(op: OpReader) -> Issue:
    x, y = _alike(op, op.read(0), op.write(0))
    launch = op.context.launcher("relu2_rows")

    def issue(extent: Extent) -> None:
        grid = columns_grid(x.width, extent.grid_rows(x.per_row))
        launch(grid, THREADS, x.address, x.stride, x.width, extent.live(x.per_row), y.address, y.stride)

    return issue


def make_decay(op: OpReader) -> Issue:
    a, g = _alike(op, op.read(0), op.write(0))
    heads, bound = op.integer("heads"), op.real("bound")
    op.require(heads > 0 and a.width % heads == 0, "the heads do not divide the width")
    a_log = op.context.weights.vector(op.op.weights[0], heads)
    bias = op.context.weights.vector(op.op.weights[1], a.width)
    launch = op.context.launcher("decay_rows")

    def issue(extent: Extent) -> None:
        inputs = (a.address, a.stride, a_log, a.width // heads, bias, bound, a.width)
        grid = columns_grid(a.width, extent.grid_rows(a.per_row))
        launch(grid, THREADS, *inputs, extent.live(a.per_row), g.address, g.stride)

    return issue


def _alike(op: OpReader, a: Rows, b: Rows) -> tuple[Rows, Rows]:
    op.require(a.width == b.width and a.per_row == b.per_row, "its buffers differ in width or kind")
    return a, b


def _group(op: OpReader, x: Rows) -> int:
    group = op.integer("group")
    op.require(group > 0 and x.width % group == 0, "the group does not divide the width")
    return group
