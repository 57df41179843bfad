"""Calls of custom tools that grammars hold: whatever a model would say, the text that is read follows its grammar."""

from __future__ import annotations

import json
import random
import re
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from llguidance import LLMatcher, LLTokenizer

from engine.front.chats import chat_prompt
from engine.front.forms.custom_tools import CustomCalls
from engine.front.jobs import Reader
from engine.front.openai_api.requests import read_chat
from engine.front.responses_api.requests import read_response
from engine.front.wire.fields import FieldError
from engine.text.formats.known import CALLS, CHANNELS
from engine.text.formats.parser import AnswerParser
from engine.text.formats.pieces import Call, CallBegun, CallEnded, CallGatherer, CallGrown
from engine.text.text import Text
from tests.server.running_front import IM_END, make_tokenizer
from tests.unit.fake_executor import VOCAB

TOKENIZER = make_tokenizer()
LINES = r'([+-][^\n]{0,3}\n)+end"'
GRAMMARS = {
    "lark": 'start: line+ "end\\""\nline: ("+" | "-") /[^\\n]{0,3}/ LF\n%import common.LF',
    "regex": LINES,
}
SIGNS = {"harmony": CHANNELS[0].signs, **{form.name: form.signs for form in CALLS}}
FREE = {
    "list of Python calls",
    "list of Python calls, told in words",
    "gemma",
}  # their texts need escapes of another kind


def tool(name: str, syntax: str) -> dict[str, Any]:
    form = {"type": "grammar", "syntax": syntax, "definition": GRAMMARS[syntax]}
    return {"type": "custom", "custom": {"name": name, "format": form}}


def text_with(folder: Path, signs: tuple[str, ...], special: tuple[str, ...] = ()) -> Text:
    """A vocabulary of bytes whose template holds `signs`; those of `special` are tokens of their own."""
    tokenizer = make_tokenizer()
    tokenizer.add_special_tokens(list(special))
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"eos_token": "<|im_end|>", "chat_template": f"{{# {' '.join(signs)} #}}{{{{ messages[0].content }}}}"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return Text.load(folder)


def reader_of(text: Text, **body: Any) -> Reader:
    asked = read_chat({"model": "m", "messages": [{"role": "user", "content": "x"}], **body})
    return chat_prompt(text, asked)[1]


def named(name: str) -> dict[str, Any]:
    return {"type": "custom", "custom": {"name": name}}


@cache
def vocabulary() -> LLTokenizer:
    return LLTokenizer(TOKENIZER.to_str(), VOCAB, IM_END)


def written(reader: Reader, seed: int) -> str:
    """What a model of noise writes that follows the grammar of an answer to its end."""
    (grammar,) = reader.grammars
    chooses, matcher = random.Random(seed), LLMatcher(vocabulary(), grammar.text, log_level=0)
    matcher.consume_tokens(list(grammar.begun or ()))
    tokens: list[int] = []
    while not matcher.is_accepting() or chooses.random() < 0.5:
        bits = np.unpackbits(np.frombuffer(matcher.compute_bitmask(), np.uint8), bitorder="little")
        allowed = np.flatnonzero(bits[:256]).tolist()
        assert not matcher.is_error(), matcher.get_error()
        if not allowed:
            break
        tokens.append(chooses.choice(allowed))
        matcher.consume_token(tokens[-1])
    return vocabulary().decode_bytes(tokens).decode()


def call_of(reader: Reader, answer: str) -> Call:
    """The first call that is read of an answer."""
    parser, calls, gatherer = (
        AnswerParser(reader.form, reader.tools, reader.part),
        CustomCalls(reader.custom),
        CallGatherer(),
    )
    pieces = [*parser.push(reader.begun), *parser.push(answer), *parser.finish()]
    told = [piece for piece in pieces if isinstance(piece, CallBegun | CallGrown | CallEnded)]
    whole = [gatherer.add(more) for piece in told for more in calls.read(piece)]
    return next(call for call in whole if call is not None)


@pytest.mark.parametrize("form", SIGNS)
def test_its_text_follows_the_grammar_in_every_format(form: str, tmp_path: Path) -> None:
    text = text_with(tmp_path, SIGNS[form])
    for syntax in GRAMMARS:
        reader = reader_of(text, tools=[tool("edit", syntax)], tool_choice=named("edit"))
        if form in FREE:
            assert not reader.enforced
            continue
        assert reader.enforced == {"edit"}
        for seed in range(6):
            call = call_of(reader, written(reader, seed))
            assert (call.name, call.custom) == ("edit", True)
            assert re.fullmatch(LINES, call.arguments), call.arguments


def test_where_any_of_several_has_to_be_called_each_follows_its_own(tmp_path: Path) -> None:
    number = {"type": "grammar", "syntax": "lark", "definition": "start: INT\n%import common.INT"}
    tools = [tool("edit", "lark"), {"type": "custom", "custom": {"name": "count", "format": number}}]
    reader = reader_of(text_with(tmp_path, ("<tool_call>",)), tools=tools, tool_choice="required")
    assert reader.enforced == {"edit", "count"}
    found = {call.name: call for call in (call_of(reader, written(reader, seed)) for seed in range(20))}
    assert re.fullmatch(LINES, found["edit"].arguments)
    assert re.fullmatch("[0-9]+", found["count"].arguments)


def test_without_need_or_possibility_it_is_left_to_the_model(tmp_path: Path) -> None:
    text = text_with(tmp_path, ("<tool_call>", "<function="))
    edit = tool("edit", "lark")
    assert not reader_of(text, tools=[edit]).enforced
    assert not reader_of(text, tools=[edit, tool("other", "regex")], tool_choice="required").enforced
    marked = text_with(tmp_path, ("<tool_call>", "<function="), special=("</parameter>",))
    assert not reader_of(marked, tools=[edit], tool_choice="required").enforced
    # Escapes of this one are not known.
    edit["custom"]["format"]["definition"] = r"start: /\p{L}+/"
    reader = reader_of(text_with(tmp_path, ("<tool_call>",)), tools=[edit], tool_choice="required")
    assert not reader.enforced
    assert reader.grammars


@pytest.mark.parametrize("definition", ["start: nowhere", 'begin: "a"', "start: /(/", 'start: "a'])
def test_a_grammar_that_makes_no_sense_is_refused_in_its_place(definition: str) -> None:
    form = {"type": "grammar", "syntax": "lark", "definition": definition}
    body = {"model": "m", "messages": [{"role": "user", "content": "x"}]}
    with pytest.raises(FieldError) as caught:
        read_chat({**body, "tools": [tool("x", "lark"), {"type": "custom", "custom": {"name": "p", "format": form}}]})
    assert caught.value.field == "tools[1].custom.format.definition"
    flat = [
        {"type": "web_search"},
        {"type": "custom", "name": "p", "format": {**form, "syntax": "regex", "definition": "("}},
    ]
    with pytest.raises(FieldError) as caught:
        read_response({"model": "m", "input": "x", "tools": flat}, ())
    assert caught.value.field == "tools[1].format.definition"
