"""The table from a kind of operation to its launches, and a program made ready by it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from engine.base.errors import ON_THE_CPU, UnsupportedError
from engine.experts.hybrid import LayerExperts, MoeBuffers
from engine.program.device.gate_operations import make_decay, make_gate, make_gated_norm, make_l2_norm, make_relu2
from engine.program.device.launching import Context, Issue, OpReader
from engine.program.device.mixers import MIXERS
from engine.program.device.products import make_chosen_linear, make_head_linear, make_linear
from engine.program.device.row_operations import (
    make_add,
    make_bound,
    make_embed,
    make_glu,
    make_head_copy,
    make_layer_norm,
    make_rms_norm,
    make_rope,
    make_route,
    make_scale,
    make_select,
    make_sigmoid_gate,
)
from engine.program.device.step_data import Extent
from engine.program.device.stream_operations import make_collapse, make_expand, make_stream_weights
from engine.program.ir import Program

Maker = Callable[[OpReader], Issue]

MAKERS: Mapping[str, Maker] = {
    "embed": make_embed,
    "rms_norm": make_rms_norm,
    "layer_norm": make_layer_norm,
    "bound": make_bound,
    "linear": make_linear,
    "head_linear": make_head_linear,
    "chosen_linear": make_chosen_linear,
    "head_copy": make_head_copy,
    "rope": make_rope,
    "route": make_route,
    "glu": make_glu,
    "sigmoid_gate": make_sigmoid_gate,
    "add": make_add,
    "scale": make_scale,
    "select": make_select,
    "l2_norm": make_l2_norm,
    "decay": make_decay,
    "gated_norm": make_gated_norm,
    "gate": make_gate,
    "stream_weights": make_stream_weights,
    "collapse": make_collapse,
    "expand": make_expand,
    "relu2": make_relu2,
}
"""Kinds whose launches need nothing besides the context; mixers and `experts` are not among them."""


@dataclass(frozen=True)
class DeviceProgram:
    """What issues each operation. From operation `head` on they treat wanted rows, before it tokens."""

    issues: Sequence[Issue]
    head: int

    def issue(self, extent: Extent, first: int, last: int) -> None:
        """The launches of the operations [first, last)."""
        for issue in self.issues[first:last]:
            issue(extent)


def prepare(program: Program, context: Context, experts: LayerExperts | None) -> DeviceProgram:
    """Every operation with its buffers, weights and kernels found. UnsupportedError for what the device cannot run."""
    issues: list[Issue] = []
    for index, op in enumerate(program.ops):
        reader = OpReader(context, index, op)
        if op.kind in MIXERS:
            issues.append(_mixer(reader))
        elif op.kind == "experts":
            issues.append(_experts(reader, experts))
        else:
            reader.require(op.kind in MAKERS, "there is no such operation")
            issues.append(MAKERS[op.kind](reader))
        for name in op.writes:
            context.activations.written(context.buffers[name])
    return DeviceProgram(issues, _head(program))


def _mixer(op: OpReader) -> Issue:
    context, index = op.context, op.index

    def issue(extent: Extent) -> None:
        context.mixers.issue(context.stream, index, op.op, extent)

    return issue


def _experts(op: OpReader, experts: LayerExperts | None) -> Issue:
    x, ids, y = op.read(0), op.read(1), op.write(0)
    weights = op.read(2).address if len(op.op.reads) > 2 else 0
    op.require(x.width == y.width, "input and output differ in width")
    op.require(experts is not None, "no bank holds its experts")
    assert experts is not None
    layer = op.integer("layer")
    dense = (ids.address, weights)

    def issue(extent: Extent) -> None:
        buffers = MoeBuffers(x.address, x.stride, *dense, extent.live(False), y.address, y.stride)
        experts.launch(layer, extent.grid_rows(False), buffers)

    return issue


def _head(program: Program) -> int:
    """The first operation that writes wanted rows; all behind it do as well."""
    per_row = [any(program.buffers[name].domain == "row" for name in op.writes) for op in program.ops]
    head = per_row.index(True) if True in per_row else len(per_row)
    if not all(per_row[head:]):
        raise UnsupportedError(
            "A device treats wanted rows last; this program goes back from them to tokens.", ON_THE_CPU
        )
    return head
