"""Tools that are strict, over the official clients: a model that chooses to call one follows its schema."""

from __future__ import annotations

import json
from typing import Any, Literal

import anthropic
import httpx
import openai
import pytest
from pydantic import BaseModel, Field

from tests.server.running_front import RunningFront


class Weather(BaseModel, extra="forbid"):
    city: str = Field(max_length=4)
    days: int = Field(ge=1, le=9)
    unit: Literal["celsius", "kelvin"]


SCHEMA = Weather.model_json_schema()
TOOL: Any = {"type": "function", "function": {"name": "weather", "parameters": SCHEMA, "strict": True}}
NOW: Any = {"type": "function", "function": {"name": "now"}}
WRONG = '<tool_call>\n{"name": "weather", "arguments": {"town": "Oslo", "days": "2"}}\n</tool_call>'
SCRIPT = f"<think>Hm. <tool_call></think>Well. {WRONG}"
SAID = [{"role": "user", "content": f"Say [[[{SCRIPT}]]]"}]
ASKED: Any = {"model": "scripted", "messages": SAID, "temperature": 0, "max_tokens": 400}


def test_a_chat_calls_one_by_its_schema_whole_and_streamed(front: RunningFront) -> None:
    asked = {**ASKED, "tools": [TOOL, NOW], "parallel_tool_calls": False}
    raw = front.openai.chat.completions.with_raw_response.create(**asked)
    assert "X-Freetoken-Ignored" not in raw.headers
    choice = raw.parse().choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content == "Well."
    assert choice.message.tool_calls is not None
    (call,) = choice.message.tool_calls
    assert call.type == "function"
    assert call.function.name == "weather"
    Weather.model_validate_json(call.function.arguments, strict=True)
    deltas = [
        delta.function
        for chunk in front.openai.chat.completions.create(**asked, stream=True)
        for delta in (chunk.choices[0].delta.tool_calls or [])
    ]
    assert "".join(delta.arguments or "" for delta in deltas if delta) == call.function.arguments


def test_without_strict_what_a_model_says_stands(front: RunningFront) -> None:
    loose = {**TOOL, "function": {**TOOL["function"], "strict": False}}
    message = front.openai.chat.completions.create(**ASKED, tools=[loose]).choices[0].message
    assert message.tool_calls is not None
    assert json.loads(message.tool_calls[0].function.arguments) == {"town": "Oslo", "days": "2"}  # type: ignore[union-attr]


def test_an_answer_of_a_form_may_call_one(front: RunningFront) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}, "strict": True}}
    asked = {**ASKED, "messages": [{"role": "user", "content": f"Say [[[{WRONG}]]]"}], "tools": [TOOL]}
    raw = front.openai.chat.completions.with_raw_response.create(
        **asked, response_format=form, parallel_tool_calls=False
    )
    assert "X-Freetoken-Ignored" not in raw.headers
    (call,) = raw.parse().choices[0].message.tool_calls or ()
    Weather.model_validate_json(call.function.arguments, strict=True)  # type: ignore[union-attr]


def test_a_response_calls_one_by_its_schema(front: RunningFront) -> None:
    flat: Any = {"type": "function", **TOOL["function"]}
    response = front.openai.responses.create(
        model="scripted", input=SAID[0]["content"], tools=[flat], temperature=0, parallel_tool_calls=False
    )
    call = response.output[-1]
    assert call.type == "function_call"
    Weather.model_validate_json(call.arguments, strict=True)


def test_a_message_calls_one_by_its_schema(front: RunningFront) -> None:
    client = anthropic.Anthropic(base_url=front.url, api_key="none", max_retries=0)
    tool: Any = {"name": "weather", "input_schema": SCHEMA, "strict": True}
    only: Any = {"type": "auto", "disable_parallel_tool_use": True}
    message = client.messages.create(model="scripted", max_tokens=400, messages=SAID, tools=[tool], tool_choice=only)
    (call,) = [block for block in message.content if block.type == "tool_use"]
    Weather.model_validate(call.input, strict=True)


def test_ollamas_chat_calls_one_by_its_schema(front: RunningFront) -> None:
    body = {"model": "scripted", "messages": SAID, "tools": [TOOL], "stream": False, "options": {"temperature": 0}}
    message = httpx.post(f"{front.url}/api/chat", json=body, timeout=60).json()["message"]
    Weather.model_validate(message["tool_calls"][0]["function"]["arguments"], strict=True)


@pytest.mark.parametrize("choice", ["auto", "required"])
def test_a_schema_that_cannot_be_followed_is_refused_by_name(front: RunningFront, choice: Any) -> None:
    hard = {"type": "object", "properties": {"x": {"type": "array", "uniqueItems": True}}}
    tool: Any = {"type": "function", "function": {"name": "hard", "parameters": hard, "strict": True}}
    with pytest.raises(openai.BadRequestError, match="uniqueItems") as caught:
        front.openai.chat.completions.create(**ASKED, tools=[NOW, tool], tool_choice=choice)
    assert caught.value.param == "tools[1].function.strict"
