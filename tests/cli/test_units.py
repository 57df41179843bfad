"""Sizes, tokens, durations: round trips over random values, exact values for the documented forms, refusals."""

import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.base.errors import UsageError
from engine.base.units import (
    ExpertRoom,
    KvBudget,
    format_duration,
    format_size,
    format_tokens,
    parse_duration,
    parse_experts,
    parse_kv,
    parse_size,
    parse_tokens,
)

UNITS = {"B": 1, "K": 2**10, "KiB": 2**10, "KB": 1000, "M": 2**20, "MiB": 2**20, "MB": 10**6}
UNITS |= {"G": 2**30, "GiB": 2**30, "GB": 10**9, "T": 2**40, "TiB": 2**40, "TB": 10**12}


@given(st.integers(1, 2**20), st.sampled_from(sorted(UNITS)), st.sampled_from(["", " "]))
def test_whole_sizes_are_exact(number: int, unit: str, gap: str) -> None:
    assert parse_size(f"{number}{gap}{unit}") == number * UNITS[unit]
    assert parse_size(f"{number}{gap}{unit.lower()}") == number * UNITS[unit]


@given(st.integers(1, 2**45))
def test_a_printed_size_reads_back_within_half_a_percent(count: int) -> None:
    assert parse_size(format_size(count)) == pytest.approx(count, rel=0.0051)


@given(st.integers(1, 2**40))
def test_printed_tokens_read_back_exactly(count: int) -> None:
    assert parse_tokens(format_tokens(count)) == count


def _parsed(parse: Callable[[str], Any], text: str) -> Any:
    """What `parse` makes of `text`; its error when it refuses."""
    try:
        return parse(text)
    except UsageError as error:
        return error


@given(st.one_of(st.text(max_size=12), st.from_regex(r"[0-9.]{1,20} ?[kKmMgGiIbB%]{0,3}", fullmatch=True)))
def test_parsers_give_something_positive_or_an_error_that_shows_the_text(text: str) -> None:
    for parse in (parse_size, parse_tokens):
        value = _parsed(parse, text)
        assert repr(text) in value.message if isinstance(value, UsageError) else value > 0
    for parse, fewest in ((parse_kv, 1), (parse_experts, 0)):
        value = _parsed(parse, text)
        assert isinstance(value, UsageError) or fewest <= sum(amount > 0 for amount in vars(value).values()) <= 1
    value = _parsed(parse_duration, text)
    assert repr(text) in value.message if isinstance(value, UsageError) else value >= 0


@pytest.mark.parametrize("text", ["9" * 5000, "9" * 400 + ".5"])
def test_numbers_too_long_for_python_are_refused_with_a_sentence(text: str) -> None:
    parsers = (parse_size, lambda it: parse_tokens(it.removesuffix("G")), parse_kv, parse_experts, parse_duration)
    for parse, unit in zip(parsers, ("G", "G", "k", "", "s"), strict=True):
        with pytest.raises(UsageError) as caught:
            parse(text + unit)
        assert len(caught.value.message) < 100


@pytest.mark.parametrize(
    ("text", "budget"),
    [
        ("8192", KvBudget(tokens=8192)),
        ("32k", KvBudget(tokens=32768)),
        ("32K", KvBudget(tokens=32768)),
        ("1.5k", KvBudget(tokens=1536)),
        ("512M", KvBudget(bytes=512 * 2**20)),
        ("2G", KvBudget(bytes=2 * 2**30)),
        ("64MiB", KvBudget(bytes=64 * 2**20)),
        ("1.5GiB", KvBudget(bytes=3 * 2**29)),
        ("40%", KvBudget(share=0.4)),
        ("12.5 %", KvBudget(share=0.125)),
    ],
)
def test_kv_is_tokens_when_plain_bytes_with_a_unit_and_a_share_in_percent(text: str, budget: KvBudget) -> None:
    assert parse_kv(text) == budget


@pytest.mark.parametrize(
    "text", ["", "k", "32q", "-1", "1e9", "0", "0k", "1.5", "12B", "9" * 30, "nan", "٣", "0%", "100%"]
)
def test_kv_refuses(text: str) -> None:
    with pytest.raises(UsageError):
        parse_kv(text)


@pytest.mark.parametrize(
    ("text", "room"),
    [
        ("64M", ExpertRoom(bytes=64 * 2**20)),
        ("2G", ExpertRoom(bytes=2 * 2**30)),
        ("37%", ExpertRoom(share=0.37)),
        ("100%", ExpertRoom(share=1.0)),
        ("120", ExpertRoom(slots=120)),
        ("0", ExpertRoom()),
        ("0%", ExpertRoom()),
    ],
)
def test_room_for_experts(text: str, room: ExpertRoom) -> None:
    assert parse_experts(text) == room


@given(
    st.one_of(
        st.integers(1, 2**40).map(lambda n: ExpertRoom(bytes=n)),
        st.integers(0, 2**30).map(lambda n: ExpertRoom(slots=n)),
    )
)
def test_exact_room_reads_back(room: ExpertRoom) -> None:
    assert parse_experts(room.exact) == room


@given(st.floats(1e-6, 1))
def test_exact_shares_read_back(share: float) -> None:
    assert parse_experts(ExpertRoom(share=share).exact).share == pytest.approx(share, rel=1e-8)


@pytest.mark.parametrize("text", ["101%", "1.5", "M", "12q", "-3", "0M"])
def test_room_for_experts_refuses(text: str) -> None:
    with pytest.raises(UsageError):
        parse_experts(text)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0", 0), ("90", 90), ("30s", 30), ("5m", 300), ("1.5h", 5400), ("250ms", 0.25), ("-1", math.inf),
        ("5m0s", 300), ("1h0m0s", 3600), ("1h1m1.5s", 3661.5),
    ],
)  # fmt: skip
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds
    assert parse_duration("forever") == math.inf


@pytest.mark.parametrize("text", ["", "5m0", "5m0q", "m5s", "1h.5.5m", "5m 0s"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is not a duration"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0123, "12 ms"),
        (4.21, "4.2 s"),
        (59.97, "1 min"),
        (200, "3 min 20 s"),
        (7500, "2 h 5 min"),
        (math.inf, "forever"),
    ],
)
def test_printed_durations(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.00 KiB"),
        (98_362_432, "93.8 MiB"),
        (2**30 - 1, "1.00 GiB"),
        (2**50, "1024 TiB"),
    ],
)
def test_printed_sizes(count: int, text: str) -> None:
    assert format_size(count) == text
