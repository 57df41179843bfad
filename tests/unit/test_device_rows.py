"""Every kernel that treats rows by themselves against the native operation of the same name, bit for bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from engine import _native
from engine.files.codecs import CODECS
from engine.program.ir import Program, RopeTable
from tests.same_bits import assert_same_bits
from tests.unit.any_bits import pack_rows
from tests.unit.device_rig import Model, sequence
from tests.unit.native_model import HIDDEN, VOCAB, RandomModel

Floats = npt.NDArray[np.float32]
COUNTS = (1, 2, 3, 8, 31, 33, 50)  # tokens: whole and partly filled graphs, and what is too long for one


def finish(model: RandomModel) -> Model:
    """The model with the buffer x, as rows, for its logits."""
    width = model.buffers["x"].width
    model.buffer("logits", width, domain="row")
    model.op("select", ("x",), ("logits",))
    ends = (len(model.ops) - 1,)
    return Model(
        Program(model.buffers, tuple(model.ops), (), tuple(model.ropes), "logits", width, "x", ends), model.dense, ()
    )


def assert_alike(model: RandomModel) -> None:
    """Logits of all or some rows, and the traced buffer, after steps of several sizes on both executors."""
    whole = finish(model)
    native, device = whole.native(), whole.device()
    for count in COUNTS:
        tokens = np.random.default_rng(count).integers(0, VOCAB, count).tolist()
        for rows in (None, [count - 1, 0] if count > 1 else [0], []):
            batch = sequence(tokens, rows=rows)
            assert_same_bits(device.step(batch), native.step(batch))
        assert_same_bits(device.trace(batch)[0], native.trace(batch)[0])


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("scale", [1.0, 0.7])
def test_embed(codec: str, scale: float) -> None:
    model = RandomModel(codec)
    cols = model.hidden if CODECS[codec].cols_unit > 1 else HIDDEN + 3
    model.buffer("x", cols)
    model.ops.clear()
    model.op("embed", (), ("x",), (model.matrix("table", VOCAB, cols),), scale=scale)
    assert_alike(model)


@pytest.mark.parametrize(("width", "group"), [(64, 64), (64, 16), (60, 20), (61, 61), (4200, 2100), (33, 1)])
def test_rms_norm(width: int, group: int) -> None:
    model = RandomModel()
    model.buffer("x", width)
    model.ops.clear()
    model.op("embed", (), ("x",), (model.matrix("table", VOCAB, width, "f32"),), scale=3.0)
    model.op("rms_norm", ("x",), ("x",), (model.vector("w", group, 1.0),), eps=1e-5, group=group)
    assert_alike(model)


@pytest.mark.parametrize("pairs", [False, True])
def test_rope_of_heads_that_lie_apart_in_a_view(pairs: bool) -> None:
    model = RandomModel()
    model.ropes += [RopeTable((1.0, 0.5)), RopeTable((1.0, 0.3, 0.01, 0.001, 1e-5), 1.25)]
    model.buffer("heads", 51, base="x", offset=5)
    model.op("rope", ("heads",), ("heads",), heads=3, stride=17, offset=4, dim=10, pairs=pairs, table=1)
    model.op("rope", ("x",), ("x",), heads=1, stride=4, offset=0, dim=4, pairs=pairs, table=0)
    assert_alike(model)


@pytest.mark.parametrize("activation", ["silu", "clamped_silu", "limited_silu", "capped_silu", "gelu_tanh", "gelu"])
def test_glu_gate_add_and_copies_of_heads(activation: str) -> None:
    model = RandomModel()
    model.buffer("gate", 40, base="x", offset=3)
    model.buffer("up", 40, base="x", offset=24)
    model.buffer("h", 40)
    model.buffer("one", 1, base="x", offset=63)
    model.op("glu", ("gate", "up"), ("h",), activation=activation, alpha=1.7, limit=0.5)
    model.op("add", ("h", "up"), ("h",), scale=0.3)
    model.buffer("five", 5, base="x", offset=40)
    model.op("sigmoid_gate", ("h", "one"), ("h",))
    model.op("sigmoid_gate", ("h", "five"), ("h",))
    model.op("head_copy", ("h",), ("x",), heads=4, in_stride=9, in_offset=2, out_stride=16, out_offset=5, width=7)
    assert_alike(model)


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize(("width", "group"), [(64, 64), (60, 20), (61, 61), (4200, 2100), (33, 1)])
def test_layer_norm(width: int, group: int, biased: bool) -> None:
    model = RandomModel()
    model.buffer("x", width)
    model.ops.clear()
    model.op("embed", (), ("x",), (model.matrix("table", VOCAB, width, "f32"),), scale=3.0)
    weights = (model.vector("w", group, 1.0), model.vector("b", group) if biased else "")
    model.op("layer_norm", ("x",), ("x",), weights, eps=1e-5, group=group)
    assert_alike(model)


@pytest.mark.parametrize("smooth", [False, True])
def test_bound(smooth: bool) -> None:
    model = RandomModel()
    model.buffer("y", 45, base="x", offset=7)
    model.op("bound", ("y",), ("y",), bound=0.7, smooth=smooth)
    assert_alike(model)


@pytest.mark.parametrize(("width", "group"), [(64, 16), (61, 61), (4200, 2100)])
def test_l2_norm(width: int, group: int) -> None:
    model = RandomModel()
    model.buffer("x", width)
    model.ops.clear()
    model.op("embed", (), ("x",), (model.matrix("table", VOCAB, width, "f32"),), scale=3.0)
    model.op("l2_norm", ("x",), ("x",), eps=1e-6, group=group)
    assert_alike(model)


@pytest.mark.parametrize("activation", ["silu", "sigmoid"])
@pytest.mark.parametrize("gate_first", [False, True])
@pytest.mark.parametrize(("group", "weights"), [(20, 20), (20, 60), (60, 60)])
def test_gated_norm(activation: str, gate_first: bool, group: int, weights: int) -> None:
    model = RandomModel()
    model.buffer("gate", 60, base="x", offset=4)
    model.buffer("y", 60)
    model.op("head_copy", ("x",), ("y",), heads=1, in_stride=60, in_offset=0, out_stride=60, out_offset=0, width=60)
    w = model.vector("w", weights, 1.0)
    attrs = {"eps": 1e-5, "group": group, "gate_first": gate_first, "activation": activation}
    model.op("gated_norm", ("y", "gate"), ("y",), (w,), **attrs)
    model.op("head_copy", ("y",), ("x",), heads=1, in_stride=60, in_offset=0, out_stride=60, out_offset=0, width=60)
    assert_alike(model)


def test_gate_of_one_value_scale_norm_without_weights_and_growing_angles() -> None:
    model = RandomModel()
    model.ropes.append(RopeTable((0.0, 0.3), 1.25, 0.4, 3, 1))
    model.buffer("one", 1, base="x", offset=3)
    model.buffer("y", 50, base="x", offset=8)
    model.op("rope", ("y",), ("y",), heads=5, stride=10, offset=2, dim=4, pairs=False, table=0)
    model.op("gate", ("y", "one"), ("y",), activation="none")
    model.op("scale", ("y",), ("y",), (model.vector("factor", 1, 2.0),))
    model.op("rms_norm", ("y",), ("y",), ("",), eps=1e-5, group=10)
    assert_alike(model)


@pytest.mark.parametrize("activation", ["silu", "sigmoid", "softplus", "none"])
def test_gate_and_relu2(activation: str) -> None:
    model = RandomModel()
    model.buffer("g", 20, base="x", offset=3)
    model.buffer("y", 20, base="x", offset=40)
    model.op("gate", ("y", "g"), ("y",), activation=activation)
    model.op("relu2", ("g",), ("g",))
    assert_alike(model)


@pytest.mark.parametrize("bound", [0.0, -5.0])
@pytest.mark.parametrize("values", [1, 7])
def test_decay(values: int, bound: float) -> None:
    model = RandomModel()
    model.buffer("a", 6 * values, base="x", offset=5)
    weights = (model.vector("a_log", 6), model.vector("dt_bias", 6 * values))
    model.op("decay", ("a",), ("a",), weights, heads=6, bound=bound)
    assert_alike(model)


def test_gates_and_decays_at_the_edges_of_numbers() -> None:
    model = RandomModel()
    edges = [
        np.nan,
        np.inf,
        -np.inf,
        0.0,
        -0.0,
        1e-40,
        -1e-40,
        88.8,
        -88.8,
        1e30,
        -1e30,
        20.0,
        -20.0,
        1e-6,
        -1e-6,
        3e38,
    ]
    table = np.resize(np.asarray(edges, np.float32), (VOCAB, HIDDEN))
    model.dense["embed"] = packed_f32(table)
    model.buffer("g", 32, base="x", offset=1)
    model.buffer("a", 16, base="x", offset=33)
    model.buffer("r", 15, base="x", offset=49)
    model.op("gate", ("g", "g"), ("g",), activation="silu")
    model.op("decay", ("a",), ("a",), (model.vector("a_log", 16), model.vector("dt_bias", 16)), heads=16, bound=0.0)
    model.op("relu2", ("r",), ("r",))
    assert_alike(model)


def test_what_is_no_number_keeps_the_form_of_the_contract() -> None:
    model = RandomModel()
    table = np.random.default_rng(0).normal(size=(VOCAB, HIDDEN)).astype(np.float32)
    table[3] = np.nan
    table[4, ::5] = [np.inf, -np.inf, 0.0, -0.0] * 3 + [np.inf]
    table[5] *= 1e38
    model.dense["embed"] = packed_f32(table)
    model.ropes.append(RopeTable((1.0, 0.3)))
    model.op("rope", ("x",), ("x",), heads=4, stride=16, offset=0, dim=4, pairs=False, table=0)
    model.op("rms_norm", ("x",), ("x",), (model.vector("w", 16, 1.0),), eps=1e-5, group=16)
    model.op("glu", ("x", "x"), ("x",), activation="clamped_silu", alpha=1.7, limit=0.5)
    model.op("add", ("x", "x"), ("x",), scale=-1.0)
    whole = finish(model)
    batch = sequence([3, 4, 5, 6])
    ours = whole.device().step(batch)
    assert np.isnan(ours[0]).all()
    assert not np.isnan(ours[3]).any()
    assert_same_bits(ours, whole.native().step(batch))


def packed_f32(values: Floats) -> Any:
    from engine.files.ftw.opening import Tensor

    rows, cols = values.shape
    out = np.zeros(_native.packed_bytes("f32", rows, cols), np.uint8)
    pack_rows("f32", values.view(np.uint8), cols, out, len(out) // -(-rows // 16))
    return Tensor("f32", rows, cols, memoryview(out))


@pytest.mark.parametrize(("streams", "hidden", "iterations"), [(4, 16, 20), (3, 33, 1), (8, 17, 3), (1, 60, 2)])
def test_streams_that_are_collapsed_and_expanded(streams: int, hidden: int, iterations: int) -> None:
    model = RandomModel()
    width, weights = streams * hidden, streams * (2 + streams)
    model.buffer("x", width)
    model.ops.clear()
    model.op("embed", (), ("x",), (model.matrix("table", VOCAB, width, "f32"),), scale=3.0)
    copy = {"heads": 1, "in_stride": width, "in_offset": 1, "out_offset": 0}
    for name, count, rounds in (("last", streams, 0), ("w", weights, iterations)):
        model.buffer(name, count)
        model.op("linear", ("x",), (name,), (model.matrix(f"{name}_m", count, width, "f32"), ""), scale=1.0)
        vectors = (model.vector(f"{name}_base", count, 0.3), model.vector(f"{name}_scale", 3 if rounds else 1, 0.4))
        shape = {"streams": streams, "iterations": rounds, "eps": 1e-3}
        model.op("stream_weights", (name,), (name,), vectors, **shape)
    model.buffer("part", hidden)
    model.op("collapse", ("x", "w"), ("part",), streams=streams)
    model.op("expand", ("x", "part", "w"), ("x",), streams=streams)
    model.op("collapse", ("x", "last"), ("part",), streams=streams)
    model.op("head_copy", ("part",), ("x",), **{**copy, "in_stride": hidden, "out_stride": width, "width": hidden - 1})
    assert_alike(model)
