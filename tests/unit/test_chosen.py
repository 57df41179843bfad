"""Products with matrices that a router has chosen: the native executor against its model, a device bit for bit."""

from __future__ import annotations

import numpy as np
import pytest

from engine import _native
from engine.files.codecs import CODECS
from engine.program.ir import Program, routes_experts
from engine.program.step_bytes import WeightBytes, step_bytes
from tests.same_bits import assert_same_bits
from tests.unit.device_rig import Model, sequence
from tests.unit.native_model import VOCAB, RandomModel

MATRICES, TOP_K, RAGGED = 7, 3, 22  # rows of a matrix that begins and ends within a tile


def chosen_model(codec: str) -> RandomModel:
    """Two chosen products: of one input for all of a token's matrices, and of one for each, which are weighed."""
    model = RandomModel(codec)
    middle = model.hidden if CODECS[codec].cols_unit > 1 else RAGGED
    for name, width in (("scores", MATRICES), ("weights", TOP_K), ("first", TOP_K * middle), ("part", RAGGED)):
        model.buffer(name, width)
    model.buffer("ids", TOP_K, dtype="i32")
    model.buffer("second", TOP_K * RAGGED)
    model.op("linear", ("x",), ("scores",), (model.matrix("router", MATRICES, model.hidden, "f32"), ""), scale=1.0)
    attrs = {"top_k": TOP_K, "scoring": "softmax_topk", "groups": 1, "top_groups": 1, "group_top": 1}
    model.op("route", ("scores",), ("ids", "weights"), ("",), **attrs, normalize=False, scale=1.0, aside=True)
    into = model.matrix("into", MATRICES * middle, model.hidden)
    model.op("chosen_linear", ("x", "ids"), ("first",), (into,), matrices=MATRICES)
    model.op("gate", ("first", "weights"), ("first",), activation="none")
    out = model.matrix("out", MATRICES * RAGGED, middle)
    model.op("chosen_linear", ("first", "ids"), ("second",), (out,), matrices=MATRICES)
    runs = [model.buffer(f"second.run{i}", RAGGED, base="second", offset=i * RAGGED) for i in range(TOP_K)]
    model.op("add", (runs[0], runs[1]), ("part",), scale=1.0)
    model.op("add", ("part", runs[2]), ("part",), scale=1.0)
    model.op("add", ("part",), ("part",), (model.vector("bias", RAGGED),), scale=0.5)
    return model


@pytest.mark.parametrize("codec", _native.codecs())
def test_chosen_products_are_those_of_the_model(codec: str) -> None:
    model = chosen_model(codec)
    model.add_linear("part", RAGGED)
    executor, exact = model.finish(max_tokens=200)
    tokens = np.random.default_rng(3).integers(0, VOCAB, 150).astype(np.int32)  # more than a block for a matrix
    expected = exact.run(tokens)
    largest = np.abs(expected).max()
    tolerance = 2e-5 if CODECS[codec].is_float else 3e-4
    assert np.abs(executor.step(sequence(tokens.tolist())) - expected).max() <= tolerance * largest


@pytest.mark.parametrize("codec", CODECS)
def test_a_device_has_the_bits_of_the_native_executor(codec: str) -> None:
    model = chosen_model(codec)
    model.buffer("logits", RAGGED, domain="row")
    model.op("select", ("part",), ("logits",))
    program = Program(model.buffers, tuple(model.ops), (), (), "logits", RAGGED, "x", (len(model.ops) - 1,))
    both = Model(program, model.dense, ())
    native, device = both.native(), both.device()
    for count in (1, 3, 33):
        batch = sequence(np.random.default_rng(count).integers(0, VOCAB, count).tolist())
        assert_same_bits(device.step(batch), native.step(batch))


def test_a_router_of_matrices_is_no_layer_of_experts() -> None:
    model = chosen_model("f32")
    assert not any(routes_experts(op) for op in model.ops)
    model.moe()
    assert sum(routes_experts(op) for op in model.ops) == 1
    model.add_linear("part", RAGGED)
    executor, _ = model.finish()
    executor.record_routing(True)
    tokens = np.arange(5, dtype=np.int32)
    executor.step(sequence(tokens.tolist()))
    assert executor.routing().shape == (1, 5, TOP_K)


def test_a_token_reads_the_chosen_matrices_alone() -> None:
    model = chosen_model("f32")
    sizes = {name: 7000 if name in ("into", "out") else 0 for name in model.dense}
    weights = WeightBytes(rows={"embed": VOCAB}, dense={**sizes, "head": 0}, records={}, experts=0)
    assert step_bytes(model.program(), weights, kv_value_bytes=2).dense == 2 * 7000 * TOP_K // MATRICES
