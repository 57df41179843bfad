"""The description of the public routes, and requests made up from it: none ends in a 500, none hangs."""

from __future__ import annotations

import copy
import socket
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from random import Random
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from starlette.routing import Route

from engine.front.app import _health, _interfaces
from engine.front.openapi import OPERATIONS, document
from engine.front.page_routes import page_routes
from tests.server.running_front import RunningFront, start_front

ANSWER_SECONDS = 20.0


def fails_only_for_room(context: Any, response: Any, case: Any) -> bool | None:
    """507 is no failure of the server's, and described where it may be answered."""
    return None if response.status_code == 507 else not_a_server_error(context, response, case)


CHECKS = [fails_only_for_room, status_code_conformance, content_type_conformance, response_schema_conformance]
# The fakes have no files that could be shown, and a resize must leave the others their room.
MODELS = {"/api/show": "nobody", "/machine/resize": "other"}
FEW = {"type": "integer", "minimum": 1, "maximum": 4}
# How each interface says how long an answer may be; the fuzzer's are short, so that it sees many.
LENGTHS = {
    "/v1/chat/completions": {"max_completion_tokens": FEW, "n": FEW},
    "/v1/completions": {"max_tokens": FEW, "n": FEW},
    "/v1/responses": {"max_output_tokens": FEW},
    "/v1/messages": {"max_tokens": FEW},
    "/api/chat": {"options": {"type": "object", "properties": {"num_predict": FEW}, "required": ["num_predict"]}},
    "/api/generate": {"options": {"type": "object", "properties": {"num_predict": FEW}, "required": ["num_predict"]}},
}


def routes() -> set[tuple[str, str]]:
    supervisor: Any = None
    found: list[Route] = [_health(), *_interfaces(supervisor), *page_routes(supervisor)]
    return {
        (method.lower(), route.path.replace(":path}", "}"))
        for route in found
        for method in route.methods or ()
        if method != "HEAD"
    }


def test_every_public_route_is_described_and_no_other() -> None:
    assert routes() == set(OPERATIONS)
    described = {(method, path) for path, methods in document()["paths"].items() for method in methods}
    assert described == set(OPERATIONS)


def test_it_is_served(front: RunningFront) -> None:
    assert httpx.get(f"{front.url}/openapi.json").json() == document()


def test_fields_are_described_as_they_are_read() -> None:
    body = document()["paths"]["/v1/chat/completions"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert body["required"] == ["model", "messages"]
    assert body["additionalProperties"] is False
    assert body["properties"]["temperature"] == {
        "anyOf": [{"type": "number", "minimum": 0, "maximum": 100}, {"type": "null"}]
    }
    assert all(body["properties"][name] for name in ("messages", "tools", "tool_choice", "stop", "logit_bias", "n"))


@contextmanager
def front_with(store: Path, **limits: float) -> Iterator[RunningFront]:
    with tempfile.TemporaryDirectory(prefix="ft-") as folder:
        running = start_front(store, Path(folder), limits=limits)
        yield running
        assert running.stop() == 0


@pytest.fixture(scope="module")
def hasty(store: Path) -> Iterator[RunningFront]:
    """A front that waits for nobody."""
    with front_with(store, head_seconds=0.5, body_seconds=0.5, linger_seconds=0.5, idle_seconds=1) as running:
        yield running


@pytest.fixture(scope="module")
def patient(store: Path) -> Iterator[RunningFront]:
    """A front that keeps a connection while the next request is made up, which may take long."""
    with front_with(store, idle_seconds=600) as running:
        running.control("load", model=MODELS["/machine/resize"])
        yield running


@pytest.fixture(scope="module")
def described(patient: RunningFront) -> Any:
    """The description, about a model that answers at once, in few tokens."""
    narrowed = copy.deepcopy(document())
    for path, methods in narrowed["paths"].items():
        if "requestBody" not in methods.get("post", {}):
            continue
        schema = methods["post"]["requestBody"]["content"]["application/json"]["schema"]
        schema["properties"]["model"] = {"enum": [MODELS.get(path, "scripted")]}
        schema["properties"].update(LENGTHS.get(path, {}))
        schema["required"] = sorted({*schema["required"], "model", *LENGTHS.get(path, ())})
    made = schemathesis.openapi.from_dict(narrowed)
    made.config.update(base_url=patient.url)
    return made


@pytest.mark.long
@pytest.mark.parametrize("operation", OPERATIONS, ids=" ".join)
def test_no_request_that_can_be_made_up_is_a_500_or_hangs(
    described: schemathesis.BaseSchema, operation: tuple[str, str]
) -> None:
    method, path = operation
    told = document()["paths"][path][method]
    reads = "requestBody" in told or any(each["in"] == "query" for each in told.get("parameters", ()))
    modes = list(GenerationMode) if reads else [GenerationMode.POSITIVE]
    for mode in modes:  # what the description allows, and what it does not

        @given(case=described[path][method].as_strategy(generation_mode=mode))
        @settings(max_examples=25 if reads else 5, deadline=None, suppress_health_check=list(HealthCheck))
        def check(case: schemathesis.Case) -> None:
            case.call_and_validate(timeout=ANSWER_SECONDS, checks=CHECKS)

        check()


def scrawl(chance: Random) -> bytes:
    """Bytes that are no request, or one with something wrong in it."""
    sound = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 12\r\n\r\n" + b'{"model": 1}'
    match chance.randrange(4):
        case 0:
            return chance.randbytes(chance.randrange(1, 3000))
        case 1:
            place = chance.randrange(len(sound))
            return sound[:place] + chance.randbytes(chance.randrange(1, 9)) + sound[place:]
        case 2:
            place = chance.randrange(len(sound))
            return sound[:place] + sound[place + chance.randrange(1, 9) :]
        case _:
            lines = sound.split(b"\r\n")
            chance.shuffle(lines)
            return b"\r\n".join(lines)


def check_scrawls(front: RunningFront, chance: Random, count: int) -> None:
    clients = []
    for _ in range(count):
        client = socket.create_connection(("127.0.0.1", front.port), timeout=ANSWER_SECONDS)
        with suppress(ConnectionError):
            client.sendall(scrawl(chance))
        clients.append(client)
    deadline = time.monotonic() + ANSWER_SECONDS
    for client in clients:
        told = b""
        with closing(client), suppress(ConnectionError):
            while b" 200 OK" not in told and (part := client.recv(1 << 16)):
                told += part
        assert not told.startswith(b"HTTP/1.1 5"), told
        assert time.monotonic() < deadline
    assert httpx.get(f"{front.url}/health").status_code == 200


def test_bytes_that_are_no_request_are_refused_and_let_go_of(hasty: RunningFront) -> None:
    check_scrawls(hasty, Random(7), 60)


@pytest.mark.long
def test_many_bytes_that_are_no_request(hasty: RunningFront) -> None:
    for seed in range(20):
        check_scrawls(hasty, Random(100 + seed), 60)
