"""Operations of a residual stream that is several: native/cuda/streams.cu."""

from __future__ import annotations

from engine.program.device.launching import THREADS, Issue, OpReader, columns_grid
from engine.program.device.step_data import Extent

MOST_STREAMS = 8  # of native/core/streams.h
ROWS = 32  # of a block where a thread takes a row


def make_stream_weights(op: OpReader) -> Issue:
    x, streams, iterations = op.write(0), _streams(op), op.integer("iterations")
    op.require(op.op.reads == op.op.writes, "it works in place")
    op.require(x.width == (streams * (2 + streams) if iterations else streams), "its buffer does not fit the streams")
    base = op.context.weights.vector(op.op.weights[0], x.width)
    scale = op.context.weights.vector(op.op.weights[1], 3 if iterations else 1)
    eps = op.real("eps")
    launch = op.context.launcher("stream_weights_rows")

    def issue(extent: Extent) -> None:
        blocks = -(-extent.grid_rows(x.per_row) // ROWS)
        shape = (streams, iterations, eps)
        launch((blocks, 1, 1), ROWS, x.address, x.stride, base, scale, *shape, extent.live(x.per_row))

    return issue


def make_collapse(op: OpReader) -> Issue:
    x, weights, y, streams = op.read(0), op.read(1), op.write(0), _streams(op)
    op.require(x.width == streams * y.width and weights.width >= streams, "its buffers do not fit the streams")
    launch = op.context.launcher("collapse_rows")

    def issue(extent: Extent) -> None:
        inputs = (x.address, x.stride, weights.address, weights.stride, streams, y.width)
        grid = columns_grid(y.width, extent.grid_rows(y.per_row))
        launch(grid, THREADS, *inputs, extent.live(y.per_row), y.address, y.stride)

    return issue


def make_expand(op: OpReader) -> Issue:
    x, part, weights, streams = op.write(0), op.read(1), op.read(2), _streams(op)
    op.require(op.op.reads[0] == op.op.writes[0], "it works in place")
    fits = x.width == streams * part.width and weights.width == streams * (2 + streams)
    op.require(fits, "its buffers do not fit the streams")
    launch = op.context.launcher("expand_rows")

    def issue(extent: Extent) -> None:
        inputs = (x.address, x.stride, part.address, part.stride, weights.address, weights.stride)
        grid = columns_grid(part.width, extent.grid_rows(x.per_row))
        launch(grid, THREADS, *inputs, streams, part.width, extent.live(x.per_row))

    return issue


def _streams(op: OpReader) -> int:
    streams = op.integer("streams")
    op.require(1 <= streams <= MOST_STREAMS, f"it mixes {streams} streams, not 1 to {MOST_STREAMS}")
    return streams
