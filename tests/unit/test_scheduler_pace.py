"""What the worker learns about the time of its steps."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from engine.worker.pace import Pace


def learnt(observations: list[tuple[int, float]]) -> Pace:
    pace = Pace()
    for tokens, seconds in observations:
        pace.observe(tokens, seconds)
    return pace


def test_nothing_known_allows_the_most() -> None:
    assert Pace().tokens_within(0.1, 512) == 512
    assert not Pace().known


def test_a_line_is_found_exactly() -> None:
    pace = learnt([(n, 0.02 + 0.001 * n) for n in (1, 64, 17, 128, 1, 256)])
    assert pace.line() == pytest.approx((0.02, 0.001))
    assert pace.tokens_within(0.12, 512) == pytest.approx(100, abs=1)
    assert pace.tokens_within(0.12, 50) == 50
    assert pace.tokens_within(0.01, 512) == 0


def test_steps_of_one_size_err_towards_short_ones() -> None:
    assert learnt([(1, 0.01)] * 1000).tokens_within(0.155, 512) == 15


def test_it_follows_a_machine_that_gets_slower() -> None:
    pace = learnt([(n, 0.001 * n) for n in (1, 100) * 50] + [(n, 0.004 * n) for n in (1, 100) * 60])
    assert pace.line() == pytest.approx((0.0, 0.004), abs=2e-4)


@pytest.mark.parametrize("deeper", [1e-7, 3e-7, 1e-6])
def test_it_keeps_up_with_a_prompt_whose_parts_read_further_and_further_back(deeper: float) -> None:
    pace, computed, longest = learnt([(4, 0.001)] * 200 + [(64, 0.007)]), 0, 0.0
    while computed < 20_000:
        count = max(16, pace.tokens_within(0.15, 512) // 16 * 16)
        seconds = 0.001 + count * (1e-4 + deeper * computed)
        pace.observe(count, seconds)
        longest = max(longest, seconds)
        computed += count
    assert longest < 0.2 or count == 16


def test_a_step_that_took_long_by_chance_is_soon_forgotten() -> None:
    pace = learnt([(n, 0.001 + 1e-4 * n) for n in (4, 256) * 20] + [(256, 0.5)])
    assert pace.tokens_within(0.05, 512) < 60
    for _ in range(20):
        count = max(16, pace.tokens_within(0.05, 512))
        pace.observe(count, 0.001 + 1e-4 * count)
    assert pace.tokens_within(0.05, 512) > 300


@example([(1, 2.2250738585072014e-308)], 4.0)
@given(st.lists(st.tuples(st.integers(1, 600), st.floats(0, 100)), min_size=1, max_size=50), st.floats(0, 10))
def test_whatever_was_seen_the_answer_is_usable(observations: list[tuple[int, float]], seconds: float) -> None:
    pace = learnt(observations)
    base, rate = pace.line() or (0.0, 0.0)
    assert base >= 0
    assert rate >= 0
    assert 0 <= pace.tokens_within(seconds, 512) <= 512
