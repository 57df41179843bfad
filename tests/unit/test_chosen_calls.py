"""Calls that a model chooses to make: whatever it would say in them, they are calls of tools that are offered."""

from __future__ import annotations

import json
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from pydantic import BaseModel, Field

from engine.front.chats import chat_prompt
from engine.front.jobs import Reader
from engine.front.openai_api.requests import read_chat
from engine.front.wire.fields import FieldError
from engine.text.formats.known import CALLS, CHANNELS
from engine.text.formats.parser import AnswerParser
from engine.text.formats.pieces import Call, CallBegun, CallEnded, CallGatherer, CallGrown
from engine.text.text import Text
from engine.worker.constraint import Grammars
from tests.server.running_front import make_tokenizer

FORMS = {"harmony": CHANNELS[0], **{form.name: form for form in CALLS}}
JSON = [name for name, form in FORMS.items() if name == "harmony" or "Json" in type(form.reader).__name__]
JSON.remove("llama")  # nothing says where its calls begin
TAGGED = [name for name, form in FORMS.items() if name != "harmony" and type(form.reader).__name__ == "TaggedPairs"]
TAGGED.remove("minimax nested tags")
HELD = JSON + TAGGED


class Weather(BaseModel, extra="forbid"):
    city: str = Field(max_length=6)
    days: int = Field(ge=1, le=14)
    unit: Literal["celsius", "kelvin"]
    options: list[bool] = Field(max_length=2)


class Kind(Enum):
    LONG = "long"
    SHORT = "short"


class Spot(BaseModel, extra="forbid"):
    x: int = Field(ge=0, le=9)


class Trip(BaseModel, extra="forbid"):
    """What tags can be held to: texts that are bounded are not among it."""

    city: str
    note: str | None
    days: int = Field(ge=1, le=14)
    unit: Literal["celsius", "kelvin"]
    options: list[bool] = Field(max_length=2)
    spot2: Spot
    kind: Kind
    only: Literal["this"]
    more: str = ""


CITY = Weather.model_json_schema()
TRIP: Any = {"type": "function", "function": {"name": "trip", "parameters": Trip.model_json_schema(), "strict": True}}
WEATHER: Any = {"type": "function", "function": {"name": "weather", "parameters": CITY, "strict": True}}
NOW: Any = {"type": "function", "function": {"name": "now", "parameters": {"type": "object"}}}
SPECIAL = sorted({marker for form in FORMS.values() for marker in form.inner if marker[0] in "<["})
CLOSERS = {
    *(FORMS[name].reader.value_ends for name in TAGGED),
    *(marker for name in HELD if name != "harmony" for marker in FORMS[name].region.closes),
}
ENDS = sorted(closer for closer in CLOSERS if not any(mark in closer for mark in SPECIAL))
END = 257


def text_with(folder: Path, template: str) -> Text:
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|im_end|>", "chat_template": template}))
    return Text.load(folder)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A vocabulary of bytes, in which what stands within blocks of any format are special tokens."""
    made = tmp_path_factory.mktemp("text")
    tokenizer = make_tokenizer(ENDS)
    tokenizer.add_special_tokens(SPECIAL)
    tokenizer.save(str(made / "tokenizer.json"))
    return made


@pytest.fixture(scope="module")
def grammars(folder: Path) -> Iterator[Grammars]:
    made = Grammars(folder / "tokenizer.json", make_tokenizer().get_vocab_size() + len(SPECIAL))
    yield made
    made.close()


def text_of(folder: Path, form: str) -> Text:
    return text_with(folder, f"{{# {' '.join(FORMS[form].signs)} #}}{{{{ messages[0].content }}}}")


def reader_of(text: Text, **body: Any) -> Reader:
    asked = read_chat({"model": "m", "messages": [{"role": "user", "content": "x"}], "tools": [WEATHER, NOW], **body})
    return chat_prompt(text, asked)[1]


def strict_tool(form: str) -> Any:
    return TRIP if form in TAGGED else WEATHER


class Noise:
    """A model that says what it is told to, and then anything, though it tends to bring to an end what it began."""

    def __init__(self, text: Text, grammars: Grammars, reader: Reader, seed: int) -> None:
        self.text = text
        self.chooses = np.random.default_rng(seed)
        (self.constraint,) = grammars.constraints(reader.grammars, (END,))
        self.said: list[int] = []
        marks = [*'"}],0']
        closing = [token for mark in marks for token in text.encode_prompt(mark, add_special=False)]
        self.tends = np.zeros(grammars._vocab_size, np.float32)
        self.tends[closing] = 4
        self.tends[[END, *(self.text.encode_prompt(mark, add_special=False)[0] for mark in (*SPECIAL, *ENDS))]] = 6

    def say(self, words: str) -> None:
        for token in self.text.encode_prompt(words, add_special=False):
            assert np.isfinite(self.constraint.restrict(self.tends)[token]), (words, self.text.decode(self.said))
            self._take(token)

    def babble(self, most: int) -> None:
        """Up to the end of the answer, or so many tokens."""
        for _ in range(most):
            noise = self.chooses.normal(size=len(self.tends)).astype(np.float32) + self.tends
            self._take(int(self.constraint.restrict(noise).argmax()))
            if self.said[-1] == END:
                return

    def babble_until_free(self, most: int) -> None:
        while not self.free and len(self.said) < most and END not in self.said:
            self.babble(1)

    @property
    def free(self) -> bool:
        return bool(np.isfinite(self.constraint.restrict(self.tends)).all())

    @property
    def answer(self) -> str:
        return self.text.decode([token for token in self.said if token != END], skip_special=False)

    def _take(self, token: int) -> None:
        self.said.append(token)
        self.constraint.take(token)


def calls_in(reader: Reader, answer: str) -> list[Call]:
    parser, gatherer = AnswerParser(reader.form, reader.tools, reader.part), CallGatherer()
    pieces = [*parser.push(reader.begun), *parser.push(answer), *parser.finish()]
    told = [gatherer.add(piece) for piece in pieces if isinstance(piece, CallBegun | CallGrown | CallEnded)]
    return [call for call in told if call is not None]


def check(call: Call) -> None:
    """It is of a tool that is offered, and its arguments follow the schema of a strict one."""
    if call.name == "trip":
        Trip.model_validate_json(call.arguments, strict=True)
    elif call.name == "weather":
        Weather.model_validate_json(call.arguments, strict=True)
    else:
        assert call.name == "now"
        assert isinstance(json.loads(call.arguments), dict)


def marker_of(form: str) -> str:
    return " to=functions" if form == "harmony" else FORMS[form].region.opens[0]


@pytest.mark.parametrize("form", HELD)
def test_noise_behind_the_marker_is_a_call_in_every_format(form: str, folder: Path, grammars: Grammars) -> None:
    text = text_of(folder, form)
    reader = reader_of(text, tools=[strict_tool(form), NOW], parallel_tool_calls=False)
    assert reader.enforced == {strict_tool(form)["function"]["name"]}
    for seed in range(4):
        noise = Noise(text, grammars, reader, seed)
        noise.babble(20)
        if END in noise.said:
            continue
        noise.say(marker_of(form))
        assert not noise.free
        noise.babble(2000)
        assert noise.said[-1] == END
        (call,) = calls_in(reader, noise.answer)
        check(call)


@pytest.mark.parametrize("form", HELD)
def test_an_answer_is_free_between_its_blocks_and_each_of_these_is_held(
    form: str, folder: Path, grammars: Grammars
) -> None:
    text = text_of(folder, form)
    reader = reader_of(text, tools=[strict_tool(form), NOW])
    noise = Noise(text, grammars, reader, seed=5)
    for _ in range(2):
        noise.say(marker_of(form))
        assert not noise.free
        noise.babble_until_free(2000)
        if noise.said[-1] == END:
            return  # it ends within what could still be another call
        if form == "harmony":
            noise.say("<|call|><|start|>assistant")
    calls = calls_in(reader, noise.answer)
    assert len(calls) >= 2
    for call in calls:
        check(call)


@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize("form", [*HELD, "llama"])
def test_forced_calls_are_held_in_the_same_formats(form: str, named: bool, folder: Path, grammars: Grammars) -> None:
    tool = strict_tool(form)
    choice = {"type": "function", "function": {"name": tool["function"]["name"]}} if named else "required"
    reader = reader_of(text_of(folder, form), tools=[tool, NOW], tool_choice=choice, parallel_tool_calls=False)
    for seed in range(2):
        noise = Noise(text_of(folder, form), grammars, reader, seed)
        noise.babble(2000)
        assert noise.said[-1] == END
        (call,) = calls_in(reader, noise.answer)
        check(call)


@pytest.mark.parametrize("form", sorted({*FORMS} - {*HELD}))
def test_other_formats_are_left_alone_and_that_is_told(form: str, folder: Path) -> None:
    asked = read_chat({"model": "m", "messages": [{"role": "user", "content": "x"}], "tools": [NOW, WEATHER]})
    _, reader = chat_prompt(text_of(folder, form), asked)
    assert not reader.grammars
    assert asked.idle(reader) == ("tools[1].function.strict",)


def test_a_tool_whose_schema_tags_cannot_be_held_to_is_told_and_others_are_held(folder: Path) -> None:
    asked = read_chat({"model": "m", "messages": [{"role": "user", "content": "x"}], "tools": [WEATHER, TRIP]})
    _, reader = chat_prompt(text_of(folder, "tool_call with key and value tags"), asked)
    assert reader.enforced == {"trip"}
    assert asked.idle(reader) == ("tools[0].function.strict",)


ODD = [
    {"properties": []},
    {"properties": {}, "required": [[]]},
    {"properties": {"a b": {"type": "string"}}},
    {"properties": {"a": True}},
    {"properties": {"a": {"type": "string", "enum": "xy"}}},
    {"properties": {"a": {"type": "string", "anyOf": "x"}}},
    {"properties": {"a": {"type": "string", "anyOf": [True]}}},
    {"properties": {"a": {"type": "string", "enum": ["x"], "const": "y"}}},
    {"properties": {"a": {"enum": [1, "x"]}, "b": {"type": ["string", "integer"]}}},
    {"anyOf": [{"required": ["a"]}], "properties": {"a": {}}},
]


@pytest.mark.parametrize("schema", ODD)
def test_schemas_that_are_odd_are_held_refused_or_told(schema: Any, folder: Path) -> None:
    tool = {"type": "function", "function": {"name": "odd", "parameters": schema, "strict": True}}
    places = set()
    for form in ("hermes", "tool_call with function tags", "marked tool_calls"):
        try:
            reader = reader_of(text_of(folder, form), tools=[tool])
            assert bool(reader.enforced) == bool(reader.grammars)
        except FieldError as error:
            places.add(error.field)
    assert places <= {"tools[0].function.strict"}


def test_a_marker_in_reasoning_is_none(folder: Path, grammars: Grammars) -> None:
    text = text_with(folder, "{# <tool_call> </think> #}{{ messages[0].content }}")
    for prompt, before in (("x", " <think>Hm. "), ("<think>\n", "Hm. ")):
        reader = reader_of(text, messages=[{"role": "user", "content": prompt}])
        noise = Noise(text, grammars, reader, seed=1)
        noise.say(f"{before}<tool_call> <tool_call>")
        assert noise.free
        noise.say("</think>\n\nSo: <tool_call>")
        assert not noise.free
    noise = Noise(text, grammars, reader_of(text), seed=1)
    noise.say("Well <think> <tool_call>")  # reasoning comes first or not at all
    assert not noise.free
    noise = Noise(text, grammars, reader_of(text, reasoning_format="none"), seed=1)
    noise.say("<think> <tool_call>")
    assert not noise.free


def test_a_recipient_is_named_in_headers_alone(folder: Path, grammars: Grammars) -> None:
    text = text_of(folder, "harmony")
    noise = Noise(text, grammars, reader_of(text), seed=1)
    noise.say("<|channel|>analysis<|message|>Hm. to=functions.nothing<|end|><|start|>assistant to=functions")
    assert not noise.free


@pytest.mark.parametrize("form", ["hermes", "tool_call with function tags"])
def test_a_schema_that_cannot_be_followed_is_refused_where_it_is_strict(form: str, folder: Path) -> None:
    hard = {"type": "object", "properties": {"x": {"type": "array", "uniqueItems": True}}}
    tools = [NOW, {"type": "function", "function": {"name": "hard", "parameters": hard}}]
    text = text_of(folder, form)
    assert not reader_of(text, tools=tools).grammars
    tools[1]["function"]["strict"] = True
    for choice in ("auto", "required", {"type": "function", "function": {"name": "hard"}}):
        with pytest.raises(FieldError, match="cannot be followed") as caught:
            reader_of(text, tools=tools, tool_choice=choice)
        assert caught.value.field == "tools[1].function.strict"
    assert not reader_of(text, tools=tools, tool_choice="none").grammars


def test_members_of_what_is_not_strict_may_come_in_any_order(folder: Path, grammars: Grammars) -> None:
    tool = {"type": "function", "function": {"name": "clock", "parameters": {**CITY, "required": []}}}
    text = text_of(folder, "hermes")
    noise = Noise(text, grammars, reader_of(text, tools=[WEATHER, tool]), seed=1)
    noise.say('<tool_call>{"name":"clock","arguments":{"days":2e0,"city":"\\u00e9", "x": [{}, null]}}</tool_call>')
    assert noise.free
