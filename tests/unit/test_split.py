"""The division of misses: the paper's numbers, both rules, fits, and the record that the device is handed."""

from fractions import Fraction
from math import ceil, floor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.experts.split import (
    DEFAULT_FRACTION,
    DEFAULT_SPLIT,
    FIXED_ONE,
    Branch,
    Split,
    Timing,
    fraction,
    fraction_together,
)

# B_P and B_H in GB/s, and q* / m, of the paper's table
PAPER = [
    (11.8, 47.5, 0.25),
    (25.3, 56.7, 0.45),
    (25.1, 63.2, 0.40),
    (52.7, 77.3, 0.68),
    (49.0, 53.8, 0.91),
    (51.5, 178.0, 0.29),
]
RECORD = 1769472

bandwidths = st.floats(0.5, 500.0)
latencies = st.floats(0.0, 1e-4)
shares = st.floats(0.0, 1.0)


def _branches(link: float, cpu: float, late_fill: float = 0.0, late_cpu: float = 0.0) -> tuple[Branch, Branch]:
    return Branch.of_rate(RECORD, link, late_fill), Branch.of_rate(RECORD, cpu, late_cpu)


@pytest.mark.parametrize(("link", "host", "expected"), PAPER)
def test_eq_3_gives_the_papers_machines(link: float, host: float, expected: float) -> None:
    assert round(fraction(link, host), 2) == expected


@pytest.mark.parametrize(("link", "host", "expected"), PAPER)
def test_what_both_get_together_agrees_with_eq_3_where_eq_2_holds(link: float, host: float, expected: float) -> None:
    assert fraction_together(link, host - link) == pytest.approx(fraction(link, host))


def test_a_link_as_fast_as_memory_leaves_the_cpu_nothing() -> None:
    assert fraction(60.0, 50.0) == 1.0
    assert fraction(0.0, 50.0) == 0.0
    assert fraction_together(10.0, 0.0) == 1.0


@pytest.mark.parametrize(
    ("link", "host"), [(1.0, 0.0), (-1.0, 2.0), (float("nan"), 1.0), (1.0, float("inf")), (1.0, -2.0)]
)
def test_impossible_bandwidths_are_refused(link: float, host: float) -> None:
    with pytest.raises(ValueError, match="bandwidths"):
        fraction(link, host)


def test_two_silent_branches_have_no_fraction() -> None:
    with pytest.raises(ValueError, match="bandwidths"):
        fraction_together(0.0, 0.0)


@given(misses=st.integers(1, 300), link=bandwidths, rest=bandwidths)
def test_without_latency_the_first_rule_is_the_best_of_all(misses: int, link: float, rest: float) -> None:
    """Eq. 2 is convex in q, so the better neighbour of its minimum beats every other q that fills at least one."""
    fill, cpu = _branches(link, rest)
    chosen = Timing(fill, cpu).nearest(misses, fraction(link, link + rest))
    timing = Timing(fill, cpu)
    best = min(timing.seconds(misses, q) for q in range(1, misses + 1))
    assert timing.seconds(misses, chosen) <= best * (1 + 1e-6)


@given(
    misses=st.integers(0, 300), share=shares, link=bandwidths, rest=bandwidths, late_fill=latencies, late_cpu=latencies
)
def test_the_first_rule_chooses_a_neighbour_of_m_f(
    misses: int, share: float, link: float, rest: float, late_fill: float, late_cpu: float
) -> None:
    fill, cpu = _branches(link, rest, late_fill, late_cpu)
    chosen = Timing(fill, cpu).nearest(misses, share)
    if misses == 0:
        assert chosen == 0
        return
    exact = Fraction(share) * misses
    # a product that is whole but for rounding may count as whole
    near = {floor(exact), ceil(exact)} | ({round(exact)} if abs(exact - round(exact)) < 1e-6 else set())
    allowed = {min(max(q, 1), misses) for q in near}
    assert chosen in allowed
    timing = Timing(fill, cpu)
    if abs(exact - round(exact)) >= 1e-6:
        assert all(timing.seconds(misses, chosen) <= timing.seconds(misses, q) * (1 + 1e-6) for q in allowed)


def test_a_tie_goes_to_more_fills() -> None:
    equal = Branch(0.0, 1.0)
    assert [Timing(equal, equal).nearest(m, 0.5) for m in range(6)] == [0, 1, 1, 2, 2, 3]


def test_at_least_one_is_filled_however_slow_the_link() -> None:
    fill, cpu = _branches(0.5, 100.0)
    assert [Timing(fill, cpu).nearest(m, 0.01) for m in (1, 2, 5, 50)] == [1, 1, 1, 1]


def test_products_that_are_whole_but_for_rounding_have_no_neighbours() -> None:
    """0.07 * 100 is 7.000000000000001: 8 fills must not compete, though with a dear CPU they would win."""
    assert Timing(Branch(0.0, 1.0), Branch(0.0, 100.0)).nearest(100, 0.07) == 7


slowings = st.floats(0.0, 0.9)


@given(
    misses=st.integers(1, 200),
    link=bandwidths,
    rest=bandwidths,
    late_fill=latencies,
    late_cpu=latencies,
    fill_slowed=slowings,
    cpu_slowed=slowings,
)
def test_balanced_is_the_best_of_all_that_slow_the_sum_no_more_than_they_help(
    misses: int,
    link: float,
    rest: float,
    late_fill: float,
    late_cpu: float,
    fill_slowed: float,
    cpu_slowed: float,
) -> None:
    """With launches too; and where both together get no less than either alone, so that dividing is worth it."""
    fill, cpu = _branches(link, rest, late_fill, late_cpu)
    timing = Timing(fill, cpu, fill_slowed, cpu_slowed)
    if link * (1 - fill_slowed) + rest * (1 - cpu_slowed) < max(link, rest):
        return
    chosen = timing.seconds(misses, timing.balanced(misses))
    best = min((timing.seconds(misses, q) for q in range(1, misses)), default=chosen)
    assert chosen <= best + fill.latency + cpu.latency + 1e-12
    if fill_slowed == cpu_slowed == 0:
        assert chosen <= best * (1 + 1e-6)


@given(misses=st.integers(1, 100), link=bandwidths, rest=bandwidths)
def test_under_eq_2_any_q_up_to_q_star_takes_as_long(misses: int, link: float, rest: float) -> None:
    """q* is the largest number of fills that cost no time."""
    host = link + rest
    timing = Timing(*_branches(link, host), 0.0, link / host)
    assert timing.fraction == pytest.approx(link / host)
    star = misses * link / host
    flat = misses * RECORD / host / 1e9
    for q in range(misses + 1):
        if q <= star:
            assert timing.seconds(misses, q) == pytest.approx(flat)
        else:
            assert timing.seconds(misses, q) > flat * (1 - 1e-9)


@given(misses=st.integers(2, 64), fills=st.integers(1, 63), fill_slowed=slowings, cpu_slowed=slowings)
def test_branches_slow_each_other_only_while_both_run(
    misses: int, fills: int, fill_slowed: float, cpu_slowed: float
) -> None:
    """Against a simulation: rates fall to what is left beside the other until the first has ended."""
    fills = min(fills, misses - 1)
    fill, cpu = _branches(25.0, 40.0)
    timing = Timing(fill, cpu, fill_slowed, cpu_slowed)
    work = [fill.seconds(fills), cpu.seconds(misses - fills)]
    speed = [1 - fill_slowed, 1 - cpu_slowed]
    both = min(work[i] / speed[i] for i in (0, 1))
    ends = [both + work[i] - both * speed[i] for i in (0, 1)]
    assert timing.times(misses, fills) == pytest.approx(tuple(ends))


def test_a_branch_alone_is_not_slowed() -> None:
    fill, cpu = _branches(25.0, 40.0, 1e-5, 2e-5)
    timing = Timing(fill, cpu, 0.5, 0.5)
    assert timing.times(4, 4) == (fill.seconds(4), 0.0)
    assert timing.times(4, 0) == (0.0, cpu.seconds(4))
    assert timing.times(0, 0) == (0.0, 0.0)


def test_a_slower_host_is_slowed_more_by_the_same_link() -> None:
    """A host of 40 GB/s, of which a link of 10 leaves 30, turns out to have 20: the link leaves 10."""
    probed = Timing(*_branches(10.0, 40.0), 0.0, 0.25)
    found = probed.scaled(1.0, 2.0)
    assert found.cpu_slowed == pytest.approx(0.5)
    assert found.fraction == pytest.approx(0.5)
    assert probed.scaled(1.0, 1.0) == probed
    assert probed.scaled(1.0, 1000.0).cpu_slowed < 1


@given(st.lists(st.integers(0, 256), max_size=200), shares)
def test_carry_fills_the_share_of_all_misses_to_within_one(misses: list[int], share: float) -> None:
    split, carry, filled = Split.carry(share), 0, 0
    for count in misses:
        fills, carry = split.fills(count, carry)
        assert 0 <= fills <= count
        assert 0 <= carry < FIXED_ONE
        filled += fills
    exact = Fraction(split.fixed, FIXED_ONE) * sum(misses)
    assert filled == floor(exact)


def test_carry_reaches_where_one_miss_at_a_time_never_would() -> None:
    split, carry, fills = Split.carry(0.25), 0, []
    for _ in range(8):
        count, carry = split.fills(1, carry)
        fills.append(count)
    assert fills == [0, 0, 0, 1, 0, 0, 0, 1]


@given(share=st.floats(0.01, 0.99), misses=st.integers(0, 2000), carry=st.integers(0, FIXED_ONE - 1))
def test_beyond_its_table_a_split_goes_on_in_proportion(share: float, misses: int, carry: int) -> None:
    split = Split.of_fraction(share)
    fills, after = split.fills(misses, carry)
    assert (after == carry) or split.carries(misses)
    assert 0 <= fills <= misses
    assert abs(fills - misses * share) <= 2 + misses / FIXED_ONE


@given(link=bandwidths, rest=bandwidths, late_fill=latencies, late_cpu=latencies, carry=st.integers(0, FIXED_ONE - 1))
def test_the_default_carries_few_misses_where_the_link_is_the_slower_branch(
    link: float, rest: float, late_fill: float, late_cpu: float, carry: int
) -> None:
    timing = Timing(*_branches(link, rest, late_fill, late_cpu))
    split, share = Split.usual(timing), timing.fraction
    assert split.fills(0, carry) == (0, carry)
    for misses in range(1, 65):
        if share < 0.5 and misses * share <= 1 and misses < 64:
            assert split.fills(misses, carry) == (
                carry + misses * split.fixed >> 16,
                carry + misses * split.fixed & 0xFFFF,
            )
        elif misses * share > 1 + 1e-6:
            assert split.fills(misses, carry) == (timing.balanced(misses), carry)
    assert Split.of_fraction(0.75).fills(1) == (1, 0)


def test_overrides_take_all() -> None:
    assert [Split.all_fill().fills(m) for m in (0, 1, 9)] == [(0, 0), (1, 0), (9, 0)]
    assert [Split.all_cpu().fills(m) for m in (0, 1, 9)] == [(0, 0)] * 3


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: Split("half", 0.5),
        lambda: Split("table", 0.5),
        lambda: Split("carry", 0.5, (0, 1)),
        lambda: Split("carry", 1.5),
        lambda: Split("carry", float("nan")),
        lambda: Split("table", 0.5, (0, 2)),
        lambda: Split("table", 0.5, (1,)),
        lambda: Split("table", 0.5, (0, -1)),
        lambda: Split("table", 0.5, (0, -2, 1)),
        lambda: Branch(-1.0, 1.0),
        lambda: Branch(0.0, 0.0),
        lambda: Branch(0.0, float("inf")),
        lambda: Timing(Branch(0.0, 1.0), Branch(0.0, 1.0), 1.0, 0.0),
        lambda: Timing(Branch(0.0, 1.0), Branch(0.0, 1.0), 0.0, -0.1),
        lambda: Branch.fit([], []),
        lambda: Branch.fit([0, 1], [0.0, 1.0]),
    ],
)
def test_what_no_device_should_be_handed_is_refused(wrong) -> None:
    with pytest.raises(ValueError, match=r"."):
        wrong()


@given(latency=latencies, rate=bandwidths, counts=st.lists(st.integers(1, 64), min_size=2, max_size=20))
def test_a_fit_finds_the_branch_that_made_the_points(latency: float, rate: float, counts: list[int]) -> None:
    truth = Branch.of_rate(RECORD, rate, latency)
    fitted = Branch.fit(counts, [truth.seconds(n) for n in counts])
    for n in set(counts):
        assert fitted.seconds(n) == pytest.approx(truth.seconds(n), rel=1e-6)


def test_a_fit_never_promises_a_negative_launch() -> None:
    assert Branch.fit([1, 2, 3], [1.0, 2.5, 4.0]).latency == 0.0
    assert Branch.fit([1, 2, 3], [3.0, 2.0, 1.0]).per_record > 0


def test_no_records_take_no_time() -> None:
    assert Branch(1.0, 1.0).seconds(0) == 0.0


def test_the_default_is_at_most_about_threefold_off_on_the_papers_machines() -> None:
    assert DEFAULT_SPLIT.why
    assert DEFAULT_SPLIT.rule == "table"

    def worst(share: float) -> float:
        return max(max(share / (p / h), (1 - share) / (1 - p / h)) for p, h, _ in PAPER)

    assert worst(DEFAULT_FRACTION) < 3.05
    assert min(worst(share / 100) for share in range(1, 100)) > 2.95


def test_why_is_for_people_and_no_reason_to_upload_again() -> None:
    assert Split.carry(0.5, "once") == Split.carry(0.5, "twice")
