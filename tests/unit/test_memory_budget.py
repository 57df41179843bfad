"""The sizes of context memory, and the sentences when they do not fit."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.base.errors import DoesNotFitError, UsageError
from engine.base.units import GIB, MIB, KvBudget
from engine.memory.budget import (
    DEFAULT_CONTEXT,
    MOST_WITHOUT_BYTES,
    ContextNeeds,
    plan_context,
    plan_resize,
    windows_for,
)
from engine.memory.pages import PAGE_TOKENS
from engine.memory.windows import window_pages


def test_default_is_the_models_context_up_to_a_share_of_free_memory() -> None:
    plan = plan_context(ContextNeeds(1000), model_context=4096, available=GIB)
    assert (plan.context, plan.kv_tokens) == (4096, 4096)
    assert plan_context(ContextNeeds(1000), model_context=10**6, available=GIB).context == DEFAULT_CONTEXT
    small = plan_context(ContextNeeds(MIB), model_context=10**6, available=64 * MIB)
    assert (small.context, small.kv_tokens) == (16, 16)


def test_odd_model_context_is_kept_exactly() -> None:
    plan = plan_context(ContextNeeds(10), model_context=1000, available=GIB)
    assert (plan.context, plan.kv_tokens) == (1000, 1008)


@pytest.mark.parametrize("kv", [KvBudget(tokens=10**13), KvBudget(bytes=GIB)])
def test_tokens_that_take_no_bytes_are_not_without_end(kv: KvBudget) -> None:
    recurrent = plan_context(ContextNeeds(0, state_bytes=1000), model_context=4096, available=GIB)
    assert recurrent.kv_tokens == 4096
    large = plan_context(ContextNeeds(0, state_bytes=1000), model_context=4096, available=GIB, kv=kv)
    assert (large.kv_tokens, large.context) == (MOST_WITHOUT_BYTES, 4096)
    resized = plan_resize(recurrent, kv, context_limit=4096, context_border=None, available=GIB)
    assert resized.kv_tokens == MOST_WITHOUT_BYTES
    few = plan_context(ContextNeeds(0, state_bytes=1000), model_context=4096, available=GIB, kv=KvBudget(tokens=100))
    assert few.kv_tokens == 112


def test_explicit_numbers() -> None:
    plan = plan_context(ContextNeeds(1000), model_context=32768, available=GIB, context=100, kv=KvBudget(tokens=1000))
    assert (plan.context, plan.kv_tokens, plan.pages) == (100, 1008, 63)
    plan = plan_context(ContextNeeds(1000), model_context=32768, available=GIB, kv=KvBudget(bytes=100_000))
    assert (plan.context, plan.kv_tokens) == (96, 96)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"context": 5000}, r"--context 5000 is 904 tokens more than the 4096"),
        (
            {"context": 4096, "kv": KvBudget(tokens=1024)},
            r"--context 4096 needs 3072 tokens more than --kv leaves \(1024",
        ),
        ({"kv": KvBudget(tokens=2**20)}, r"takes 1\.00 GiB, .* more than the 100 MiB that are free\. Give --kv 102400"),
        ({"kv": KvBudget(bytes=100)}, r"--kv 100B is 16284 bytes short of one page"),
    ],
)
def test_what_does_not_fit_is_named(arguments: dict[str, object], sentence: str) -> None:
    with pytest.raises(DoesNotFitError, match=sentence) as caught:
        plan_context(ContextNeeds(1024), model_context=4096, available=100 * MIB, **arguments)  # type: ignore[arg-type]
    assert caught.value.exit_code == 4


def test_a_share_needs_experts_to_share_with() -> None:
    with pytest.raises(UsageError, match=r"--kv 40% is a share .* nothing is cached here"):
        plan_context(ContextNeeds(1), model_context=10, available=GIB, kv=KvBudget(share=0.4))


def test_a_context_of_nothing_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="--context 0"):
        plan_context(ContextNeeds(1), model_context=10, available=GIB, context=0)


def test_resize_moves_the_context_with_the_budget_and_back() -> None:
    start = plan_context(ContextNeeds(1024), model_context=4096, available=GIB)
    smaller = plan_resize(start, KvBudget(tokens=1000), context_limit=4096, context_border=None, available=0)
    assert (smaller.context, smaller.kv_tokens) == (1008, 1008)
    back = plan_resize(smaller, KvBudget(tokens=8192), context_limit=4096, context_border=None, available=GIB)
    assert (back.context, back.kv_tokens) == (4096, 8192)
    with pytest.raises(DoesNotFitError, match=r"from 1008 to 8192 tokens .*Give --kv 2032 or less"):
        plan_resize(smaller, KvBudget(tokens=8192), context_limit=4096, context_border=None, available=MIB)


def test_a_resize_does_not_cross_the_border_of_a_models_positions() -> None:
    start = plan_context(ContextNeeds(1), model_context=4096, available=GIB, kv=KvBudget(tokens=1024))

    def resize(tokens: int, limit: int = 4096) -> int:
        budget = KvBudget(tokens=tokens)
        return plan_resize(start, budget, context_limit=limit, context_border=2048, available=GIB).context

    assert (resize(2048), resize(64)) == (2048, 64)
    assert resize(4096, limit=1024) == 1024, "a larger budget for more conversations, each as short as before"
    with pytest.raises(UsageError, match="from 1024 to 2064 tokens; beyond 2048"):
        resize(2049)
    start = plan_context(ContextNeeds(1), model_context=4096, available=GIB)
    with pytest.raises(UsageError, match="from 4096 to 2048"):
        resize(2048)


@given(st.integers(1, 10**6), st.integers(1, 10**6), st.integers(0, 2**40), st.none() | st.integers(1, 10**6))
def test_a_plan_always_fits(bytes_per_token: int, model_context: int, available: int, context: int | None) -> None:
    try:
        plan = plan_context(
            ContextNeeds(bytes_per_token), model_context=model_context, available=available, context=context
        )
    except DoesNotFitError:
        return
    assert plan.kv_bytes <= available
    assert 0 < plan.context <= min(plan.kv_tokens, model_context)
    assert plan.kv_tokens % PAGE_TOKENS == 0


def test_states_and_windows_count_beside_the_pages() -> None:
    needs = ContextNeeds(1024, 512, reach=128, state_bytes=MIB)
    plan = plan_context(needs, model_context=16384, available=GIB)
    assert plan.room.states == 48
    assert 0 < plan.room.windows < plan.room.pages
    pages, windows = plan.room.pages * PAGE_TOKENS * 1024, plan.room.windows * PAGE_TOKENS * 512
    assert plan.kv_bytes == pages + windows + 48 * MIB
    assert plan_context(needs, model_context=16384, available=128 * MIB).room.states == 16
    smaller = plan_resize(plan, KvBudget(tokens=1024), context_limit=16384, context_border=None, available=0)
    assert (smaller.room.pages, smaller.room.windows, smaller.room.states) == (64, 64, 48)


def test_a_model_whose_states_alone_are_too_large_is_refused_with_the_numbers() -> None:
    needs = ContextNeeds(1024, state_bytes=40 * MIB)
    with pytest.raises(DoesNotFitError, match=r"takes 17\d MiB, .* more than the 100 MiB that are free"):
        plan_context(needs, model_context=16384, available=100 * MIB)


@given(st.integers(1, 5000), st.integers(1, 3000))
def test_there_are_windows_enough_for_a_request_that_is_alone(pages: int, reach: int) -> None:
    needed = window_pages(pages * PAGE_TOKENS, reach, PAGE_TOKENS)
    assert needed <= windows_for(pages, reach) <= pages
