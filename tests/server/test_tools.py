"""Tools and reasoning over the official client, with a model that says what it is told to."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest
from openai.lib.streaming.chat import ChatCompletionStreamState
from openai.types.chat import ChatCompletionMessage, ChatCompletionMessageFunctionToolCall

from tests.server.running_front import RunningFront, saying

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
NOW = {"type": "function", "function": {"name": "now"}}
TOOLS: list[Any] = [WEATHER, NOW]
PARIS = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris, \\"74\\""}}\n</tool_call>'
CALL_NOW = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'


def ask(front: RunningFront, script: str, **options: Any) -> tuple[ChatCompletionMessage, str]:
    """The message to a script and why it ended, which is the same streamed."""
    options = {"model": "scripted", "temperature": 0, "max_tokens": 400, **options}
    completion = front.openai.chat.completions.create(messages=saying(script), **options)
    whole = completion.choices[0]
    state = ChatCompletionStreamState()
    chunks = list(front.openai.chat.completions.create(messages=saying(script), stream=True, **options))
    for chunk in chunks:
        state.handle_chunk(chunk)
    for each in (completion, *chunks):
        type(each).model_validate(each.to_dict())  # the client itself is content with less than its own types say
    streamed = state.current_completion_snapshot.choices[0]
    assert (streamed.message.content or "") == (whole.message.content or "")
    thoughts = [(message.model_extra or {}).get("reasoning_content") for message in (streamed.message, whole.message)]
    assert thoughts[0] == thoughts[1]
    assert functions(streamed.message) == functions(whole.message)
    assert streamed.finish_reason == whole.finish_reason
    return whole.message, whole.finish_reason


def functions(message: ChatCompletionMessage) -> list[tuple[str, str]]:
    calls = message.tool_calls or []
    assert all(isinstance(call, ChatCompletionMessageFunctionToolCall) for call in calls)
    return [(call.function.name, call.function.arguments) for call in calls]


def test_calls_come_as_calls(front: RunningFront) -> None:
    message, reason = ask(front, f"I look.\n{PARIS}\n{CALL_NOW}", tools=TOOLS)
    assert message.content == "I look."
    assert functions(message) == [("get_weather", '{"city": "Paris, \\"74\\""}'), ("now", "{}")]
    assert reason == "tool_calls"
    assert len({call.id for call in message.tool_calls or ()}) == 2


def test_an_answer_that_only_calls_has_no_content(front: RunningFront) -> None:
    message, reason = ask(front, PARIS, tools=TOOLS)
    assert message.content is None
    assert reason == "tool_calls"


def test_without_tools_the_same_words_are_text(front: RunningFront) -> None:
    for options in ({}, {"tools": TOOLS, "tool_choice": "none"}):
        message, reason = ask(front, f"So: {PARIS}", **options)
        assert message.content == f"So: {PARIS}"
        assert message.tool_calls is None
        assert reason == "stop"


def test_a_call_that_cannot_be_read_is_text(front: RunningFront) -> None:
    message, reason = ask(front, 'So: <tool_call>{"name": </tool_call> and on', tools=TOOLS)
    assert message.content == 'So: <tool_call>{"name": </tool_call> and on'
    assert reason == "stop"


def test_a_call_grows_as_it_is_written(front: RunningFront) -> None:
    """The name comes first, alone, and nearly every character of the arguments with its token."""
    options: Any = {"model": "scripted", "messages": saying(PARIS), "temperature": 0, "tools": TOOLS}
    chunks = front.openai.chat.completions.create(**options, stream=True)
    deltas = [call for chunk in chunks for call in chunk.choices[0].delta.tool_calls or ()]
    first, *grown = [call.function for call in deltas if call.function is not None]
    assert (first.name, first.arguments) == ("get_weather", "")
    assert deltas[0].id
    assert all(call.id is None and call.index == 0 for call in deltas[1:])
    assert max(len(call.arguments or "") for call in grown) <= len('{"city": "')


@pytest.mark.parametrize(
    ("limit", "arguments"),
    [
        ('"Par', '{"city": "Par"}'),
        ('"city"', "{}"),
        ('"Paris, \\', '{"city": "Paris, "}'),  # half an escape
    ],
)
def test_a_call_that_is_cut_off_is_json(front: RunningFront, limit: str, arguments: str) -> None:
    tokens = PARIS.index(limit) + len(limit)
    message, reason = ask(front, PARIS, tools=TOOLS, max_tokens=tokens)
    assert functions(message) == [("get_weather", arguments)]
    assert reason == "length"


def test_a_stop_string_in_a_call_ends_it(front: RunningFront) -> None:
    message, reason = ask(front, PARIS, tools=TOOLS, stop=["ris"])
    assert functions(message) == [("get_weather", '{"city": "Pa"}')]
    assert reason == "stop", "or it would be taken for a whole one"
    whole = '{"city": "Paris, \\"74\\""}'
    for behind in ("</tool_call>", "Then"):
        message, reason = ask(front, f"{PARIS}\nThen.", tools=TOOLS, stop=[behind])
        assert (functions(message), reason) == ([("get_weather", whole)], "tool_calls")


def test_one_call_is_enough_where_no_more_are_wanted(front: RunningFront) -> None:
    message, reason = ask(front, f"{PARIS}\n{CALL_NOW}", tools=TOOLS, parallel_tool_calls=False)
    assert [name for name, _ in functions(message)] == ["get_weather"]
    assert reason == "tool_calls"


@pytest.mark.parametrize("thinking", [None, True, False])
def test_a_call_can_be_required(front: RunningFront, thinking: bool | None) -> None:
    variables = {} if thinking is None else {"chat_template_kwargs": {"enable_thinking": thinking}}
    before = {None: "", True: "<think>\n</think>\n\n", False: "<think>\n\n</think>\n\n"}[thinking]
    options = {"tools": TOOLS, "extra_body": variables}
    message, reason = ask(front, before + PARIS, tool_choice="required", **options)
    assert [name for name, _ in functions(message)] == ["get_weather"]
    assert reason == "tool_calls"
    named = {"type": "function", "function": {"name": "now"}}
    message, _ = ask(front, f"{before}{CALL_NOW}\n{PARIS}", tool_choice=named, **options)
    assert [name for name, _ in functions(message)] == ["now"]
    assert message.content is None


def test_reasoning_is_apart_from_the_answer(front: RunningFront) -> None:
    message, reason = ask(front, "<think>\nHm, a\nriddle.\n</think>\n\nForty-two. ")
    assert message.content == "Forty-two. "
    assert message.model_extra is not None
    assert message.model_extra["reasoning_content"] == "Hm, a\nriddle."
    assert reason == "stop"


def test_reasoning_can_be_left_in_the_text(front: RunningFront) -> None:
    script = "<think>\nHm.\n</think>\n\nForty-two."
    message, _ = ask(front, script, extra_body={"reasoning_format": "none"})
    assert message.content == script


@pytest.mark.parametrize(("effort", "before"), [("high", "<think>\n"), ("none", "<think>\n\n</think>\n\n")])
def test_thinking_is_switched_by_effort(front: RunningFront, effort: Any, before: str) -> None:
    message, _ = ask(front, f"{before}One</think>Two", reasoning_effort=effort)
    extra = message.model_extra or {}
    if effort == "none":
        assert message.content == "One</think>Two"
        assert "reasoning_content" not in extra
    else:
        assert (extra["reasoning_content"], message.content) == ("One", "Two")


def test_a_conversation_goes_on_after_a_call(front: RunningFront) -> None:
    """What was called and what came of it is in the next prompt, with the tool's name."""
    first, _ = ask(front, PARIS, tools=TOOLS)
    assert first.tool_calls is not None
    result = {"role": "tool", "tool_call_id": first.tool_calls[0].id, "content": "Say [[[Sunny.]]]"}
    messages: list[Any] = [*saying(PARIS), first.model_dump(exclude_none=True), result]
    options: Any = {"model": "scripted", "temperature": 0, "max_tokens": 50, "tools": TOOLS}
    answer = front.openai.chat.completions.create(messages=messages, **options)
    assert answer.choices[0].message.content == "Sunny."
    assert answer.usage is not None
    assert answer.usage.prompt_tokens_details is not None
    assert (answer.usage.prompt_tokens_details.cached_tokens or 0) > 0


def test_the_statistics_count_what_was_said(front: RunningFront) -> None:
    options: Any = {"model": "scripted", "messages": saying(PARIS), "temperature": 0, "tools": TOOLS}
    answer = front.openai.chat.completions.create(**options)
    assert answer.usage is not None
    assert answer.usage.completion_tokens == len(PARIS) + 1
    assert json.loads(functions(answer.choices[0].message)[0][1]) == {"city": 'Paris, "74"'}


def prompt_tokens(front: RunningFront, tools: list[Any], **options: Any) -> int:
    options = {"model": "scripted", "messages": saying(CALL_NOW), "tools": tools, **options}
    usage = front.openai.chat.completions.create(**options).usage
    assert usage is not None
    return int(usage.prompt_tokens)


def test_tools_that_are_not_allowed_are_left_out(front: RunningFront) -> None:
    only_now = {"mode": "auto", "tools": [{"type": "function", "function": {"name": "now"}}]}
    allowed = {"type": "allowed_tools", "allowed_tools": only_now}
    assert prompt_tokens(front, TOOLS, tool_choice=allowed) == prompt_tokens(front, [NOW]) < prompt_tokens(front, TOOLS)
    required = {"type": "allowed_tools", "allowed_tools": {**only_now, "mode": "required"}}
    message, _ = ask(front, CALL_NOW, tools=TOOLS, tool_choice=required)
    assert functions(message) == [("now", "{}")]
    with pytest.raises(openai.BadRequestError, match="no tool is called 'now'"):
        ask(front, CALL_NOW, tools=[WEATHER], tool_choice=required)


def test_the_model_does_not_read_that_a_tool_is_strict(front: RunningFront) -> None:
    strict = {"type": "function", "function": {"name": "now", "strict": True}}
    assert prompt_tokens(front, [strict]) == prompt_tokens(front, [NOW])
