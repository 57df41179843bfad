"""The page at `/`, what it asks of the machine, and who may move memory by it."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from engine.front.page_routes import PAGE_FILES
from tests.server.running_front import RunningFront
from tests.server.test_device_models import ON_DEVICE, ask

OwnFront = Callable[..., RunningFront]
TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
MORE_KV = {"model": "fake", "kv_tokens": 2048}


def resize(front: RunningFront, body: object = MORE_KV, **headers: str) -> httpx.Response:
    """Ask for a resize as the page does."""
    return httpx.post(f"{front.url}/machine/resize", json=body, headers=headers)


@pytest.mark.parametrize("path", PAGE_FILES)
def test_every_file_is_served_with_its_type_and_lets_no_stranger_in(front: RunningFront, path: str) -> None:
    answer = httpx.get(front.url + path)
    assert answer.status_code == 200
    kind = TYPES[path.rpartition(".")[2] if path != "/" else "html"]
    assert answer.headers["content-type"].partition(";")[0] == kind
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["x-frame-options"] == "DENY"
    policy = dict(part.strip().partition(" ")[::2] for part in answer.headers["content-security-policy"].split(";"))
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["connect-src"] == policy["style-src"] == "'self'"
    assert policy["frame-ancestors"] == policy["form-action"] == policy["base-uri"] == "'none'"
    assert policy["require-trusted-types-for"] == "'script'"


def test_the_page_holds_no_script_of_its_own_and_names_no_other_server(front: RunningFront) -> None:
    page = httpx.get(front.url + "/").text
    assert re.findall(r"<script[^>]*>([^<]*)</script>", page) == [""]
    assert not re.search(r"\son\w+=|\sstyle=|<style", page)
    for path in PAGE_FILES:
        text = httpx.get(front.url + path).text.replace("http://www.w3.org/", "")
        assert not re.search(r"https?:|[\"'(]//|@import|innerHTML|insertAdjacentHTML|\beval\b", text), path


def test_what_the_page_names_is_there(front: RunningFront) -> None:
    page = httpx.get(front.url + "/").text
    named = set(re.findall(r'(?:href|src)="([^"]+)"', page))
    for path in PAGE_FILES:
        if path.endswith(".js"):
            named |= {f"/page/{name}" for name in re.findall(r'from "\./([^"]+)"', httpx.get(front.url + path).text)}
    assert named == PAGE_FILES.keys() - {"/"}


def test_no_other_file_is_served(front: RunningFront) -> None:
    for path in ("/page/", "/page", "/page/index.html", "/page/../app.py", "/page/%2e%2e/app.py", "/page_routes.py"):
        assert httpx.get(front.url + path).status_code == 404, path
    assert httpx.post(front.url + "/").status_code == 405


def test_the_page_is_not_served_under_a_strange_name(front: RunningFront) -> None:
    assert httpx.get(front.url + "/", headers={"Host": "evil.example"}).status_code == 403


def test_the_machine_of_a_cpu_has_no_experts(fresh: RunningFront) -> None:
    assert httpx.get(f"{fresh.url}/machine").json() == {"models": []}
    fresh.control("load", model="fake", kv_tokens=1024)
    ask(fresh)
    answer = httpx.get(f"{fresh.url}/machine")
    assert answer.headers["cache-control"] == "no-store"
    (model,) = answer.json()["models"]
    assert (model["name"], model["device"], model["kv_tokens"], model["context_limit"]) == ("fake", "cpu", 1024, 4096)
    assert model["expert_slots"] is model["work"] is None
    assert "hit_rate" not in model["counters"]
    assert model["counters"]["generated_tokens"] == 12
    # 12 steps read 1000 bytes of dense weights and 300 of experts each
    assert model["counters"]["read_bytes"] == 12 * 1300


def test_the_machine_of_a_device_tells_hits_misses_and_both_branches(fresh: RunningFront) -> None:
    fresh.control("load", **ON_DEVICE, experts="50%", kv_tokens=1600)
    ask(fresh, max_tokens=11)
    (model,) = httpx.get(f"{fresh.url}/machine").json()["models"]
    assert (model["expert_slots"], model["experts"]) == (32, 0.5)
    counts = model["work"]["counts"]
    assert counts["hits"] == counts["misses"] == counts["fills"] + counts["cpu_experts"]
    assert counts["link_bytes"] > 0
    assert counts["link_seconds"] > 0
    assert model["work"]["clock"] == "rtx4090-server"


def test_memory_is_moved_by_the_page(fresh: RunningFront) -> None:
    fresh.control("load", **ON_DEVICE, experts="50%", kv_tokens=1600)
    answer = resize(fresh, {"model": "fake", "kv_tokens": 800, "experts": "25%"}, origin=fresh.url)
    assert answer.status_code == 200, answer.text
    after = answer.json()["after"]
    assert (after["kv_tokens"], after["expert_slots"]) == (800, 16)
    assert answer.headers["access-control-allow-origin"] == fresh.url


@pytest.mark.parametrize(
    ("body", "status", "kind", "words"),
    [
        ({"model": "fake", "kv_tokens": 1 << 20}, 507, "NoRoomError", "Give --kv 4848 or less."),
        ({"model": "fake", "experts": "1"}, 507, "DoesNotFitError", "Give --experts 2 or more"),
        ({"model": "other", "experts": "50%"}, 404, "NotFoundError", "not loaded"),
        ({"model": "fake", "device": "cpu"}, 400, "UsageError", "no such parameter"),
        ({"model": "fake"}, 400, "UsageError", "nothing to resize"),
        ([], 400, "UsageError", "not a JSON object"),
    ],
)
def test_what_cannot_be_moved_is_a_sentence(
    fresh: RunningFront,
    body: Any,
    status: int,
    kind: str,
    words: str,
) -> None:
    fresh.control("load", **ON_DEVICE, experts="50%", kv_tokens=1600)
    answer = resize(fresh, body)
    assert answer.status_code == status
    error = answer.json()["error"]
    assert error["type"] == kind
    assert words in f"{error['message']} {error['remedy']}"


@pytest.mark.parametrize(
    "kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "text/json", None]
)
def test_what_a_form_can_send_moves_nothing(fresh: RunningFront, kind: str | None) -> None:
    fresh.control("load", model="fake", kv_tokens=1024)
    answer = httpx.post(
        f"{fresh.url}/machine/resize",
        content=b'{"model": "fake", "kv_tokens": 2048}',
        headers={} if kind is None else {"Content-Type": kind},
    )
    assert answer.status_code == 415
    assert answer.json()["error"]["remedy"] == "Send Content-Type: application/json."
    assert fresh.control("ps")["models"][0]["kv_tokens"] == 1024
    assert resize(fresh).status_code == 200, "the control: the same body as JSON does"
    assert fresh.control("ps")["models"][0]["kv_tokens"] == 2048


@pytest.mark.parametrize("headers", [{"Origin": "https://evil.example"}, {"Origin": "null"}, {"Host": "evil.example"}])
def test_other_pages_move_nothing_and_see_nothing(fresh: RunningFront, headers: dict[str, str]) -> None:
    fresh.control("load", model="fake", kv_tokens=1024)
    assert resize(fresh, **headers).status_code == 403
    assert httpx.get(f"{fresh.url}/machine", headers=headers).status_code == 403
    assert httpx.options(f"{fresh.url}/machine/resize", headers=headers).status_code == 403 or "Origin" not in headers
    assert fresh.control("ps")["models"][0]["kv_tokens"] == 1024


def test_with_a_key_only_the_files_are_open(own_front: OwnFront) -> None:
    front = own_front(api_key="secret")
    front.control("load", model="fake", kv_tokens=1024)
    for path in PAGE_FILES:
        assert httpx.get(front.url + path).status_code == 200
    for path in ("/machine", "/v1/models", "/page/other.js", "/%2f", "//"):
        assert httpx.get(front.url + path).status_code == 401, path
    assert resize(front).status_code == 401
    assert resize(front, Authorization="Bearer wrong").status_code == 401
    assert front.control("ps")["models"][0]["kv_tokens"] == 1024
    assert resize(front, Authorization="Bearer secret").status_code == 200
    assert httpx.get(f"{front.url}/machine", headers={"Authorization": "Bearer secret"}).json()["models"]


def test_the_private_socket_has_control_and_no_page(front: RunningFront) -> None:
    with front.private as client:
        assert client.get("/").status_code == 404
        assert client.get("/machine").status_code == 404
