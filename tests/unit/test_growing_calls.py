"""Calls are told as they come: nothing is taken back, and at any moment what was told can be closed to valid JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.text.formats.choice import format_of
from engine.text.formats.known import CALLS, CHANNELS
from engine.text.formats.parser import AnswerParser, Part, forced_beginning
from engine.text.formats.pieces import Call, CallBegun, CallGrown, Piece
from engine.text.formats.record import AnswerFormat
from tests.unit.answer_samples import CITY, OSLO, PARIS, SAMPLES, TOOLS, Sample
from tests.unit.test_formats import joined

WHOLE_ALONE = {"Python calls"}
CALLING = [sample for sample in SAMPLES if PARIS in sample.meaning and sample.name not in WHOLE_ALONE]
TAGGED = [sample for sample in CALLING if CITY in sample.answer and "gemma" not in sample.name]
IN_JSON = [AnswerFormat(calls=call) for call in CALLS if call.reader.quotes]
IN_JSON += [AnswerFormat(channels=channels) for channels in CHANNELS]


def told(pieces: Sequence[Piece]) -> str:
    """What was said of calls, as one text."""
    words = {CallBegun: "{0.name}(", CallGrown: "{0.arguments}"}
    return "".join(words.get(type(piece), "").format(piece) for piece in pieces)


def strictly(text: str) -> Any:
    """The value of JSON as the standard has it."""
    return json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))


@pytest.mark.parametrize("sample", SAMPLES, ids=[sample.name for sample in SAMPLES])
def test_what_was_told_stays_and_can_be_closed_at_any_moment(sample: Sample) -> None:
    form = format_of(sample.evidence)
    parser = AnswerParser(form, TOOLS, sample.part)
    whole = told([*parser.push(sample.answer), *parser.finish()])
    for size in range(len(sample.answer)):
        parser = AnswerParser(form, TOOLS, sample.part)
        before = parser.push(sample.answer[:size])
        assert whole.startswith(told(before))
        after = [*before, *parser.finish()]
        assert told(after).startswith(told(before))
        calls = [piece for piece in joined(after) if isinstance(piece, Call)]
        assert len(calls) == sum(isinstance(piece, CallBegun) for piece in after)
        assert all(isinstance(strictly(call.arguments), dict) for call in calls)


@pytest.mark.parametrize("sample", CALLING, ids=[sample.name for sample in CALLING])
def test_a_long_text_is_told_with_every_character(sample: Sample) -> None:
    """In all formats but Python's: what is held back is less than a marker."""
    text = "".join(f"line {number}: a < b;" for number in range(99))
    answer = sample.answer.replace("Oslo", text) if OSLO in sample.meaning else sample.answer.replace('Pa\\"ris', text)
    parser = AnswerParser(format_of(sample.evidence), TOOLS, sample.part)
    pieces = [piece for character in answer for piece in parser.push(character)]
    grown = [piece.arguments for piece in pieces if isinstance(piece, CallGrown)]
    assert text in "".join(grown)
    assert len(grown) > len(text) * 0.9
    assert max(map(len, grown)) <= len(', "options": {"a": [1, true]}}')


ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=9,
)
SIZES = st.lists(st.integers(1, 9), min_size=1, max_size=9)


def read(form: AnswerFormat, answer: str, sizes: list[int], part: Part = Part.SAID) -> list[Call]:
    parser = AnswerParser(form, TOOLS, part)
    pieces, at, turn = [], 0, 0
    while at < len(answer):
        size = sizes[turn % len(sizes)]
        pieces += parser.push(answer[at : at + size])
        at, turn = at + size, turn + 1
    return [piece for piece in joined([*pieces, *parser.finish()]) if isinstance(piece, Call)]


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(IN_JSON), st.dictionaries(st.text(max_size=3), ANY, max_size=3), SIZES, st.booleans())
def test_any_json_is_told_as_the_whole_of_it_would_be(
    form: AnswerFormat, arguments: dict[str, Any], sizes: list[int], plain: bool
) -> None:
    written = json.dumps(arguments, ensure_ascii=plain, indent=2 if plain else None)
    part = Part.SAID if form.channels is None else Part.BETWEEN
    calls = read(form, forced_beginning(form, "get_weather") + written, sizes, part)
    assert [(call.name, call.arguments) for call in calls] == [
        ("get_weather", json.dumps(arguments, ensure_ascii=False))
    ]


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(TAGGED), st.text(st.characters(exclude_characters="<]\n", exclude_categories=["Cs"])), SIZES)
def test_any_text_between_tags_is_told_as_it_is(sample: Sample, text: str, sizes: list[int]) -> None:
    answer = sample.answer.replace(CITY, text)
    calls = read(format_of(sample.evidence), answer, sizes, sample.part)
    assert json.loads(calls[0].arguments) == {"city": text, "days": 2, "options": {"a": [1, True]}}
    assert len(calls) == 2


@pytest.mark.parametrize(
    ("value", "meant", "grows"),
    [
        ("nothing at all", "nothing at all", True),
        ("null", None, False),
        ("", "", False),
        ("-5", -5, False),
        ("5 rivers", "5 rivers", True),
        ("[1, 2]", [1, 2], False),
        ("(see below", "(see below", False),
        ('"quoted"', '"quoted"', True),
        ("true", "true", True),
    ],
)
def test_a_value_of_several_types_grows_where_it_can_be_nothing_but_text(value: str, meant: Any, grows: bool) -> None:
    kinds = [{"type": "string"}, {"type": ["null", "integer"]}, {"type": "array"}]
    tools = {"f": {"properties": {"x": {"anyOf": kinds}}}}
    answer = f"<tool_call>\n<function=f>\n<parameter=x>\n{value}\n</parameter>\n</function>\n</tool_call>"
    for size in (1, len(answer)):
        parser = AnswerParser(format_of("<tool_call><function="), tools)
        parts = [answer[at : at + size] for at in range(0, len(answer), size)]
        pieces = [piece for part in parts for piece in parser.push(part)]
        grown = [piece.arguments for piece in [*pieces, *parser.finish()] if isinstance(piece, CallGrown)]
        assert json.loads("".join(grown)) == {"x": meant}
        if size == 1:
            assert (len(grown) > 3) == grows
