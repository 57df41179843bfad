"""Requests that are too much in one place: the refusal names the place, in every interface."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import httpx
import pytest

from engine.front.anthropic_api.requests import read_messages
from engine.front.forms.tools import LONGEST_TOOL, LONGEST_TOOLS
from engine.front.ollama_api.requests import read_chat as read_ollama_chat
from engine.front.ollama_api.requests import read_generate
from engine.front.openai_api.requests import MOST_PROMPTS, read_chat, read_completion
from engine.front.responses_api.requests import read_response
from engine.front.wire.fields import LONGEST_TEXT, MOST_MESSAGES, FieldError
from tests.server.running_front import RunningFront

LONG = "x" * (LONGEST_TEXT + 1)
HELLO = {"role": "user", "content": "hi"}
READERS: Mapping[str, Callable[[dict[str, Any]], object]] = {
    "chat": read_chat,
    "completion": read_completion,
    "response": lambda body: read_response(body, ()),
    "message": lambda body: read_messages({"max_tokens": 1, **body}),
    "ollama chat": read_ollama_chat,
    "ollama generate": read_generate,
}


def tool(length: int, name: str = "f") -> dict[str, Any]:
    """A tool with a schema of so many characters, about."""
    return {"name": name, "parameters": {"type": "object", "description": "x" * length}}


def called(function: dict[str, Any]) -> dict[str, Any]:
    return {"type": "function", "function": function}


def part(kind: str = "text") -> list[dict[str, Any]]:
    return [{"type": kind, "text": "short"}, {"type": kind, "text": LONG}]


TOO_MUCH: list[tuple[str, str, dict[str, Any]]] = [
    ("chat", "messages", {"messages": [HELLO] * (MOST_MESSAGES + 1)}),
    ("chat", "messages[1].content", {"messages": [HELLO, {"role": "user", "content": LONG}]}),
    ("chat", "messages[0].content[1].text", {"messages": [{"role": "user", "content": part()}]}),
    ("chat", "messages[0].content", {"messages": [{"role": "user", "content": part()[:1] * (MOST_MESSAGES + 1)}]}),
    ("chat", "tools[0].function", {"messages": [HELLO], "tools": [called(tool(LONGEST_TOOL))]}),
    (
        "chat",
        "tools",
        {
            "messages": [HELLO],
            "tools": [called(tool(LONGEST_TOOL - 200, f"f{i}")) for i in range(LONGEST_TOOLS // LONGEST_TOOL + 1)],
        },
    ),
    ("response", "input", {"input": LONG}),
    ("response", "input", {"input": [HELLO] * (MOST_MESSAGES + 1)}),
    ("response", "input[0].content", {"input": [{"role": "user", "content": LONG}]}),
    ("response", "input[0].content[1].text", {"input": [{"role": "user", "content": part("input_text")}]}),
    ("response", "instructions", {"input": "hi", "instructions": LONG}),
    (
        "response",
        "input[1].output",
        {
            "input": [
                {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"},
                {"type": "function_call_output", "call_id": "1", "output": LONG},
            ]
        },
    ),
    ("response", "tools[0]", {"input": "hi", "tools": [{"type": "function", **tool(LONGEST_TOOL)}]}),
    ("message", "messages", {"messages": [HELLO] * (MOST_MESSAGES + 1)}),
    ("message", "messages[0].content", {"messages": [{"role": "user", "content": LONG}]}),
    ("message", "messages[0].content[1].text", {"messages": [{"role": "user", "content": part()}]}),
    ("message", "system", {"messages": [HELLO], "system": LONG}),
    (
        "message",
        "tools[0]",
        {"messages": [HELLO], "tools": [{"name": "f", "input_schema": {"description": "x" * LONGEST_TOOL}}]},
    ),
    ("ollama chat", "messages", {"messages": [HELLO] * (MOST_MESSAGES + 1)}),
    ("ollama chat", "messages[0].content", {"messages": [{"role": "user", "content": LONG}]}),
    ("ollama chat", "tools[0].function", {"messages": [HELLO], "tools": [called(tool(LONGEST_TOOL))]}),
    ("ollama generate", "prompt", {"prompt": LONG}),
    ("completion", "prompt", {"prompt": ["x"] * (MOST_PROMPTS + 1)}),
    ("completion", "n", {"prompt": ["x"] * (MOST_PROMPTS // 16 + 1), "n": 16}),
]


@pytest.mark.parametrize(("interface", "field", "body"), TOO_MUCH, ids=[" ".join(each[:2]) for each in TOO_MUCH])
def test_what_is_too_much_is_named(interface: str, field: str, body: dict[str, Any]) -> None:
    with pytest.raises(FieldError, match=r"more than the \d+ allowed") as refused:
        READERS[interface]({"model": "fake", **body})
    assert refused.value.field == field
    assert len(str(refused.value)) < 300


@pytest.mark.parametrize(
    ("interface", "body"),
    [
        ("chat", {"messages": [{"role": "user", "content": LONG[1:]}], "tools": [called(tool(LONGEST_TOOL - 200))]}),
        ("chat", {"messages": [HELLO] * MOST_MESSAGES}),
        ("response", {"input": LONG[1:]}),
        ("message", {"messages": [HELLO] * MOST_MESSAGES}),
        ("ollama chat", {"messages": [HELLO] * MOST_MESSAGES}),
    ],
)
def test_what_is_just_allowed_is_read(interface: str, body: dict[str, Any]) -> None:
    READERS[interface]({"model": "fake", **body})


@pytest.mark.parametrize("depth", [70, 900, 980, 5000])
@pytest.mark.parametrize("where", ["parameters", "response_format", "content", "chat_template_kwargs"])
def test_data_that_is_nested_deeply_is_refused_and_breaks_nothing(front: RunningFront, where: str, depth: int) -> None:
    nested = "[" * depth + "]" * depth
    members = {
        "parameters": '"tools": [{"type": "function", "function": {"name": "f", "parameters": {"enum": NESTED}}}]',
        "response_format": '"response_format": {"type": "json_schema", "json_schema": {"schema": {"enum": NESTED}}}',
        "content": '"messages": [{"role": "user", "content": "hi", "more": NESTED}]',
        "chat_template_kwargs": '"chat_template_kwargs": {"more": NESTED}',
    }
    messages = "" if where == "content" else f'"messages": {json.dumps([HELLO])}, '
    body = '{"model": "scripted", ' + messages + members[where].replace("NESTED", nested) + "}"
    response = httpx.post(f"{front.url}/v1/chat/completions", content=body, timeout=30)
    assert response.status_code == 400 or (where == "response_format" and depth < 100), response.text
    assert httpx.get(f"{front.url}/health").status_code == 200
