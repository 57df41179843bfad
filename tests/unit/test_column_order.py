"""Matrices whose columns are stored in an order of their own: from the checkpoint's tensors to what a plan reads."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from engine.base.errors import CorruptFileError, UnsupportedError
from engine.files.conversion.gather import Gather
from engine.files.conversion.plan import make_plan
from engine.files.sources.tensors import MemoryTensor, SourceTensor
from engine.program.lowering.lower import lower
from engine.program.step_bytes import WeightBytes, step_bytes
from engine.spec.families import resolve
from engine.spec.layout import ORDER, ExpertRecord, Layout, Matrix, Piece, Vector
from tests.unit.test_spec_layout import DEEPSEEK, DEEPSEEK_TENSORS, LAYER, QWEN3_MOE, QWEN3_TENSORS, Shapes

EXPERT = LAYER + "mlp.experts.1."
Q = LAYER + "self_attn.q_proj.weight"


def with_orders(tensors: Shapes, *names: str) -> Shapes:
    """`names` are quantised and stored in an order."""
    shapes = {name: tensors[name][1] for name in names}
    quantised = {name: ("int4_128z", shape) for name, shape in shapes.items()}
    return tensors | quantised | {name + ORDER: ("f32", shape[-1:]) for name, shape in shapes.items()}


def record(made: Layout, expert: int) -> ExpertRecord:
    return made.experts[expert]


def test_a_dense_matrix_keeps_its_order_beside_it() -> None:
    _, made = resolve(QWEN3_MOE, with_orders(QWEN3_TENSORS, Q))
    assert Vector("layers.0.attn.q.order", 24, (Piece(Q + ORDER),)) in made.vectors
    assert sum(vector.name.endswith(ORDER) for vector in made.vectors) == 1


def test_gate_and_up_of_an_expert_keep_their_orders_in_its_record() -> None:
    names = [f"{EXPERT}{key}_proj.weight" for key in ("gate", "up")]
    _, made = resolve(QWEN3_MOE, with_orders(QWEN3_TENSORS, *names))
    orders = tuple(Vector(f"{key}.order", 24, (Piece(f"{EXPERT}{key}_proj.weight.order"),)) for key in ("gate", "up"))
    assert record(made, 1).vectors == orders
    assert record(made, 1).ordered
    assert not record(made, 0).ordered
    assert all(not matrix.row_order for matrix in record(made, 1).matrices)


def test_the_rows_of_gate_and_up_follow_the_order_of_down() -> None:
    down = f"{EXPERT}down_proj.weight"
    _, made = resolve(QWEN3_MOE, with_orders(QWEN3_TENSORS, down))
    assert {matrix.name: matrix.row_order for matrix in record(made, 1).matrices} == {
        "gate": down + ORDER,
        "up": down + ORDER,
        "down": "",
    }
    assert record(made, 1).vectors == ()


def test_an_order_of_another_length_is_named() -> None:
    tensors = with_orders(QWEN3_TENSORS, Q) | {Q + ORDER: ("f32", (23,))}
    with pytest.raises(CorruptFileError, match=r"q_proj.weight.order has the shape \[23\]"):
        resolve(QWEN3_MOE, tensors)


def test_an_order_that_no_product_can_follow_is_refused() -> None:
    name = "model.embed_tokens.weight"
    with pytest.raises(UnsupportedError, match="columns in an order of its own") as caught:
        resolve(QWEN3_MOE, with_orders(QWEN3_TENSORS, name))
    assert name in caught.value.message


def test_heads_are_read_as_plain_values_where_their_columns_have_an_order() -> None:
    name = LAYER + "self_attn.kv_b_proj.weight"
    _, made = resolve(DEEPSEEK, with_orders(DEEPSEEK_TENSORS, name))
    plain = {matrix.name for matrix in made.matrices if matrix.pieces[0].plain}
    assert plain == {"layers.0.attn.k_up", "layers.0.attn.v_up"}
    assert not any(vector.name.endswith(ORDER) for vector in made.vectors)
    with pytest.raises(CorruptFileError, match=r"kv_b_proj.weight.order has the shape \[7\]"):
        resolve(DEEPSEEK, with_orders(DEEPSEEK_TENSORS, name) | {name + ORDER: ("f32", (7,))})


def test_an_order_is_left_out_with_its_matrix_and_never_alone() -> None:
    name = "model.visual.blocks.0.weight"
    _, made = resolve(QWEN3_MOE, QWEN3_TENSORS | {name: ("int4_32", (8, 32)), name + ORDER: ("f32", (32,))})
    assert made.left_out == {"vision": 2}
    with pytest.raises(UnsupportedError, match=r"does not explain: other\.order"):
        resolve(QWEN3_MOE, QWEN3_TENSORS | {"other.order": ("f32", (24,))})


# --- biases that some quantisers write for every matrix --------------------------------------------------------------


def test_a_bias_without_a_place_is_taken_beside_integers_alone() -> None:
    bias = {f"{EXPERT}up_proj.bias": ("f16", (20,))}
    quantised = QWEN3_TENSORS | {f"{EXPERT}up_proj.weight": ("int4_32", (20, 24))}
    _, made = resolve(QWEN3_MOE, quantised | bias)
    assert [matrix.zero_bias for matrix in record(made, 1).matrices] == ["", f"{EXPERT}up_proj.bias", ""]
    with pytest.raises(UnsupportedError, match=r"does not explain: .*up_proj\.bias"):
        resolve(QWEN3_MOE, QWEN3_TENSORS | bias)


def test_a_bias_with_a_place_is_no_zero() -> None:
    sizes = (("q", 24), ("k", 12), ("v", 12), ("o", 24))
    biases: Shapes = {LAYER + f"self_attn.{key}_proj.bias": ("f16", (rows,)) for key, rows in sizes}
    _, made = resolve(QWEN3_MOE | {"attention_bias": True}, with_orders(QWEN3_TENSORS, Q) | biases)
    assert {matrix.zero_bias for matrix in made.matrices} == {""}
    assert "layers.0.attn.q_bias" in {vector.name for vector in made.vectors}


@pytest.mark.parametrize(("value", "form"), [(0.0, "f16"), (0.0, "bf16"), (0.5, "f16"), (0.5, "f32")])
def test_a_bias_without_a_place_has_to_be_zero(value: float, form: str) -> None:
    kinds = {"f16": np.float16, "f32": np.float32, "bf16": np.uint16}
    bias = MemoryTensor(form, (8,), np.asarray([[0] * 7 + [value]], kinds[form]).view(np.uint8))
    gather = Gather({"w": _floats(np.ones((8, 4))), "b": bias})
    matrix = Matrix("up", 8, 4, (Piece("w"),), zero_bias="b")
    if value:
        with pytest.raises(UnsupportedError, match="The tensor b is a bias"):
            gather.rows(matrix, 0, 4)
    else:
        assert gather.rows(matrix, 0, 8).view(np.float32).sum() == 32


# --- reading ---------------------------------------------------------------------------------------------------------


def _floats(values: np.ndarray) -> MemoryTensor:
    rows = values.astype(np.float32)
    return MemoryTensor("f32", values.shape, np.atleast_2d(rows).view(np.uint8))


def test_rows_are_read_in_order_in_any_chunks() -> None:
    random = np.random.default_rng(0)
    gate, up, bias = (random.standard_normal(shape) for shape in ((40, 8), (2, 20, 8), (40,)))
    orders = [random.permutation(40), random.permutation(40)]
    tensors: dict[str, SourceTensor] = {"gate": _floats(gate), "bias": _floats(bias)}
    tensors["up"] = MemoryTensor("f32", (2, 20, 8), up.reshape(40, 8).astype(np.float32).view(np.uint8))
    tensors |= {f"down{i}.order": _floats(order) for i, order in enumerate(orders)}
    gather = Gather(tensors)
    for i, order in enumerate(orders):
        first = Matrix("gate", 40, 8, (Piece("gate"),), f"down{i}.order")
        second = Matrix("up", 40, 8, (Piece("up", 1), Piece("up", 0)), f"down{i}.order")
        stacked = np.concatenate((up[1], up[0]))
        for start, stop in ((0, 16), (16, 32), (32, 40), (3, 4)):  # gate and up in turn, as they are packed
            for matrix, values in ((first, gate), (second, stacked)):
                rows = gather.rows(matrix, start, stop).view(np.float32)
                np.testing.assert_array_equal(rows, values[order][start:stop].astype(np.float32))
        vector = Vector("gate_bias", 40, (Piece("bias"),), f"down{i}.order")
        np.testing.assert_array_equal(gather.values(vector), bias[order].astype(np.float32))


def test_gate_and_up_with_orders_are_planned_apart() -> None:
    tensors = {key: _floats(np.zeros((16, 8))) for key in ("gate", "up")} | {"down": _floats(np.zeros((8, 16)))}
    orders = {f"{key}.order": _floats(np.arange(8)) for key in ("gate", "up")}
    matrices = (
        *(Matrix(key, 16, 8, (Piece(key),)) for key in ("gate", "up")),
        Matrix("down", 8, 16, (Piece("down"),)),
    )
    vectors = tuple(Vector(name, 8, (Piece(name),)) for name in orders)
    made = Layout((), (), (ExpertRecord(0, 0, matrices, vectors),))
    plan = make_plan(made, Gather(tensors | orders), ())
    assert [field.name for field in plan.banks[0].fields] == ["gate", "up", "down", "gate.order", "up.order"]
    without = replace(made, experts=(ExpertRecord(0, 0, matrices),))
    plan = make_plan(without, Gather(tensors), ())
    assert [field.name for field in plan.banks[0].fields] == ["gate_up", "down"]


def test_a_token_reads_the_orders_of_what_it_multiplies() -> None:
    spec, _ = resolve(QWEN3_MOE, QWEN3_TENSORS)
    program = lower(spec)
    names = {name for op in program.ops for name in op.weights if name}
    weights = WeightBytes(dict.fromkeys(names, 1), dict.fromkeys(names, 64), {0: 4096}, 3 * 4096)
    orders = {"layers.0.attn.q.order": 128, "layers.0.attn.o.order": 64}
    ordered = replace(weights, dense={**weights.dense, **orders})
    assert step_bytes(program, ordered, 2).dense - step_bytes(program, weights, 2).dense == 192
