"""Operations that treat rows by themselves: native/cuda/{embed,norm,rope,rows,route}.cu."""

from __future__ import annotations

from engine.device.gated_units import GLU_KINDS, UNGATED
from engine.program.device.launching import THREADS, Issue, OpReader, columns_grid
from engine.program.device.step_data import Extent
from engine.program.ir import routes_experts

UNPACK_RUN = 32  # columns that a thread of `embed` takes
EMBED_THREADS = 64
WARP = 32
SAME_ROW = 0  # the stride of what has one row for all
GLUS = {name: number for name, number in GLU_KINDS.items() if name not in UNGATED}
SCORINGS = {"softmax": 0, "sigmoid": 1, "softmax_topk": 2, "sqrt_softplus": 3, "sparse_mixer": 4, "sigmoid_topk": 5}
MOST_EXPERTS, MOST_GROUPS, MOST_CHOSEN = 4096, 256, 64  # of native/cuda/route.cu


def make_embed(op: OpReader) -> Issue:
    x = op.write(0)
    table = op.context.weights.matrix(op.op.weights[0])
    scale = op.real("scale")
    op.require(table.order == 0, "an embedding cannot have an order of its columns")
    launch = op.context.launcher(f"embed_{table.codec}")
    blocks = -(-table.cols // (UNPACK_RUN * EMBED_THREADS))

    def issue(extent: Extent) -> None:
        grid = (blocks, extent.grid_rows(False), 1)
        args = (table.address, table.cols, extent.token_ids, extent.live(False), scale, x.address, x.stride)
        launch(grid, EMBED_THREADS, *args)

    return issue


def make_rms_norm(op: OpReader) -> Issue:
    x, y = op.read(0), op.write(0)
    group, eps = op.integer("group"), op.real("eps")
    op.require(group > 0 and x.width % group == 0 and y.width == x.width, "the group does not divide the width")
    w = op.context.weights.vector(op.op.weights[0], group)
    launch = op.context.launcher("rms_norm")
    groups, threads = x.width // group, group_threads(group)

    def issue(extent: Extent) -> None:
        live = extent.live(x.per_row)
        grid = (groups, extent.grid_rows(x.per_row), 1)
        launch(grid, threads, x.address, x.stride, w, eps, group, live, y.address, y.stride)

    return issue


def make_layer_norm(op: OpReader) -> Issue:
    x, y = op.read(0), op.write(0)
    group, eps = op.integer("group"), op.real("eps")
    op.require(group > 0 and x.width % group == 0 and y.width == x.width, "the group does not divide the width")
    w, bias = (op.context.weights.vector(name, group) for name in op.op.weights)
    launch = op.context.launcher("layer_norm")
    groups, threads = x.width // group, group_threads(group)

    def issue(extent: Extent) -> None:
        live = extent.live(x.per_row)
        grid = (groups, extent.grid_rows(x.per_row), 1)
        launch(grid, threads, x.address, x.stride, w, bias, eps, group, live, y.address, y.stride)

    return issue


def make_bound(op: OpReader) -> Issue:
    x, y = op.read(0), op.write(0)
    bound, smooth = op.real("bound"), op.integer("smooth")
    op.require(x.width == y.width, "input and output differ in width")
    op.require(bound > 0, "the bound must be above zero")
    launch = op.context.launcher("bound_rows")

    def issue(extent: Extent) -> None:
        live = extent.live(x.per_row)
        grid = columns_grid(x.width, extent.grid_rows(x.per_row))
        launch(grid, THREADS, x.address, x.stride, x.width, bound, smooth, live, y.address, y.stride)

    return issue


def group_threads(group: int) -> int:
    """Threads of a block that norms one group."""
    return WARP if group <= 4 * WARP else THREADS


def make_rope(op: OpReader) -> Issue:
    x = op.write(0)
    op.require(op.op.reads == op.op.writes, "it rotates in place")
    heads, stride, offset = op.integer("heads"), op.integer("stride"), op.integer("offset")
    half, pairs, table = op.integer("dim") // 2, op.integer("pairs"), op.integer("table")
    op.require(offset + 2 * half <= stride and heads * stride <= x.width, "the heads reach beyond the buffer")
    launch = op.context.launcher("rope")
    address = x.address + 4 * offset

    def issue(extent: Extent) -> None:
        cosine, sine = extent.angles(table)
        grid = columns_grid(heads * half, extent.grid_rows(False))
        launch(grid, THREADS, address, x.stride, heads, stride, half, pairs, cosine, sine, extent.live(False))

    return issue


def make_head_copy(op: OpReader) -> Issue:
    x, y = op.read(0), op.write(0)
    heads, width = op.integer("heads"), op.integer("width")
    in_stride, in_offset = op.integer("in_stride"), op.integer("in_offset")
    out_stride, out_offset = op.integer("out_stride"), op.integer("out_offset")
    op.require(in_offset + width <= in_stride and heads * in_stride <= x.width, "the heads reach beyond the input")
    op.require(out_offset + width <= out_stride and heads * out_stride <= y.width, "the heads reach beyond the output")
    launch = op.context.launcher("head_copy")
    source, target = x.address + 4 * in_offset, y.address + 4 * out_offset

    def issue(extent: Extent) -> None:
        live = extent.live(x.per_row)
        grid = columns_grid(heads * width, extent.grid_rows(x.per_row))
        launch(grid, THREADS, source, x.stride, in_stride, heads, width, live, target, y.stride, out_stride)

    return issue


def make_glu(op: OpReader) -> Issue:
    gate, up, h = op.read(0), op.read(1), op.write(0)
    op.require(gate.width == up.width == h.width, "gate, up and output differ in width")
    kind, alpha, limit = op.choice("activation", GLUS), op.real("alpha"), op.real("limit")
    launch = op.context.launcher("glu_rows")

    def issue(extent: Extent) -> None:
        live = extent.live(h.per_row)
        grid = columns_grid(h.width, extent.grid_rows(h.per_row))
        inputs = (gate.address, gate.stride, up.address, up.stride, h.width)
        launch(grid, THREADS, *inputs, kind, alpha, limit, live, h.address, h.stride)

    return issue


def make_sigmoid_gate(op: OpReader) -> Issue:
    x, gate, y = op.read(0), op.read(1), op.write(0)
    op.require(x.width == y.width, "input and output differ in width")
    op.require(x.width % gate.width == 0, "the gates do not divide the width")
    run = x.width // gate.width
    launch = op.context.launcher("sigmoid_gate")

    def issue(extent: Extent) -> None:
        live = extent.live(y.per_row)
        grid = columns_grid(y.width, extent.grid_rows(y.per_row))
        inputs = (x.address, x.stride, gate.address, gate.stride, run, y.width)
        launch(grid, THREADS, *inputs, live, y.address, y.stride)

    return issue


def make_add(op: OpReader) -> Issue:
    a, y = op.read(0), op.write(0)
    op.require(a.width == y.width, "input and output differ in width")
    if len(op.op.reads) > 1:
        b = op.read(1)
        op.require(b.width == y.width, "inputs and output differ in width")
        added = b.address, b.stride
    else:
        added = op.context.weights.vector(op.op.weights[0], y.width), SAME_ROW
    scale = op.real("scale")
    launch = op.context.launcher("add_rows")

    def issue(extent: Extent) -> None:
        live = extent.live(y.per_row)
        grid = columns_grid(y.width, extent.grid_rows(y.per_row))
        launch(grid, THREADS, a.address, a.stride, *added, scale, y.width, live, y.address, y.stride)

    return issue


def make_scale(op: OpReader) -> Issue:
    x = op.write(0)
    op.require(op.op.reads == op.op.writes, "it scales in place")
    factor = op.context.weights.vector(op.op.weights[0], 1)
    by = 1.0 if factor else op.real("by")
    launch = op.context.launcher("scale_rows")

    def issue(extent: Extent) -> None:
        grid = columns_grid(x.width, extent.grid_rows(x.per_row))
        launch(grid, THREADS, x.address, x.stride, factor, by, x.width, extent.live(x.per_row))

    return issue


def make_select(op: OpReader) -> Issue:
    x, y = op.read(0), op.write(0)
    op.require(not x.per_row and y.per_row and x.width == y.width, "it selects rows of a buffer of tokens")
    launch = op.context.launcher("select_rows")

    def issue(extent: Extent) -> None:
        grid = columns_grid(y.width, extent.grid_rows(True))
        launch(grid, THREADS, x.address, x.stride, extent.selected, y.width, extent.live(True), y.address, y.stride)

    return issue


def make_route(op: OpReader) -> Issue:
    logits, ids, weights = op.read(0), op.write(0), op.write(1)
    experts, top_k, groups = logits.width, op.integer("top_k"), op.integer("groups")
    top_groups, group_top = op.integer("top_groups"), op.integer("group_top")
    scoring, normalize, scale = op.choice("scoring", SCORINGS), op.integer("normalize"), op.real("scale")
    jitter = op.real("jitter") if op.op.attrs["scoring"] == "sparse_mixer" else 0.0
    op.require(experts <= MOST_EXPERTS, f"more than {MOST_EXPERTS} experts")
    op.require(1 <= groups <= MOST_GROUPS and experts % groups == 0, "the groups do not divide the experts")
    op.require(1 <= top_groups <= groups and (groups == 1 or group_top >= 1), "no groups are kept or judged")
    op.require(1 <= top_k <= min(MOST_CHOSEN, experts // groups * top_groups), "it chooses too many experts, or none")
    bias = op.context.weights.vector(op.op.weights[0], experts)
    own = op.context.weights.vector(op.op.weights[2], experts) if len(op.op.weights) > 2 else 0
    table = _table(op, experts, top_k)
    launch = op.context.launcher("route")
    layer = op.context.routers.index(op.index) if routes_experts(op.op) else None

    def issue(extent: Extent) -> None:
        shape = (experts, top_k, scoring, groups, top_groups, group_top, normalize, scale, jitter)
        forced = extent.forced_ids(layer, top_k) if layer is not None else 0
        by_token = (table, extent.token_ids)
        inputs = (logits.address, logits.stride, bias, *shape, own, forced, *by_token, extent.live(False))
        launch((extent.grid_rows(False), 1, 1), WARP, *inputs, ids.address, weights.address)
        if layer is not None and extent.record(layer):
            size = 4 * extent.grid_rows(False) * top_k
            op.context.driver.copy(op.context.stream, extent.record(layer), ids.address, size)

    return issue


def _table(op: OpReader, experts: int, top_k: int) -> int:
    """The address of the experts of every token id; 0 where a token's scores choose."""
    name = op.op.weights[1] if len(op.op.weights) > 1 else ""
    if not name:
        return 0
    ids = op.context.weights.values(name)
    op.require(len(ids) % top_k == 0 and len(ids) > 0, "its table does not have experts for every token")
    rows = ids.reshape(-1, top_k)
    named = ((rows >= 0) & (rows < experts) & (rows == rows.astype("i4"))).all()
    op.require(bool(named), "its table names experts that are not there")
    ordered = rows.copy()
    ordered.sort(axis=1)
    op.require(bool((ordered[:, 1:] != ordered[:, :-1]).all()), "its table names an expert twice for a token")
    return op.context.weights.vector(name, len(ids))
