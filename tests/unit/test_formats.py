"""Answers in every known format: the same meaning however they are cut, and nothing that a model says is lost."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.text.formats.choice import format_of
from engine.text.formats.known import CALLS, CHANNELS, THOUGHTS
from engine.text.formats.parser import AnswerParser, Part, forced_beginning, part_after
from engine.text.formats.pieces import Call, CallBegun, CallGatherer, CallGrown, Piece, Said, Thought, Tools
from engine.text.formats.record import AnswerFormat
from engine.text.formats.values import typed, types_allowed
from tests.unit.answer_samples import SAMPLES, TOOLS, Meaning, Sample

NAMES = [sample.name for sample in SAMPLES]


def joined(pieces: Sequence[Piece]) -> tuple[Meaning, ...]:
    """Neighbours of one kind as one, and calls whole."""
    out: list[Meaning] = []
    gatherer = CallGatherer()
    for piece in pieces:
        last = out[-1] if out else None
        if isinstance(piece, Said) and isinstance(last, Said):
            out[-1] = Said(last.text + piece.text)
        elif isinstance(piece, Thought) and isinstance(last, Thought):
            out[-1] = Thought(last.text + piece.text)
        elif isinstance(piece, Said | Thought):
            out.append(piece)
        elif (call := gatherer.add(piece)) is not None:
            out.append(call)
    return tuple(out)


def read(form: AnswerFormat, chunks: Sequence[str], part: Part, tools: Tools | None = TOOLS) -> tuple[Meaning, ...]:
    parser = AnswerParser(form, tools, part)
    pieces = [piece for chunk in chunks for piece in parser.push(chunk)]
    return joined([*pieces, *parser.finish()])


@pytest.mark.parametrize("sample", SAMPLES, ids=NAMES)
def test_an_answer_means_what_its_model_meant(sample: Sample) -> None:
    assert read(format_of(sample.evidence), [sample.answer], sample.part) == sample.meaning


@pytest.mark.parametrize("sample", SAMPLES, ids=NAMES)
@pytest.mark.parametrize("size", [1, 2, 3, 7, 19])
def test_the_meaning_does_not_depend_on_how_an_answer_is_cut(sample: Sample, size: int) -> None:
    chunks = [sample.answer[i : i + size] for i in range(0, len(sample.answer), size)]
    assert read(format_of(sample.evidence), chunks, sample.part) == sample.meaning


@pytest.mark.parametrize("sample", SAMPLES, ids=NAMES)
def test_without_tools_what_looks_like_a_call_is_text(sample: Sample) -> None:
    pieces = read(format_of(sample.evidence), [sample.answer], sample.part, tools=None)
    assert not any(isinstance(piece, Call) for piece in pieces)


def test_every_known_format_has_a_sample() -> None:
    forms = [format_of(sample.evidence) for sample in SAMPLES]
    told_in_words = {"list of Python calls, told in words"}  # the same but for its sign
    sampled = {form.calls.name for form in forms if form.calls is not None}
    assert sampled | told_in_words | {"function_call", "granite", "TOOLCALL"} == {call.name for call in CALLS}
    assert {form.channels for form in forms if form.channels} == set(CHANNELS)


@pytest.mark.parametrize("call", CALLS, ids=[call.name for call in CALLS])
def test_the_beginning_that_forces_a_call_is_the_beginning_of_one(call: object) -> None:
    form = AnswerFormat(calls=call)  # type: ignore[arg-type]
    begun, any_tool = forced_beginning(form, "get_weather"), forced_beginning(form)
    assert "get_weather" in begun
    assert begun.startswith(any_tool)
    parser = AnswerParser(form, TOOLS)
    told = parser.push(begun)  # nothing of it is text
    assert [piece for piece in told if not isinstance(piece, CallGrown)] in ([], [CallBegun("get_weather")])


def test_text_comes_as_soon_as_it_can_be_nothing_else() -> None:
    parser = AnswerParser(format_of("<think></think><tool_call>"), TOOLS)
    assert parser.push("Well, ") == [Said("Well,")]
    assert parser.push("<tool") == []
    assert parser.push("box>") == [Said(" <toolbox>")]


def test_a_long_call_is_read_once() -> None:
    parser = AnswerParser(format_of("<tool_call>"), TOOLS)
    text = json.dumps({"name": "now", "arguments": {"x": 'a "quoted" </tool_call> \\ word ' * 20_000}})
    whole = f"<tool_call>{text}</tool_call>"
    pieces = [piece for i in range(0, len(whole), 64) for piece in parser.push(whole[i : i + 64])]
    assert [piece.name for piece in pieces if isinstance(piece, CallBegun)] == ["now"]


MARKERS = sorted({marker for call in CALLS for marker in (*call.region.opens, *call.region.closes, *call.inner)})
SOUP = st.lists(
    st.one_of(
        st.sampled_from(MARKERS),
        st.sampled_from([marker for each in THOUGHTS for marker in (*each.region.opens, *each.region.closes)]),
        st.sampled_from(['{"name": "now", "arguments": {}}', '{"', '"}', "\\", '"', "now", "\n", " ", "x", "<", "|"]),
        st.text(max_size=4),
    ),
    max_size=12,
).map("".join)


@settings(max_examples=400, deadline=None)
@given(st.sampled_from(SAMPLES), SOUP, st.lists(st.integers(1, 9), min_size=1), st.sampled_from(list(Part)[:2]))
def test_any_text_is_read_alike_however_it_is_cut(sample: Sample, text: str, sizes: list[int], part: Part) -> None:
    form = format_of(sample.evidence)
    if form.channels is not None or (form.thought is not None and form.thought.text is not None):
        part = Part.BETWEEN
    elif form.thought is None:
        part = Part.SAID
    chunks, at = [], 0
    while at < len(text):
        size = sizes[len(chunks) % len(sizes)]
        chunks.append(text[at : at + size])
        at += size
    whole = read(form, [text], part)
    assert read(form, chunks, part) == whole
    for piece in whole:
        if isinstance(piece, Call):
            assert isinstance(json.loads(piece.arguments), dict)
            assert piece.name


@settings(max_examples=200, deadline=None)
@given(st.text())
def test_text_without_markers_comes_back_whole(text: str) -> None:
    form = format_of("<think></think><tool_call>")
    expected = (Said(text),) if text and "<" not in text else None
    if expected is not None:
        assert read(form, list(text), Part.SAID) == expected


@pytest.mark.parametrize(
    ("evidence", "prompt", "part"),
    [
        ("", "user: hi\nassistant:", Part.SAID),
        ("<think></think>", "<|im_start|>assistant\n<think>\n", Part.THOUGHT),
        ("<think></think>", "<|im_start|>assistant\n<think>\n\n</think>\n\n", Part.SAID),
        ("<think></think>", "<|im_start|>assistant\n", Part.SAID),
        ("<|think|><|content|>", "<|begin|>assistant", Part.BETWEEN),
        ("<|open|><|close|><|sep|>", '<|open|>message role="assistant"<|sep|><|open|>response<|sep|>', Part.SAID),
        ("<|start|><|channel|><|message|>", "<|start|>assistant", Part.BETWEEN),
    ],
)
def test_where_an_answer_begins_shows_in_the_prompt(evidence: str, prompt: str, part: Part) -> None:
    assert part_after(format_of(evidence), prompt) is part


@pytest.mark.parametrize(
    ("text", "schema", "value"),
    [
        ("2", {"type": "string"}, "2"),
        ("2", {"type": "integer"}, 2),
        ("2", {}, 2),
        ("true", {"type": ["boolean", "null"]}, True),
        ("True", {"type": "boolean"}, True),
        ("{'a': None}", {"type": "object"}, {"a": None}),
        ("two", {"type": "integer"}, "two"),
        ("1", {"enum": ["1", "2"]}, "1"),
        ("{1, 2}", {}, "{1, 2}"),
        ("5", {"type": ["string", "null"]}, "5"),
        ("null", {"type": ["string", "null"]}, None),
        (" null\n", {"anyOf": [{"type": "string"}, {"type": "null"}]}, None),
        ("nullify", {"anyOf": [{"type": "string"}, {"type": "null"}]}, "nullify"),
        ("5", {"oneOf": [{"type": "string"}, {"type": "integer"}]}, 5),
        ("5.5", {"type": ["string", "integer"]}, "5.5"),
        ("5 apples", {"type": ["string", "integer"]}, "5 apples"),
        ("[1, 2", {"type": ["string", "array"]}, "[1, 2"),
        ("[1, 2]", {"type": ["string", "array"]}, [1, 2]),
        ('{"a": 1}', {"type": ["string", "array"]}, '{"a": 1}'),
        ('"a"', {"type": ["string", "null"]}, '"a"'),
        ("5", {"anyOf": [{"type": "string"}, {"$ref": "#/x"}]}, 5),
        ("9" * 5000, {"type": "integer"}, "9" * 5000),
    ],
)
def test_bare_values_become_what_the_schema_expects(text: str, schema: object, value: object) -> None:
    tools = {"f": {"properties": {"x": schema}}}
    assert typed(text, types_allowed(tools, "f", "x")) == value  # type: ignore[arg-type]
