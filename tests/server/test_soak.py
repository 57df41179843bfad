"""Two thousand mixed requests of every interface, whose clients leave when they like: nothing of them stays."""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.server.running_front import RunningFront, start_front

REQUESTS = 2000
ROUNDS = 4
AT_ONCE = 24
SECONDS = 85.0
LEAK = 4 << 20  # bytes that a process may gain after the first round
OBJECTS = 1000  # that the front may gain
HELD = ("kv_tokens_held", "windows_held", "states_held", "active", "waiting")
WEATHER: Mapping[str, Any] = {
    "name": "weather",
    "description": "What it is like",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
FUNCTION = {"type": "function", "function": WEATHER}
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": False}
CALL = '[[[I look. <tool_call>\n{"name": "weather", "arguments": {"city": "Bonn"}}\n</tool_call>]]]'
LENGTHS = (1, 20, 60)

Body = dict[str, Any]


@dataclass(frozen=True)
class Kind:
    """One way to ask: where, and with what for a text and a number of tokens."""

    path: str
    body: Callable[[str, int], Body]
    model: str = "brisk"

    def request(self, chance: Random, number: int) -> tuple[str, Body]:
        """Somebody's request. Texts come again, so that what is kept on purpose is kept after a round."""
        text = f"{'the same old story ' * chance.randrange(8)}{chance.choice(('', str(number % 10)))}."
        return self.path, {"model": self.model, **self.body(text, chance.choice(LENGTHS))}


def said(text: str) -> list[Body]:
    return [{"role": "user", "content": text}]


def chat(text: str, tokens: int) -> Body:
    return {"messages": said(text), "max_tokens": tokens}


KINDS: Mapping[str, Kind] = {
    "chat": Kind("/v1/chat/completions", chat),
    "chat of several": Kind("/v1/chat/completions", lambda text, tokens: {**chat(text, tokens), "n": 3}),
    "chat with scores": Kind(
        "/v1/chat/completions", lambda text, tokens: {**chat(text, tokens), "logprobs": True, "top_logprobs": 5}
    ),
    "chat of a form": Kind(
        "/v1/chat/completions",
        lambda text, _: {
            "messages": said(text + '[[[{"n": 12}]]]'),
            "max_tokens": 20,
            "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}},
        },
        "scripted",
    ),
    "chat with tools": Kind(
        "/v1/chat/completions", lambda text, _: {"messages": said(text + CALL), "tools": [FUNCTION]}, "scripted"
    ),
    "completion": Kind("/v1/completions", lambda text, tokens: {"prompt": text, "max_tokens": tokens}),
    "response": Kind(
        "/v1/responses", lambda text, tokens: {"input": text, "max_output_tokens": tokens, "store": len(text) % 8 == 0}
    ),
    "message": Kind("/v1/messages", chat),
    "message with tools": Kind(
        "/v1/messages",
        lambda text, _: {
            "messages": said(text + CALL),
            "max_tokens": 200,
            "tools": [{"name": "weather", "input_schema": WEATHER["parameters"]}],
        },
        "scripted",
    ),
    "count": Kind("/v1/messages/count_tokens", lambda text, _: {"messages": said(text)}),
    "ollama chat": Kind("/api/chat", lambda text, tokens: {"messages": said(text), "options": {"num_predict": tokens}}),
    "ollama generate": Kind("/api/generate", lambda text, tokens: {"prompt": text, "options": {"num_predict": tokens}}),
    "nonsense": Kind("/v1/chat/completions", lambda text, _: {"messages": text}),
    "nobody": Kind("/v1/chat/completions", chat, "nobody"),
}
REFUSED = {"nonsense": 400, "nobody": 404}
PHASES = ("stays", "stays", "while sending", "once sent", "after a while", "within the answer")


async def visit(front: RunningFront, chance: Random, number: int, seen: Counter[str]) -> None:
    """One client, which stays or leaves in some phase."""
    kind = chance.choice(list(KINDS))
    path, body = KINDS[kind].request(chance, number)
    streamed = chance.random() < 0.6 and kind != "count"
    data = json.dumps({**body, "stream": streamed} if kind != "count" else body).encode()
    phase = chance.choice(PHASES)
    reader, writer = await asyncio.open_connection("127.0.0.1", front.port)
    try:
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {len(data)}\r\n\r\n"
        request = head.encode() + data
        writer.write(request[: chance.randrange(len(request))] if phase == "while sending" else request)
        if phase == "after a while":
            await asyncio.sleep(chance.random() * 0.2)
        told = b""
        if phase == "within the answer":
            told = await reader.read(chance.randrange(1, 3000))
        if phase == "stays":
            async with asyncio.timeout(SECONDS):
                told = await reader.read()
            assert told.startswith(b"HTTP/1.1 %d " % REFUSED.get(kind, 200)), (kind, told)
            if kind not in REFUSED:
                assert b'"error": {' not in told, told
                assert b'"error":{' not in told, told
        else:
            await writer.drain()
    except ConnectionError:
        assert phase != "stays"
    finally:
        writer.transport.abort()
        with suppress(ConnectionError):
            await writer.wait_closed()
    seen[kind] += 1
    seen[phase] += 1


async def a_round(front: RunningFront, chance: Random, count: int, seen: Counter[str]) -> None:
    free = asyncio.Semaphore(AT_ONCE)

    async def come(number: int) -> None:
        async with free:
            await visit(front, chance, number, seen)

    await asyncio.gather(*(come(number) for number in range(count)))


def settled(front: RunningFront) -> tuple[int, list[int]]:
    """Descriptors, and bytes of each process, once everybody has left; nothing of theirs is held then."""
    deadline = time.monotonic() + 10
    for model in ("brisk", "scripted"):
        while dict.fromkeys(HELD, 0).items() - (stats := front.stats(model)).items():
            assert time.monotonic() < deadline, stats
            time.sleep(0.02)
    while any(state["busy"] for state in front.control("ps")["models"]):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    time.sleep(0.5)  # for the last connections to close
    processes = [front.process.pid, *front.workers()]
    return sum(len(os.listdir(f"/proc/{pid}/fd")) for pid in processes), [memory(pid) for pid in processes]


def memory(process: int) -> int:
    """Bytes of its own."""
    (line,) = (text for text in Path(f"/proc/{process}/status").read_text().splitlines() if text.startswith("RssAnon"))
    return int(line.split()[1]) * 1024


@pytest.fixture
def front(store: Path) -> Iterator[RunningFront]:
    with tempfile.TemporaryDirectory(prefix="ft-") as folder:
        running = start_front(store, Path(folder), script=Path(__file__).parent / "run_counted_front.py")
        yield running
        assert running.stop() == 0


@pytest.mark.long
def test_nothing_of_two_thousand_requests_stays(front: RunningFront) -> None:
    for model in ("brisk", "scripted"):
        front.control("load", model=model, kv_tokens=8192)
    chance, seen = Random(11), Counter[str]()
    rounds = []
    for _ in range(ROUNDS):
        asyncio.run(a_round(front, chance, REQUESTS // ROUNDS, seen))
        rounds.append((*settled(front), front.control("tasks")))
    print(dict(seen), rounds)
    assert sum(seen[phase] for phase in set(PHASES)) == REQUESTS
    assert all(seen[each] > 50 for each in (*KINDS, *PHASES)), seen
    descriptors, sizes, counts = rounds[0]
    assert rounds[-1][0] <= descriptors
    assert rounds[-1][2]["tasks"] <= counts["tasks"]
    assert rounds[-1][2]["objects"] <= counts["objects"] + OBJECTS
    assert all(last <= first + LEAK for first, last in zip(sizes, rounds[-1][1], strict=True)), rounds
