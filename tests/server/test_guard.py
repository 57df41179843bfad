"""Who may use the TCP port."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.responses import PlainTextResponse

from engine.base.errors import UsageError
from engine.front.config import FrontConfig
from engine.front.guard import Guard

PATHS: dict[str, Any] = {"socket": Path("s"), "lock": Path("l"), "store": Path("d")}


def ask(
    config: FrontConfig, headers: Mapping[str, str | bytes], method: str = "GET", path: str = "/v1/models"
) -> httpx.Response:
    async def run() -> httpx.Response:
        transport = httpx.ASGITransport(Guard(PlainTextResponse("inside"), config))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return await client.request(method, path, headers=dict(headers))

    return asyncio.run(run())


LOCAL = FrontConfig(**PATHS, port=8642, allowed_hosts=("Box.lan:443", "[::2"), allowed_origins=("https://ui.example",))
PUBLIC = FrontConfig(**PATHS, host="0.0.0.0", port=8642, api_key="secret")


@pytest.mark.parametrize(
    "host", ["localhost", "localhost:8642", "127.0.0.1:8642", "127.8.8.8", "[::1]:8642", "app.localhost", "box.lan:80"]
)
def test_our_own_names_are_let_in(host: str) -> None:
    assert ask(LOCAL, {"host": host}).text == "inside"


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:8642",
        "192.168.1.5",
        "localhost.evil.example",
        "0.0.0.0",
        "",
        "[::2]",
        "127.0.0.1:80@evil.example",
        "localhost:evil",
        "[::1",
        "localhost/x",
    ],
)
def test_a_name_that_was_pointed_here_is_not(host: str) -> None:
    response = ask(LOCAL, {"host": host})
    assert response.status_code == 403
    assert response.json()["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    "origin", ["http://localhost:3000", "http://127.0.0.1", "http://[::1]:80", "https://ui.example"]
)
def test_pages_of_this_machine_and_allowed_ones_may_read_answers(origin: str) -> None:
    response = ask(LOCAL, {"host": "localhost", "origin": origin})
    assert response.text == "inside"
    assert response.headers["access-control-allow-origin"] == origin
    assert response.headers["access-control-expose-headers"] == "X-Freetoken-Ignored"
    assert response.headers["vary"] == "Origin"


@pytest.mark.parametrize(
    "origin",
    [
        "https://evil.example",
        "null",
        "",
        "http://localhost.evil.example",
        "file://",
        "http://[",
        "http://[bad]",
        "http://evil.example@localhost",
        "http://localhost/x",
        "localhost",
    ],
)
def test_other_pages_may_not_even_send(origin: str) -> None:
    response = ask(LOCAL, {"host": "localhost", "origin": origin})
    assert response.status_code == 403
    assert "access-control-allow-origin" not in response.headers


def test_a_preflight_is_answered_for_allowed_pages_without_a_key() -> None:
    config = FrontConfig(**PATHS, port=1, api_key="secret")
    response = ask(config, {"host": "localhost", "origin": "http://localhost:3000"}, "OPTIONS")
    assert response.status_code == 204
    allowed = set(response.headers["access-control-allow-headers"].lower().split(", "))
    assert allowed >= {"authorization", "x-api-key", "anthropic-version", "x-stainless-os", "x-stainless-helper"}
    assert "*" not in allowed
    assert set(response.headers["access-control-allow-methods"].split(", ")) == {"GET", "POST", "DELETE", "OPTIONS"}
    assert ask(config, {"host": "localhost", "origin": "https://evil.example"}, "OPTIONS").status_code == 403


@pytest.mark.parametrize(
    "given", [b"", b"Bearer", b"Bearer wrong", b"Basic secret", b"secret", b"Bearer secret2", b"Bearer \xe9"]
)
def test_a_wrong_key_is_401(given: bytes) -> None:
    response = ask(PUBLIC, {"host": "whatever.example", "authorization": given})
    assert response.status_code == 401
    assert response.headers["www-authenticate"] == "Bearer"


def test_the_right_key_is_let_in_under_any_name() -> None:
    for scheme in ("Bearer", "bearer"):
        response = ask(PUBLIC, {"host": "whatever.example", "authorization": f"{scheme} secret"})
        assert response.text == "inside"
    assert ask(PUBLIC, {"host": "whatever.example", "x-api-key": "secret"}).text == "inside"
    assert ask(PUBLIC, {"host": "whatever.example"}, path="/health").text == "inside"


def test_a_wrong_key_of_anthropics_clients_is_401() -> None:
    for given in (b"", b"wrong", b"Bearer secret"):
        assert ask(PUBLIC, {"host": "whatever.example", "x-api-key": given}).status_code == 401


def test_refusals_are_in_the_words_of_each_interface() -> None:
    chat, message = (ask(PUBLIC, {"host": "x"}, path=path).json() for path in ("/api/chat", "/v1/messages"))
    assert chat["error"].startswith("The key is missing")
    assert (message["type"], message["error"]["type"]) == ("error", "authentication_error")


def test_on_a_public_address_a_page_of_the_same_host_may_ask() -> None:
    headers = {"host": "box.example:8642", "authorization": "Bearer secret"}
    assert ask(PUBLIC, {**headers, "origin": "http://box.example:8642"}).text == "inside"
    assert ask(PUBLIC, {**headers, "origin": "http://box.example:9999"}).status_code == 403


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "box.lan"])
def test_a_public_address_without_a_key_is_refused(host: str) -> None:
    with pytest.raises(UsageError, match="there is no key"):
        FrontConfig(**PATHS, host=host, port=1)
    FrontConfig(**PATHS, host=host, port=None)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"socket": "s"}', '{"socket": "s", "lock": "l", "store": "d", "colour": 1}']
)
def test_a_configuration_that_is_none_is_a_usage_error(text: str) -> None:
    with pytest.raises(UsageError, match="configuration"):
        FrontConfig.from_json(text)


def test_null_durations_are_for_ever_and_absent_ones_depend_on_the_port() -> None:
    base = '{"socket": "s", "lock": "l", "store": "d", "host": null, "api_key": null, '
    config = FrontConfig.from_json(base + '"keep_alive": null, "port": null}')
    assert config.keep_alive == float("inf")
    assert config.idle_exit < float("inf")
    assert FrontConfig.from_json(base + '"port": 5}').idle_exit == float("inf")
