"""Routing written down and forced: what a router chose, run again under force, changes no bit; another choice does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from engine.program.executor import Batch, Floats, Ints
from engine.program.native import NativeExecutor
from tests.unit.native_model import EXPERTS, TOP_K, VOCAB, RandomModel

LAYERS = 3
ROUTERS: tuple[dict[str, Any], ...] = (
    {},
    {"normalize": False, "scale": 2.5, "bias": True},
    {"scoring": "sigmoid", "bias": True},
    {"scoring": "sigmoid", "groups": 4, "top_groups": 2, "group_top": 1, "scale": 1.5},
    {"scoring": "softmax_topk", "normalize": False},
)


def executor_of(router: dict[str, Any], threads: int = 2) -> tuple[NativeExecutor, RandomModel]:
    model = RandomModel(codec="f32", seed=3)
    for _ in range(LAYERS):
        model.attention()
        model.moe(**router)
    native, _ = model.finish(threads=threads)
    return native, model


def batch(tokens: int, start: int = 0) -> Batch:
    count = np.arange(start, start + tokens, dtype=np.int32)
    return Batch(
        tokens=(count * 7 + 1) % VOCAB,
        positions=count,
        seq_starts=np.array([0, tokens], np.int32),
        page_tables=(np.arange(8, dtype=np.int32),),
        rows=np.arange(tokens, dtype=np.int32),
    )


@pytest.fixture(params=range(len(ROUTERS)))
def native(request: pytest.FixtureRequest) -> NativeExecutor:
    return executor_of(ROUTERS[request.param])[0]


def recorded(native: NativeExecutor, tokens: int) -> tuple[Ints, Floats]:
    native.record_routing(True)
    logits = native.step(batch(tokens))
    return native.routing(), logits


def test_what_was_chosen_is_written_down(native: NativeExecutor) -> None:
    ids, _ = recorded(native, 9)
    assert ids.shape == (LAYERS, 9, TOP_K)
    assert ids.dtype == np.int32
    assert (np.diff(np.sort(ids)) > 0).all(), "a token chose an expert twice"
    assert np.array_equal(ids[-1], native._native.buffer(f"ids{LAYERS - 1}"))
    assert len(np.unique(ids)) > TOP_K, "a router that chooses the same for all shows nothing"


def test_forcing_what_was_chosen_changes_no_bit(native: NativeExecutor) -> None:
    ids, logits = recorded(native, 9)
    native.force_routing(ids)
    assert np.array_equal(native.step(batch(9)), logits)
    assert np.array_equal(native.routing(), ids)


def test_another_choice_is_run_with_the_scores_of_its_own_experts(native: NativeExecutor) -> None:
    ids, logits = recorded(native, 9)
    other = (ids + 1) % EXPERTS
    native.force_routing(other)
    forced = native.step(batch(9))
    assert np.array_equal(native.routing(), other)
    assert not np.array_equal(forced, logits)
    native.force_routing(None)
    assert np.array_equal(native.step(batch(9)), logits)
    assert np.array_equal(native.routing(), ids)


@pytest.mark.parametrize("router", ROUTERS)
def test_forced_weights_are_the_routers_own(router: dict[str, Any]) -> None:
    """The weights of forced experts, beside the formula in float64."""
    native, model = executor_of(router, threads=1)
    ids = np.stack([np.random.default_rng(token).permutation(EXPERTS)[:TOP_K] for token in range(5)]).astype(np.int32)
    native.force_routing(np.ascontiguousarray(np.broadcast_to(ids, (LAYERS, 5, TOP_K))))
    native.step(batch(5))
    logits = native._native.buffer(f"scores{LAYERS - 1}").astype(np.float64)
    weights = native._native.buffer(f"weights{LAYERS - 1}")
    exp = np.exp(logits - logits.max(1, keepdims=True))
    scoring = router.get("scoring", "softmax")
    scores = 1 / (1 + np.exp(-logits)) if scoring == "sigmoid" else exp / exp.sum(1, keepdims=True)
    wanted = np.take_along_axis(scores, ids, 1)
    if scoring == "softmax_topk" or router.get("normalize", True):
        wanted = wanted / wanted.sum(1, keepdims=True)
    np.testing.assert_allclose(weights, wanted * router.get("scale", 1.0), rtol=2e-6)
    assert model.experts


def test_order_of_the_chosen_is_the_order_of_the_sum() -> None:
    native, _ = executor_of({})
    ids, _ = recorded(native, 4)
    native.force_routing(np.ascontiguousarray(ids[:, :, ::-1]))
    native.step(batch(4))
    assert np.array_equal(native.routing(), ids[:, :, ::-1])


def test_what_is_not_recorded_is_not_there() -> None:
    native, _ = executor_of({})
    with pytest.raises(ValueError, match="not recorded"):
        native.routing()
    recorded(native, 3)
    native.record_routing(False)
    native.step(batch(3))
    with pytest.raises(ValueError, match="not recorded"):
        native.routing()


def test_a_forced_step_has_the_tokens_of_its_routing() -> None:
    native, _ = executor_of({})
    ids, logits = recorded(native, 9)
    native.force_routing(ids)
    with pytest.raises(ValueError, match="a step of 4 tokens under a routing of 9"):
        native.step(batch(4))
    assert np.array_equal(native.step(batch(9)), logits)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda ids: ids[:2], "3 layers of 3 experts a token"),
        (lambda ids: ids[:, :, :2], "3 layers of 3 experts a token"),
        (lambda ids: np.where(ids == ids[1, 2, 1], EXPERTS, ids), f"has no expert {EXPERTS}"),
        (lambda ids: np.where(ids == ids[1, 2, 1], -1, ids), "has no expert -1"),
        (lambda ids: np.where(np.arange(TOP_K) == 2, ids[:, :, :1], ids), "twice"),
    ],
)
def test_a_routing_that_cannot_be_run_is_refused_and_changes_nothing(change: Any, sentence: str) -> None:
    native, _ = executor_of({})
    ids, logits = recorded(native, 4)
    with pytest.raises(ValueError, match=sentence):
        native.force_routing(np.ascontiguousarray(change(ids), dtype=np.int32))
    assert np.array_equal(native.step(batch(4)), logits)


def test_a_model_without_experts_has_no_routing() -> None:
    model = RandomModel()
    model.attention()
    native, _ = model.finish()
    with pytest.raises(ValueError, match="without experts"):
        native.record_routing(True)
    native.force_routing(None)
