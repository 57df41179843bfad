"""Which borders of a prompt become checkpoints."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from engine.memory.pages import PAGE_TOKENS
from engine.memory.retention import HEADER_TOKENS, NET_TOKENS, Rank, borders_of_edge, borders_to_save

anchors = st.lists(st.tuples(st.integers(0, 6000), st.booleans()), max_size=60)


@given(anchors, st.integers(0, 200), st.integers(1, 5000), st.integers(0, 40))
def test_borders_are_page_borders_within_the_prompt_and_the_budget(
    edges: list[tuple[int, bool]], start: int, tokens: int, budget: int
) -> None:
    start = start * PAGE_TOKENS
    chosen = borders_to_save(edges, start, tokens, budget)
    assert len(chosen) <= budget
    assert all(border % PAGE_TOKENS == 0 and start < border < tokens for border in chosen)
    end = (tokens - 1) // PAGE_TOKENS * PAGE_TOKENS
    assert (end in chosen) == (end > start and budget > 0)


@given(anchors, st.integers(20, 5000))
def test_with_room_every_opening_edge_is_kept_with_all_that_a_header_reaches(
    edges: list[tuple[int, bool]], tokens: int
) -> None:
    chosen = borders_to_save(edges, 0, tokens, 1000)
    for position, opens in edges:
        for part in range(HEADER_TOKENS + 1 if opens else 1):
            border = (position + part) // PAGE_TOKENS * PAGE_TOKENS
            if position >= PAGE_TOKENS and 0 < border < tokens and position <= tokens:
                assert border in chosen
    borders = [0, *sorted(chosen)]
    assert max(after - before for before, after in pairwise(borders)) <= NET_TOKENS


def test_opening_edges_come_first_the_latest_before_older_ones_and_the_first_of_all_before_them() -> None:
    edges = [(40 * number + 16, number % 2 == 0) for number in range(20)]
    chosen = borders_to_save(edges, 0, 900, 5)
    opening = [position // PAGE_TOKENS * PAGE_TOKENS for position, opens in edges if opens]
    assert sorted(chosen) == sorted({opening[0], *opening[-3:], 896})
    assert set(chosen.values()) == {Rank.OPENING, Rank.END}


def test_a_long_prompt_keeps_a_net_whatever_edges_it_has() -> None:
    edges = [(19_000 + 20 * number, True) for number in range(40)]
    chosen = borders_to_save(edges, 0, 20_000, 16)
    net = [border for border, rank in chosen.items() if rank is Rank.NET]
    assert len(net) == 4
    assert max(b - a for a, b in zip([0, *net], net, strict=False)) <= 5 * NET_TOKENS


def test_a_header_that_ends_within_its_page_needs_no_second_border() -> None:
    assert borders_of_edge((16 + 3, True)) == (16,)
    assert borders_of_edge((16 + 4, True)) == (16, 32)
    assert borders_of_edge((16 + 4, False)) == (16,)
