"""Custom tools over the official client: text goes in and comes out, and the model sees a function of one text."""

from __future__ import annotations

import json
import re
from typing import Any

import openai
import pytest

from tests.server.running_front import RunningFront, saying

PATCH = '*** Begin Patch\n+say "é"\\\n*** End Patch'
SCRIPT = f"<tool_call>\n{json.dumps({'name': 'apply_patch', 'arguments': {'input': PATCH}})}\n</tool_call>"
GRAMMAR = {"syntax": "lark", "definition": 'start: "*** Begin Patch" /.+/s'}
CHAT_TOOL: Any = {"type": "custom", "custom": {"name": "apply_patch", "description": "Edits files."}}
TOOL: Any = {"type": "custom", "name": "apply_patch", "description": "Edits files."}
NOW: Any = {"type": "function", "function": {"name": "now"}}


def options(**more: Any) -> Any:
    return {"model": "scripted", "temperature": 0, **more}


def test_a_chat_calls_one_with_text(front: RunningFront) -> None:
    asked = options(messages=saying(SCRIPT), tools=[NOW, CHAT_TOOL])
    choice = front.openai.chat.completions.create(**asked).choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.tool_calls is not None
    call = choice.message.tool_calls[0]
    assert call.type == "custom"
    assert (call.custom.name, call.custom.input) == ("apply_patch", PATCH)
    deltas = [
        delta
        for chunk in front.openai.chat.completions.create(**asked, stream=True)
        for delta in (chunk.choices[0].delta.tool_calls or [])
    ]
    first, *rest = [delta.model_dump(exclude_none=True) for delta in deltas]
    assert (first["type"], first["custom"]) == ("custom", {"name": "apply_patch", "input": ""})
    assert len(rest) > 3
    assert "".join(delta["custom"]["input"] for delta in rest) == PATCH


def test_a_chat_goes_on_from_its_call(front: RunningFront) -> None:
    asked = options(tools=[CHAT_TOOL])
    first = front.openai.chat.completions.create(messages=saying(SCRIPT), **asked)
    message = first.choices[0].message
    assert message.tool_calls is not None
    result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "Done. [[[Good.]]]"}
    messages = [*saying(SCRIPT), message.model_dump(exclude_none=True), result]
    second = front.openai.chat.completions.create(messages=messages, **asked)
    assert second.choices[0].message.content == "Good."
    # The call was rendered as the model had written it.
    assert second.usage is not None
    assert second.usage.prompt_tokens_details is not None
    assert second.usage.prompt_tokens_details.cached_tokens >= (first.usage.prompt_tokens if first.usage else 0)


@pytest.mark.parametrize("choice", ["required", {"type": "custom", "custom": {"name": "apply_patch"}}])
def test_a_chat_can_be_made_to_call_one(front: RunningFront, choice: Any) -> None:
    """What a model of noise writes is text, whatever it is: the grammar of the arguments sees to it."""
    asked = options(messages=[{"role": "user", "content": "x"}], tools=[CHAT_TOOL], tool_choice=choice, max_tokens=200)
    message = front.openai.chat.completions.create(**asked).choices[0].message
    assert message.tool_calls is not None
    assert (message.tool_calls[0].type, message.tool_calls[0].custom.name) == ("custom", "apply_patch")  # type: ignore[union-attr]


def test_a_response_calls_one_with_text(front: RunningFront) -> None:
    asked = {"model": "scripted", "input": f"Say [[[{SCRIPT}]]]", "tools": [TOOL]}
    whole = front.openai.responses.create(**asked).output[-1]
    assert whole.type == "custom_tool_call"
    assert (whole.name, whole.input) == ("apply_patch", PATCH)
    events = list(front.openai.responses.create(**asked, stream=True))
    deltas = [event for event in events if event.type == "response.custom_tool_call_input.delta"]
    done = next(event for event in events if event.type == "response.custom_tool_call_input.done")
    item = next(event.item for event in events if event.type == "response.output_item.done")
    assert "".join(event.delta for event in deltas) == done.input == PATCH
    assert len(deltas) > 3
    assert item.type == "custom_tool_call"
    assert {event.item_id for event in [*deltas, done]} == {item.id}
    assert item.input == PATCH
    last = events[-1]
    assert last.type == "response.completed"
    assert last.response.output == [item]


@pytest.mark.parametrize("stored", [True, False])
def test_a_conversation_goes_on_from_a_response(front: RunningFront, stored: bool) -> None:
    asked: dict[str, Any] = {"model": "scripted", "tools": [TOOL]}
    script = f"Say [[[{SCRIPT}]]]"
    first = front.openai.responses.create(**asked, input=script)
    call = first.output[-1]
    assert call.type == "custom_tool_call"
    output: Any = {"type": "custom_tool_call_output", "call_id": call.call_id, "output": "Done. [[[Good.]]]"}
    if stored:
        second = front.openai.responses.create(**asked, input=[output], previous_response_id=first.id)
    else:
        items = [{"role": "user", "content": script}, call.model_dump(exclude_none=True), output]
        second = front.openai.responses.create(**asked, input=items)
    assert second.output_text == "Good."
    assert second.usage is not None
    assert first.usage is not None
    assert second.usage.input_tokens_details.cached_tokens >= first.usage.input_tokens


def test_a_response_can_be_made_to_call_one(front: RunningFront) -> None:
    asked: Any = {"model": "scripted", "input": "x", "tools": [TOOL], "max_output_tokens": 200}
    choice: Any = {"type": "custom", "name": "apply_patch"}
    response = front.openai.responses.create(**asked, tool_choice=choice)
    assert [item.type for item in response.output] == ["custom_tool_call"]


def test_a_grammar_is_told_to_the_model(front: RunningFront) -> None:
    client = front.openai
    plain, tool = CHAT_TOOL["custom"], {"type": "grammar", "grammar": GRAMMAR}
    asked = options(messages=saying("Hello."))
    without = client.chat.completions.create(**asked, tools=[NOW, CHAT_TOOL])
    raw = client.chat.completions.with_raw_response.create(
        **asked, tools=[NOW, {"type": "custom", "custom": {**plain, "format": tool}}]
    )
    assert "X-Freetoken-Ignored" not in raw.headers
    told = raw.parse()
    assert told.usage is not None
    assert without.usage is not None
    assert told.usage.prompt_tokens > without.usage.prompt_tokens + len(GRAMMAR["definition"])
    flat: Any = [{"type": "web_search"}, {**TOOL, "format": {"type": "grammar", **GRAMMAR}}]
    response = client.responses.with_raw_response.create(model="scripted", input="x", tools=flat)
    assert response.headers["X-Freetoken-Ignored"] == "tools[0]"


BEGUN = {
    "lark": 'start: "*** Begin\\n" line+ "\\"end\\""\nline: /[+-][a-z]{1,3}/ LF\n%import common.LF',
    "regex": r'\*\*\* Begin\n([+-][a-z]{1,3}\n)+"end"',
}


@pytest.mark.parametrize("syntax", BEGUN)
def test_a_text_that_has_to_come_follows_its_grammar(front: RunningFront, syntax: str) -> None:
    """Of a model that would rather say nothing."""
    form = {"type": "grammar", "syntax": syntax, "definition": BEGUN[syntax]}
    tool: Any = {"type": "custom", "custom": {"name": "apply_patch", "format": form}}
    asked = options(messages=[{"role": "user", "content": "x"}], tools=[tool], seed=5)
    asked |= {"temperature": 2.0, "max_tokens": 400, "tool_choice": "required", "parallel_tool_calls": False}
    raw = front.openai.chat.completions.with_raw_response.create(**asked)
    assert "X-Freetoken-Ignored" not in raw.headers
    calls: Any = raw.parse().choices[0].message.tool_calls
    assert [bool(re.fullmatch(BEGUN["regex"], call.custom.input)) for call in calls] == [True]
    flat: Any = [{"type": "custom", "name": "apply_patch", "format": form}]
    choice: Any = {"type": "custom", "name": "apply_patch"}
    response = front.openai.responses.with_raw_response.create(
        model="scripted", input="x", tools=flat, tool_choice=choice, max_output_tokens=400, temperature=2.0
    )
    assert "X-Freetoken-Ignored" not in response.headers
    (item,) = response.parse().output
    assert item.type == "custom_tool_call"
    assert re.fullmatch(BEGUN["regex"], item.input)


@pytest.mark.parametrize(
    ("tool", "said"),
    [
        ({"description": "x"}, "tools[0].custom.name"),
        ({"name": "p", "format": {"type": "yaml"}}, "tools[0].custom.format.type"),
        ({"name": "p", "format": {"type": "grammar", "syntax": "ebnf"}}, "tools[0].custom.format.syntax"),
        ({"name": "p", "format": {"type": "grammar", "grammar": {"syntax": "regex"}}}, "format.grammar.definition"),
        ({"name": "p", "format": {"type": "grammar", "syntax": "lark", "definition": "x: x"}}, "format.definition"),
    ],
)
def test_a_tool_that_cannot_be_used_is_named(front: RunningFront, tool: Any, said: str) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        front.openai.chat.completions.create(
            **options(messages=[{"role": "user", "content": "x"}], tools=[{"type": "custom", "custom": tool}])
        )
    assert said in str(caught.value.param)
