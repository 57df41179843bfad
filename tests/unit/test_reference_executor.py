"""The reference executor's cache and protocol, on small programs made by hand or lowered from small specs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from engine.base.errors import DoesNotFitError
from engine.memory.blocks import ContextRoom
from engine.program.executor import Batch
from engine.program.ir import Buffer, Op, Program
from engine.program.lowering.lower import lower
from engine.program.reference.executor import ReferenceExecutor
from engine.spec.families import spec_from_config
from engine.spec.feed_forward import Moe
from engine.spec.schema import Spec
from engine.spec.tensors import expert_tensors, layer_tensors, outer_tensors
from engine.spec.wanted import tensor_name
from tests.unit.native_model import ATTENTION, LONG, DenseWeights, RandomModel, assert_near

Floats = NDArray[np.float32]
Ints = NDArray[np.int32]

CONFIG: dict[str, Any] = {
    "model_type": "qwen3_moe",
    "vocab_size": 50,
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 6,
    "moe_intermediate_size": 16,
    "max_position_embeddings": 256,
    "num_experts": 4,
    "num_experts_per_tok": 2,
}


class RandomWeights:
    """Weights drawn from their names."""

    def __init__(self, spec: Spec) -> None:
        self._spec = spec
        self._wanted = {wanted.key: wanted for wanted in outer_tensors(spec)}
        for layer in range(len(spec.layers)):
            self._wanted |= {tensor_name(wanted.key, layer): wanted for wanted in layer_tensors(spec, layer)}

    def dense(self, name: str) -> Floats:
        wanted = self._wanted[name]
        return self._draw(name, (wanted.cols,) if wanted.is_vector else (wanted.rows, wanted.cols))

    def expert(self, layer: int, expert: int) -> Mapping[str, Floats]:
        moe = self._spec.layers[self._spec.moe_layers[layer]].ffn
        assert isinstance(moe, Moe)
        shapes = {wanted.key: (wanted.rows, wanted.cols) for wanted in expert_tensors(self._spec, moe)}
        return {key: self._draw(f"{layer}.{expert}.{key}", shape) for key, shape in shapes.items()}

    def _draw(self, name: str, shape: tuple[int, ...]) -> Floats:
        generator = np.random.default_rng(list(name.encode()))
        return (generator.standard_normal(shape) * shape[-1] ** -0.5).astype(np.float32)


@pytest.fixture(autouse=True, scope="module")
def one_torch_thread() -> Iterator[None]:
    """Models this small are slower on several threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def executor() -> ReferenceExecutor:
    spec = spec_from_config(CONFIG)
    return ReferenceExecutor(lower(spec), RandomWeights(spec), ContextRoom(12), page_tokens=4)


def ints(*values: int) -> Ints:
    return np.asarray(values, np.int32)


def batch(*sequences: tuple[list[int], int, Ints], rows: list[int] | None = None) -> Batch:
    """Sequences of (tokens, first position, pages); logits of every token unless `rows` says otherwise."""
    tokens = [token for sequence, _, _ in sequences for token in sequence]
    positions = [start + i for sequence, start, _ in sequences for i in range(len(sequence))]
    starts = np.cumsum([0, *(len(sequence) for sequence, _, _ in sequences)]).astype(np.int32)
    wanted = list(range(len(tokens))) if rows is None else rows
    tables = tuple(pages for _, _, pages in sequences)
    return Batch(ints(*tokens), ints(*positions), starts, tables, ints(*wanted))


ONE, OTHER = [3, 14, 15, 9, 26, 5, 35], [8, 9, 7, 9, 3]


def test_sequences_beside_each_other_do_not_meet(executor: ReferenceExecutor) -> None:
    alone = executor.step(batch((ONE, 0, ints(0, 1))))
    other = executor.step(batch((OTHER, 0, ints(2, 3))))
    together = executor.step(batch((ONE, 0, ints(7, 4)), (OTHER, 0, ints(5, 11))))
    np.testing.assert_allclose(together, np.concatenate([alone, other]), atol=1e-5)


def test_an_empty_sequence_changes_nothing(executor: ReferenceExecutor) -> None:
    alone = executor.step(batch((ONE, 0, ints(0, 1))))
    beside = executor.step(batch(([], 0, ints()), (ONE, 0, ints(0, 1)), ([], 5, ints(3))))
    np.testing.assert_array_equal(beside, alone)


def test_only_wanted_rows_are_returned(executor: ReferenceExecutor) -> None:
    everything = executor.step(batch((ONE, 0, ints(0, 1))))
    some = executor.step(batch((ONE, 0, ints(0, 1)), rows=[5, 2]))
    np.testing.assert_allclose(some, everything[[5, 2]], atol=1e-6)
    assert executor.step(batch((ONE, 0, ints(0, 1)), rows=[])).shape == (0, 50)
    assert executor.step(batch(([], 0, ints()))).shape == (0, 50)


def test_a_page_goes_on_where_it_was_copied(executor: ReferenceExecutor) -> None:
    """A shared prefix: the first page of one sequence, copied, serves another."""
    whole = executor.step(batch(([*ONE[:4], *OTHER], 0, ints(0, 1, 2))))
    executor.step(batch((ONE, 0, ints(3, 4))))
    executor.copy_block("page", 3, 9)
    continued = executor.step(batch((OTHER, 4, ints(9, 5, 6))))
    np.testing.assert_allclose(continued, whole[4:], atol=1e-5)


def test_wrong_pages_change_the_logits(executor: ReferenceExecutor) -> None:
    whole = executor.step(batch(([*ONE[:4], *OTHER], 0, ints(0, 1, 2))))
    continued = executor.step(batch((OTHER, 4, ints(10, 5, 6))))
    assert np.abs(continued - whole[4:]).max() > 1e-2


def test_growing_keeps_pages_and_shrinking_those_below(executor: ReferenceExecutor) -> None:
    whole = executor.step(batch(([*ONE[:4], *OTHER], 0, ints(0, 1, 2))))
    executor.step(batch((ONE[:4], 0, ints(3))))
    executor.resize_context(ContextRoom(40))
    assert executor.room.pages == 40
    executor.resize_context(ContextRoom(6))
    continued = executor.step(batch((OTHER, 4, ints(3, 4, 5))))
    np.testing.assert_allclose(continued, whole[4:], atol=1e-5)


def test_a_cache_that_does_not_fit_is_refused_and_nothing_changes(executor: ReferenceExecutor) -> None:
    first = executor.step(batch((ONE, 0, ints(0, 1))))
    with pytest.raises(DoesNotFitError, match="pages of context"):
        executor.resize_context(ContextRoom(1 << 50))
    assert executor.room.pages == 12
    np.testing.assert_array_equal(executor.step(batch((ONE, 0, ints(0, 1)))), first)


def test_trace_gives_the_residual_after_each_layer(executor: ReferenceExecutor) -> None:
    states = executor.trace(batch((ONE, 0, ints(0, 1))))
    assert [state.shape for state in states] == [(7, 24), (7, 24)]
    assert np.abs(states[0] - states[1]).max() > 0.1


def test_counters_count(executor: ReferenceExecutor) -> None:
    executor.step(batch((ONE, 0, ints(0, 1))))
    counters = executor.counters()
    assert counters["steps"] == 1
    assert counters["experts_run"] == len(ONE) * 2 * 2
    assert {"expert_seconds", "attention_seconds", "dense_seconds", "expert_bytes"} <= set(counters)


# --- the router, against arithmetic by hand


@pytest.mark.parametrize("name", ATTENTION)
def test_attention_is_that_of_a_float64_model(name: str) -> None:
    model = RandomModel()
    model.attention(**ATTENTION[name])
    _, exact = model.finish(max_tokens=LONG)
    executor = ReferenceExecutor(exact.program, DenseWeights(**exact.dense), ContextRoom(-(-LONG // 16)))
    assert_near(executor, exact, LONG, 2e-5)


ROUTE = {"scoring": "softmax", "groups": 1, "top_groups": 1, "group_top": 1, "normalize": False, "scale": 1.0}


def route(logits: list[float], bias: list[float] | None = None, top_k: int = 2, **attrs: Any) -> dict[int, float]:
    """The experts chosen and their weights, in the order of choice."""
    buffers = {
        "x": Buffer(len(logits)),
        "ids": Buffer(top_k, dtype="i32"),
        "weights": Buffer(top_k),
        "out": Buffer(top_k, "row"),
    }
    answers = []
    for answer in ("ids", "weights"):
        ops = (
            Op("embed", (), ("x",), ("logits",), {"scale": 1.0}),
            Op("route", ("x",), ("ids", "weights"), ("bias" if bias else "",), {**ROUTE, "top_k": top_k, **attrs}),
            Op("select", (answer,), ("out",)),
        )
        program = Program(buffers, ops, (), (), "out", top_k, "x", ())
        executor = ReferenceExecutor(program, DenseWeights(logits=[logits], bias=bias))
        answers.append(executor.step(batch(([0], 0, ints(0))))[0].tolist())
    return dict(zip((int(expert) for expert in answers[0]), answers[1], strict=True))


def softmax(*logits: float) -> list[float]:
    exponentials = np.exp(np.asarray(logits, np.float64))
    return [float(value) for value in exponentials / exponentials.sum()]


def test_softmax_over_all_then_the_best() -> None:
    scores = softmax(1, 3, 2, 0)
    assert route([1, 3, 2, 0]) == pytest.approx({1: scores[1], 2: scores[2]})


def test_softmax_over_the_chosen() -> None:
    scores = softmax(3, 2)
    assert route([1, 3, 2, 0], scoring="softmax_topk") == pytest.approx({1: scores[0], 2: scores[1]})


def test_ties_go_to_the_lower_id() -> None:
    assert list(route([1, 2, 2, 2])) == [1, 2]
    assert list(route([0, 0, 0, 0], scoring="sigmoid")) == [0, 1]


def test_a_bias_moves_the_choice_and_not_the_weights() -> None:
    sigmoid = 1 / (1 + np.exp(-np.asarray([1.0, 3.0, 2.0, 0.0])))
    chosen = route([1, 3, 2, 0], bias=[0, 0, 0, 5], scoring="sigmoid")
    assert chosen == pytest.approx({3: sigmoid[3], 1: sigmoid[1]})


def test_weights_are_normalised_then_scaled() -> None:
    scores = softmax(1, 3, 2, 0)
    total = scores[1] + scores[2]
    chosen = route([1, 3, 2, 0], normalize=True, scale=2.5)
    assert chosen == pytest.approx({1: 2.5 * scores[1] / total, 2: 2.5 * scores[2] / total})


def test_groups_compete_by_the_sum_of_their_best() -> None:
    logits = [9.0, 0.0, 5.0, 5.0, 1.0, 1.0]  # the best expert is in the group whose best two are not the best
    assert list(route(logits, scoring="softmax_topk", groups=3, top_groups=1, group_top=1)) == [0, 1]
    assert list(route(logits, scoring="softmax_topk", groups=3, top_groups=1, group_top=2)) == [2, 3]
    assert list(route(logits, scoring="softmax_topk", groups=3, top_groups=2, group_top=2, top_k=3)) == [0, 2, 3]
