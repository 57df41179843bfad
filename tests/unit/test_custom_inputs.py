"""Calls of custom tools: the text that a model wrote as JSON, however its pieces are cut."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.front.forms.custom_tools import CustomCalls
from engine.text.formats.pieces import Call, CallBegun, CallEnded, CallGatherer, CallGrown


def told(arguments: str, cuts: list[int], name: str = "patch") -> tuple[Call, list[str]]:
    """The call that becomes of `arguments` in pieces, and its text as it grew."""
    calls, gatherer = CustomCalls({"patch"}), CallGatherer()
    places = sorted({0, len(arguments), *(cut % (len(arguments) + 1) for cut in cuts)})
    grown = [CallGrown(arguments[start:end]) for start, end in itertools.pairwise(places)]
    pieces = [more for piece in (CallBegun(name), *grown, CallEnded()) for more in calls.read(piece)]
    whole = [call for call in map(gatherer.add, pieces) if call is not None]
    return whole[0], [piece.arguments for piece in pieces if isinstance(piece, CallGrown)]


@given(
    text=st.text(st.characters(codec="utf-8")),
    ascii_only=st.booleans(),
    indent=st.sampled_from([None, 2]),
    cuts=st.lists(st.integers(0, 999)),
)
def test_the_text_is_the_same_however_it_is_cut(
    text: str, ascii_only: bool, indent: int | None, cuts: list[int]
) -> None:
    arguments = json.dumps({"input": text}, ensure_ascii=ascii_only, indent=indent)
    call, _ = told(arguments, cuts)
    assert call == Call("patch", text, custom=True)


def test_it_grows_with_every_character() -> None:
    text = 'a\n"\\\U0001f600é'
    arguments = json.dumps({"input": text})
    _, grown = told(arguments, list(range(len(arguments))))
    assert grown == list(text)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ('{"patch": "x"}', "x"),
        ('{"input": "x", "more": 1}', "x"),
        ('{"more": 1, "input": "x"}', "x"),
        ('{"input": 5}', '{"input": 5}'),
        ("{}", "{}"),
        ('{"input": "a\\ud83d b"}', "a? b"),
        ('{"input": "a\\udc00"}', "a?"),
    ],
)
def test_what_a_model_writes_otherwise_is_told_too(arguments: str, text: str) -> None:
    for cuts in ([], list(range(len(arguments)))):
        assert told(arguments, cuts)[0].arguments == text


def test_calls_of_functions_stay_as_they_are() -> None:
    arguments = '{"input": "x"}'
    call, grown = told(arguments, [3, 7], "other")
    assert call == Call("other", arguments)
    assert "".join(grown) == arguments
