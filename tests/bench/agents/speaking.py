"""A workload's requests over OpenAI's chats and Anthropic's messages, to any server, and the times of their answers."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import httpx

from tests.bench.agents.workloads import Answer, Ask, Message

TIMEOUT = 3600.0  # seconds
Event = Mapping[str, Any]


@dataclass(frozen=True)
class Heard:
    """An answer as its client saw it. Times in seconds from the request on, counts in tokens."""

    answer: Answer
    first: float  # the first token
    total: float  # the last one
    prompt: int
    reused: int
    known: int | None  # of the prompt, how many had been computed before; where the server tells
    generated: int
    hit_rate: float | None = None  # of experts, on a device

    @property
    def per_token(self) -> float:
        """Seconds a token after the first."""
        return (self.total - self.first) / max(1, self.generated - 1)


@dataclass
class _Hearing:
    """What an answer's events have said so far."""

    text: list[str] = field(default_factory=list)
    calls: list[list[str]] = field(default_factory=list)  # id, name, arguments
    opened: float = 0.0
    spoke: float = 0.0  # its first text
    last: float = 0.0
    prompt: int = 0
    reused: int = 0
    generated: int = 0
    statistics: Event = field(default_factory=dict)  # ours
    decoding: float | None = None  # seconds after the first token, by the server's account

    def heard(self) -> Heard:
        """A call is told when it is whole, or its name is: there the server's account says when it began."""
        if rate := self.statistics.get("generated_rate"):
            self.decoding = (self.generated - 1) / rate
        first = self.spoke
        if self.calls:
            first = self.opened if self.decoding is None else self.last - self.decoding
        calls = tuple((identity, name, arguments) for identity, name, arguments in self.calls)
        return Heard(
            Answer("".join(self.text), calls),
            first,
            self.last,
            self.prompt,
            self.reused,
            self.statistics.get("known_tokens"),
            self.generated,
            self.statistics.get("hit_rate"),
        )


@dataclass(frozen=True)
class Interface:
    """One way to ask: its path, how a request is written, and how an event is heard."""

    path: str
    body: Callable[[str, Ask, Mapping[str, int]], dict[str, Any]]
    hear: Callable[[_Hearing, Event, float], None]


def speak(client: httpx.Client, interface: Interface, body: Mapping[str, Any]) -> Heard:
    """Send a request and follow the stream of its answer. HTTPStatusError for a refusal."""
    hearing = _Hearing()
    began = time.perf_counter()
    with client.stream("POST", interface.path, json=body, timeout=TIMEOUT) as response:
        if response.is_error:
            response.read()
            raise RuntimeError(f"{interface.path} was refused: {response.text}")
        for event, now in _events(response):
            hearing.opened = hearing.opened or now - began
            interface.hear(hearing, event, now - began)
    return hearing.heard()


def _events(response: httpx.Response) -> Iterator[tuple[Event, float]]:
    for line in response.iter_lines():
        if line.startswith("data: {"):
            yield json.loads(line.removeprefix("data: ")), time.perf_counter()


# --- OpenAI's chats


def _chat_body(model: str, ask: Ask, bias: Mapping[str, int]) -> dict[str, Any]:
    """Text is of words that come back as the same tokens, and as long as it should be."""
    body: dict[str, Any] = {
        "model": model,
        "messages": list(ask.messages),
        "tools": list(ask.tools),
        "tool_choice": "auto" if ask.answer else "required",
        "parallel_tool_calls": False,
        "max_tokens": ask.max_tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
        "chat_template_kwargs": {"enable_thinking": False},
    }
    return {**body, "logit_bias": bias, "ignore_eos": True} if ask.answer else body


def _hear_chat(hearing: _Hearing, event: Event, now: float) -> None:
    for choice in event.get("choices", ()):
        delta = choice["delta"]
        if delta.get("content"):
            hearing.text.append(delta["content"])
            hearing.spoke, hearing.last = hearing.spoke or now, now
        for call in delta.get("tool_calls") or ():
            if call["index"] == len(hearing.calls):
                hearing.calls.append([call["id"], call["function"]["name"], ""])
            hearing.calls[-1][2] += call["function"].get("arguments", "")
            hearing.last = now
    if usage := event.get("usage"):
        hearing.prompt, hearing.generated = usage["prompt_tokens"], usage["completion_tokens"]
        hearing.reused = usage["prompt_tokens_details"]["cached_tokens"]
        hearing.statistics = event.get("statistics", {})
        if timings := event.get("timings"):  # llama-server's
            hearing.decoding = (hearing.generated - 1) / timings["predicted_per_second"]


# --- Anthropic's messages


def _messages_body(model: str, ask: Ask, bias: Mapping[str, int]) -> dict[str, Any]:
    """It knows no bias: text is what the model says."""
    system, *messages = ask.messages
    tools = [
        {
            "name": tool["function"]["name"],
            "description": tool["function"]["description"],
            "input_schema": tool["function"]["parameters"],
        }
        for tool in ask.tools
    ]
    return {
        "model": model,
        "system": system["content"],
        "messages": [_as_blocks(message) for message in messages],
        "tools": tools,
        "tool_choice": {"type": "auto" if ask.answer else "any", "disable_parallel_tool_use": True},
        "max_tokens": ask.max_tokens,
        "temperature": 0,
        "stream": True,
        "thinking": {"type": "disabled"},
    }


def _as_blocks(message: Message) -> Message:
    if message["role"] == "tool":
        result = {"type": "tool_result", "tool_use_id": message["tool_call_id"], "content": message["content"]}
        return {"role": "user", "content": [result]}
    blocks: list[Message] = [{"type": "text", "text": message["content"]}] if message["content"] else []
    for call in message.get("tool_calls", ()):
        function = call["function"]
        blocks.append(
            {
                "type": "tool_use",
                "id": call["id"],
                "name": function["name"],
                "input": json.loads(function["arguments"]),
            }
        )
    return {"role": message["role"], "content": blocks}


def _hear_message(hearing: _Hearing, event: Event, now: float) -> None:
    match event["type"]:
        case "content_block_start" if event["content_block"]["type"] == "tool_use":
            block = event["content_block"]
            hearing.calls.append([block["id"], block["name"], ""])
            hearing.last = now
        case "content_block_delta" if event["delta"]["type"] == "text_delta":
            hearing.text.append(event["delta"]["text"])
            hearing.spoke, hearing.last = hearing.spoke or now, now
        case "content_block_delta" if event["delta"]["type"] == "input_json_delta":
            hearing.calls[-1][2] += event["delta"]["partial_json"]
            hearing.last = now
        case "message_start":
            _count(hearing, event["message"]["usage"])
        case "message_delta":
            _count(hearing, event["usage"])
            hearing.statistics = event.get("statistics", {})


def _count(hearing: _Hearing, usage: Event) -> None:
    """`input_tokens` leaves out what was reused."""
    if "input_tokens" in usage:
        hearing.reused = usage.get("cache_read_input_tokens", 0)
        hearing.prompt = usage["input_tokens"] + hearing.reused
    hearing.generated = usage["output_tokens"]


INTERFACES: Mapping[str, Interface] = {
    "openai": Interface("/v1/chat/completions", _chat_body, _hear_chat),
    "anthropic": Interface("/v1/messages", _messages_body, _hear_message),
}


def ask_all(
    client: httpx.Client, interface: Interface, model: str, asks: Sequence[Ask], bias: Mapping[str, int]
) -> list[Heard]:
    """The answers to some requests, all of them made at once."""
    bodies = [interface.body(model, ask, bias) for ask in asks]
    with ThreadPoolExecutor(len(bodies)) as pool:
        return list(pool.map(lambda body: speak(client, interface, body), bodies))
