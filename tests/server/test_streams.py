"""A stream that ends in any way lets go of its request and of its model."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, suppress
from typing import Any

import pytest

from engine.front.answering import respond
from engine.front.answers import Job
from engine.front.http import Events, EventStream
from engine.front.openai_api.requests import read_completion
from engine.front.openai_api.shapes import CompletionShape
from engine.worker.protocol import Progress, Sampling

Send = Callable[[dict[str, Any]], Any]


async def never() -> dict[str, Any]:
    await asyncio.Event().wait()
    raise AssertionError


async def gone() -> dict[str, Any]:
    return {"type": "http.disconnect"}


async def serve(events: Events, receive: Any, send: Send) -> bool:
    """Whether the end of the stream was noticed."""
    closed = []

    async def close() -> None:
        closed.append(True)

    with suppress(ZeroDivisionError):
        await EventStream(events, close)({}, receive, send)
    return bool(closed)


async def two_events(error: Exception | None) -> Events:
    yield {"number": 1}
    if error is not None:
        raise error
    yield {"number": 2}


@pytest.mark.parametrize("receive", [never, gone])
def test_a_writer_that_fails_in_any_way_lets_go(receive: Any) -> None:
    async def send(message: dict[str, Any]) -> None:
        raise ZeroDivisionError

    assert asyncio.run(serve(two_events(None), receive, send))


def test_a_mistake_in_the_middle_of_a_stream_is_its_last_event() -> None:
    sent: list[bytes] = []

    async def send(message: dict[str, Any]) -> None:
        sent.append(message.get("body", b""))

    assert asyncio.run(serve(two_events(KeyError("x")), never, send))
    first, error = (json.loads(line.removeprefix(b"data: ")) for line in sent if line)
    assert first == {"number": 1}
    assert "The server failed: KeyError." in error["error"]["message"]


class Worker:
    """A client whose request never ends by itself."""

    def __init__(self) -> None:
        self.log: list[str] = []

    async def generate(self, *arguments: Any) -> AsyncGenerator[Progress, None]:
        try:
            yield Progress(1, 0, 0, 5)
            await asyncio.Event().wait()
        finally:
            self.log.append("request ended")


class Model:
    """What of a loaded model an answer needs."""

    def __init__(self) -> None:
        self.client, self.name, self.text = Worker(), "fake", self

    def stream(self, stops: object, markers: object) -> None:
        return None


def test_a_request_ends_before_its_model_is_let_go_even_if_the_client_left_before_the_first_event() -> None:
    model: Any = Model()

    async def run() -> list[str]:
        stack = AsyncExitStack()
        stack.callback(model.client.log.append, "model released")
        asked = read_completion({"model": "fake", "prompt": "x", "stream": True})
        job = Job(0, (1,), 5, (), (), Sampling())
        async with stack:
            response = await respond(asked, model, [job], CompletionShape("fake", model, False, False, [""]), stack)
        headers_sent = asyncio.Event()

        async def send(message: dict[str, Any]) -> None:
            headers_sent.set()
            await asyncio.Event().wait()

        async def leave() -> dict[str, Any]:
            await headers_sent.wait()
            return {"type": "http.disconnect"}

        await response({}, leave, send)  # type: ignore[arg-type]
        log: list[str] = list(model.client.log)
        return log

    assert asyncio.run(run()) == ["request ended", "model released"]
