"""A stream that ends in any way lets go of its request and of its model."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, suppress
from itertools import pairwise
from typing import Any

import pytest
from starlette.applications import Starlette

from engine.front.answering import respond
from engine.front.jobs import Job, Reader
from engine.front.openai_api.requests import read_completion
from engine.front.openai_api.shapes import ChatShape, CompletionShape
from engine.front.wire.dialects import ANTHROPIC, OLLAMA, OPENAI, Dialect, ResponsesDialect
from engine.front.wire.http import Events, EventStream
from engine.front.wire.limits import Limits
from engine.text.formats.choice import format_of
from engine.text.formats.parser import Part
from engine.worker.protocol import Progress, Sampling, Tokens

Send = Callable[[dict[str, Any]], Any]


async def never() -> dict[str, Any]:
    await asyncio.Event().wait()
    raise AssertionError


async def gone() -> dict[str, Any]:
    return {"type": "http.disconnect"}


def scope_with(limits: Limits) -> dict[str, Any]:
    """The scope of a request to an app with these limits."""
    app = Starlette()
    app.state.limits = limits
    return {"app": app}


async def serve(events: Events, receive: Any, send: Send) -> bool:
    """Whether the end of the stream was noticed."""
    closed = []

    async def close() -> None:
        closed.append(True)

    with suppress(ZeroDivisionError):
        await EventStream(events, close, OPENAI)(scope_with(Limits()), receive, send)
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

        await response(scope_with(Limits()), leave, send)  # type: ignore[arg-type]
        log: list[str] = list(model.client.log)
        return log

    assert asyncio.run(run()) == ["request ended", "model released"]


class FastClock(asyncio.SelectorEventLoop):
    """A loop whose time passes at once whenever nothing is left to do but to wait."""

    def __init__(self) -> None:
        super().__init__()
        self.passed = 0.0
        select = self._selector.select  # type: ignore[attr-defined]

        def skip(timeout: float | None = None) -> Any:
            self.passed += timeout or 0.0
            return select(0)

        self._selector.select = skip  # type: ignore[attr-defined]

    def time(self) -> float:
        return self.passed


async def seldom() -> Events:
    """Events after 4, 35 and 5 seconds of silence, and the end 12 seconds later."""
    for number, seconds in enumerate((4, 35, 5)):
        await asyncio.sleep(seconds)
        yield {"type": "number", "number": number}
    await asyncio.sleep(12)


@pytest.mark.parametrize("dialect", [OPENAI, ResponsesDialect(dict), ANTHROPIC, OLLAMA])
def test_a_stream_says_something_every_ten_seconds_where_its_dialect_can(dialect: Dialect) -> None:
    loop = FastClock()
    sent: list[tuple[int, bytes]] = []

    async def send(message: dict[str, Any]) -> None:
        if message.get("body"):
            sent.append((round(loop.time()), message["body"]))

    async def close() -> None:
        return None

    scope = scope_with(Limits(silent_seconds=10))
    loop.run_until_complete(EventStream(seldom(), close, dialect)(scope, never, send))  # type: ignore[arg-type]
    loop.close()
    comment = dialect.comment("still at it")
    assert [when for when, body in sent if body == comment] == ([] if dialect is OLLAMA else [14, 24, 34, 54])
    assert [when for when, body in sent if b"number" in body] == [4, 39, 44]


class SlowWorker(Worker):
    """A client that decodes a call in Python's notation, a character every three seconds, and never ends it."""

    async def generate(self, *arguments: Any) -> AsyncGenerator[Progress | Tokens, None]:  # type: ignore[override]
        yield Progress(1, 5, 0, 5)
        for character in "<|tool_call_start|>[write(content='" + "x" * 99:
            await asyncio.sleep(3)
            yield Tokens(1, (ord(character),))


class Characters:
    """A stream of text whose tokens are characters."""

    stopped = None

    def push(self, token: int) -> str:
        return chr(token)


def test_a_stream_is_never_silent_for_longer_while_a_call_is_decoded_that_cannot_be_told_yet() -> None:
    loop = FastClock()
    model: Any = Model()
    model.client, model.stream = SlowWorker(), lambda *arguments, **options: Characters()
    spoken: list[float] = []

    async def send(message: dict[str, Any]) -> None:
        spoken.append(loop.time())

    async def leave() -> dict[str, Any]:
        await asyncio.sleep(300)
        return {"type": "http.disconnect"}

    async def run() -> None:
        asked = read_completion({"model": "fake", "prompt": "x", "stream": True})
        reader = Reader(format_of("<|tool_call_start|>"), {"write": {}}, Part.SAID)
        job = Job(0, (1,), 200, (), (), Sampling(), reader=reader)
        async with AsyncExitStack() as stack:
            response = await respond(asked, model, [job], ChatShape("fake", model, False, False, ""), stack)
            await response(scope_with(Limits(silent_seconds=10)), leave, send)  # type: ignore[arg-type]

    loop.run_until_complete(run())
    loop.close()
    assert spoken[-1] > 280
    assert max(after - before for before, after in pairwise(spoken)) <= 10


def test_nobody_is_told_anything_while_an_event_is_on_its_way() -> None:
    """The client does not read, so the event waits; a comment must not get behind the end of the stream."""
    loop = FastClock()
    sent: list[bytes] = []

    async def send(message: dict[str, Any]) -> None:
        if b"number" in message.get("body", b""):
            await asyncio.sleep(100)
        sent.append(message.get("body", b""))

    async def close() -> None:
        return None

    scope = scope_with(Limits(silent_seconds=10))
    loop.run_until_complete(EventStream(two_events(None), close, OPENAI)(scope, never, send))  # type: ignore[arg-type]
    loop.close()
    assert OPENAI.comment("still at it") not in sent
    assert sent[-1] == b""
