"""What bad requests get: a status, a sentence, the name of the field, and nothing else broken."""

from __future__ import annotations

import gzip
import json
import re
from typing import Any

import httpx
import pytest

from engine.front.wire.limits import Limits
from tests.server.running_front import RunningFront

GOOD: dict[str, Any] = {"model": "fake", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}
GOOD_TEXT: dict[str, Any] = {"model": "fake", "prompt": "hi", "max_tokens": 2}


def post(front: RunningFront, body: Any, path: str = "/v1/chat/completions") -> httpx.Response:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return httpx.post(front.url + path, content=content, timeout=30)


BAD_CHAT = [
    ("temperature", -1),
    ("temperature", "hot"),
    ("temperature", True),
    ("temperature", 10**400),
    ("presence_penalty", -(10**400)),
    ("top_p", 1.5),
    ("min_p", -0.1),
    ("top_k", 1.5),
    ("n", 0),
    ("n", 17),
    ("max_tokens", 0),
    ("max_completion_tokens", -5),
    ("seed", "abc"),
    ("seed", 2**70),
    ("stop", ["ok", 7]),
    ("stop", [""]),
    ("stop", ["x"] * 17),
    ("logit_bias", {"abc": 1}),
    ("logit_bias", {"5": 101}),
    ("logit_bias", [1]),
    ("frequency_penalty", 3),
    ("repetition_penalty", 0),
    ("logprobs", 3),
    ("top_logprobs", 5),
    ("stream", "yes"),
    ("stream_options", {"include_usage": True}),
    ("chat_template_kwargs", [1]),
    ("chat_template_kwargs.tools", {"tools": 5}),
    ("chat_template_kwargs.messages", {"messages": []}),
    ("messages", []),
    ("messages", "hi"),
    ("messages[0]", ["hi"]),
    ("messages[0].role", [{"role": "wizard", "content": "hi"}]),
    ("messages[0].content", [{"role": "user"}]),
    ("tools", [{"type": "function", "function": {"name": "f"}}]),  # which this model's template says nothing of
    ("tools", "f"),
    ("tools[0]", ["f"]),
    ("tools[0].type", [{"type": "web_search", "web_search": {"name": "f"}}]),
    ("tools[0].function", [{"type": "function"}]),
    ("tools[0].function.name", [{"type": "function", "function": {"name": "two words"}}]),
    ("tools[0].function.parameters", [{"type": "function", "function": {"name": "f", "parameters": []}}]),
    ("tools", [{"type": "function", "function": {"name": "f"}}] * 2),
    ("tool_choice", "perhaps"),
    ("tool_choice", "required"),
    ("tool_choice.function", {"type": "function"}),
    ("tool_choice", {"type": "function", "function": {"name": "f"}}),
    ("reasoning_effort", "a lot"),
    ("reasoning_format", "deepseek"),
    ("response_format.type", {"type": "xml"}),
    ("no_such_parameter", 1),
    ("model", ""),
    ("model", 5),
]


@pytest.mark.parametrize(("field", "value"), BAD_CHAT)
def test_a_bad_field_is_named(front: RunningFront, field: str, value: Any) -> None:
    response = post(front, {**GOOD, re.split(r"[.[]", field)[0]: value})
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["param"] == field
    assert error["type"] == "invalid_request_error"
    assert field in error["message"]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("prompt", None),
        ("prompt", []),
        ("prompt", [1, "a"]),
        ("prompt", [-1]),
        ("prompt", ["x"] * 2049),
        ("logprobs", 50),
        ("best_of", 3),
    ],
)
def test_a_bad_field_of_a_completion_is_named(front: RunningFront, field: str, value: Any) -> None:
    response = post(front, {**GOOD_TEXT, field: value}, "/v1/completions")
    assert response.status_code == 400
    assert response.json()["error"]["param"] == field


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", "x" * 100_000),
        ("n", ["x"] * 100_000),
        ("stream", {"x" * 100_000: 1}),
        ("seed", 10**4000),
        ("logit_bias", {"x" * 100_000: 1}),
        ("messages", [{"role": "x" * 100_000}]),
        ("stream_options", {"x" * 100_000: 1}),
        ("model", "x" * 100_000),
        ("x" * 100_000, 1),
    ],
)
def test_an_error_does_not_repeat_megabytes(front: RunningFront, field: str, value: Any) -> None:
    response = post(front, {**GOOD, field: value})
    assert response.status_code in (400, 404)
    assert len(response.content) < 1000


def test_a_prompt_of_more_ids_than_prompts_are_allowed_is_one_prompt(front: RunningFront) -> None:
    assert post(front, {**GOOD_TEXT, "prompt": [65] * 2049}, "/v1/completions").status_code == 200


def test_null_is_absent(front: RunningFront) -> None:
    nulls = dict.fromkeys(["temperature", "stop", "n", "stream", "tools", "logit_bias", "top_p", "seed", "user"])
    assert post(front, {**nulls, **GOOD}).status_code == 200


def test_hints_to_hosted_services_are_let_through(front: RunningFront) -> None:
    assert post(front, {**GOOD, "user": "me", "metadata": {"a": "b"}, "store": False}).status_code == 200


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"nonsense", b'{"model": NaN}', b"\xff\xfe", b"[" * 100_000, b'"text"']
)
def test_a_body_that_is_no_object_is_refused(front: RunningFront, body: bytes) -> None:
    response = post(front, body)
    assert response.status_code == 400
    assert "body" in response.json()["error"]["message"]


DIGITS = "9" * 5000


@pytest.mark.parametrize(
    ("members", "place"),
    [
        (f'"seed": {DIGITS}', "seed"),
        (f'"seed": -{DIGITS}', "seed"),
        (f'"user": {{"a.b": [0, [{DIGITS}]]}}', "user.a.b[1][0]"),
        (f'"user": "{DIGITS}", "metadata": [{{"deep": 1e999}}]', "metadata[0].deep"),
        ('"temperature": -1e400', "temperature"),
    ],
)
def test_a_number_that_is_too_large_is_named(front: RunningFront, members: str, place: str) -> None:
    response = post(front, f'{{"model": "fake", {members}}}'.encode())
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["param"] == place
    assert "limit" not in error["message"]  # Python's sentence names a function of its own to raise one
    assert len(response.content) < 500


def test_a_number_that_nobody_keeps_is_too_large_all_the_same(front: RunningFront) -> None:
    response = post(front, f'{{"seed": {DIGITS}, "seed": 1}}'.encode())
    assert (response.status_code, response.json()["error"]["param"]) == (400, None)
    assert post(front, DIGITS.encode()).status_code == 400


def test_a_body_beyond_the_bound_is_refused(front: RunningFront) -> None:
    most = Limits().body_bytes
    response = post(front, b" " * (most + 1))
    assert response.status_code == 413
    assert str(most) in response.json()["error"]["message"]


def test_an_unknown_model_is_404_with_a_suggestion(front: RunningFront) -> None:
    response = post(front, {**GOOD, "model": "fakke"})
    assert response.status_code == 404
    error = response.json()["error"]
    assert error["code"] == "model_not_found"
    assert "fakke" in error["message"]
    assert "Did you mean fake?" in error["message"]
    assert httpx.get(f"{front.url}/v1/models/nope").status_code == 404
    for strange in ("someone/model", "../fake", "\ud83d", "x" * 500):
        assert post(front, {**GOOD, "model": strange}).status_code == 404


def test_half_a_character_is_replaced_and_harms_nothing(front: RunningFront) -> None:
    body = {**GOOD_TEXT, "prompt": "half \ud83d of \U0001f600", "echo": True}
    answer = post(front, body, "/v1/completions").json()
    assert answer["choices"][0]["text"].startswith("half \ufffd of \U0001f600")
    utf16 = json.dumps(body).encode("utf-16")
    answer = post(front, utf16, "/v1/completions").json()
    assert answer["choices"][0]["text"].startswith("half \ufffd of \U0001f600")
    raw = json.dumps(body, ensure_ascii=False).encode("utf-8", "surrogatepass")
    assert post(front, raw, "/v1/completions").status_code == 400  # those bytes are no text


@pytest.mark.parametrize("streamed", [False, True])
def test_an_overlong_prompt_is_400_with_the_counts_before_any_header(front: RunningFront, streamed: bool) -> None:
    response = post(front, {**GOOD, "messages": [{"role": "user", "content": "x" * 5000}], "stream": streamed})
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["code"] == "context_length_exceeded"
    assert "4096" in error["message"]
    assert "5019" in error["message"]


def test_a_machine_without_room_is_503_and_no_fault_of_the_prompt(front: RunningFront) -> None:
    response = post(front, {**GOOD, "model": "crowded"})
    assert response.status_code == 503
    assert response.json()["error"]["code"] == "insufficient_memory"


def test_a_prompt_that_fits_is_cut_at_the_context(front: RunningFront) -> None:
    front.control("load", model="other", context=200)
    body = {"model": "other", "prompt": [65] * 194, "max_tokens": 100, "ignore_eos": True}
    answer = post(front, body, "/v1/completions").json()
    assert answer["usage"]["completion_tokens"] == 6
    assert answer["choices"][0]["finish_reason"] == "length"


def test_ids_beyond_the_vocabulary_are_refused_by_the_worker(front: RunningFront) -> None:
    response = post(front, {**GOOD_TEXT, "prompt": [1, 300], "stream": True}, "/v1/completions")
    assert response.status_code == 400
    assert "Token 300" in response.json()["error"]["message"]


def test_a_prompt_of_nothing_is_refused(front: RunningFront) -> None:
    response = post(front, {**GOOD_TEXT, "prompt": ""}, "/v1/completions")
    assert response.status_code == 400
    assert "empty" in response.json()["error"]["message"]


def test_a_model_that_cannot_be_loaded_says_why_each_time(front: RunningFront) -> None:
    for _ in range(5):  # a refusal to load is no crash, so it is never held back
        response = post(front, {**GOOD, "model": "broken"})
        assert response.status_code == 500
        assert "The bank is short. Convert the model again." in response.json()["error"]["message"]


def test_a_worker_that_dies_while_loading_is_a_sentence(front: RunningFront) -> None:
    response = post(front, {**GOOD, "model": "dying"})
    assert response.status_code == 500
    assert "ended with code 7" in response.json()["error"]["message"]


def test_one_poisoned_request_fails_alone(front: RunningFront) -> None:
    response = post(front, {**GOOD_TEXT, "prompt": [65, 7, 66]}, "/v1/completions")
    assert response.status_code == 500
    assert "not a number" in response.json()["error"]["message"]
    assert post(front, GOOD).status_code == 200


def test_unknown_routes_and_methods(front: RunningFront) -> None:
    missing = httpx.get(f"{front.url}/v1/nothing")
    assert missing.status_code == 404
    assert missing.json()["error"]["message"] == "Not Found: GET /v1/nothing"
    assert len(httpx.get(f"{front.url}/{'x' * 10_000}").content) < 1000
    path = f"/v1/responses/resp_{'0' * 48}/input_items"
    assert httpx.get(front.url + path).json()["error"]["message"] == f"Not Found: GET {path}", "to its end"
    assert httpx.get(f"{front.url}/v1/chat/completions").status_code == 405
    assert httpx.post(f"{front.url}/control/ps").status_code == 404, "control must not be on the TCP port"
    assert httpx.post(f"{front.url}/control/shutdown", json={}).status_code == 404


@pytest.mark.parametrize(
    ("path", "meant"),
    [
        ("/chat/completions", "/v1/chat/completions"),
        ("/api/v1/chat/completions", "/v1/chat/completions"),
        ("/v1/v1/messages", "/v1/messages"),
        ("/v1/api/chat", "/api/chat"),
        ("/completions/", "/v1/chat/completions or /v1/completions"),
    ],
)
def test_a_base_url_with_a_part_too_many_or_too_few_is_seen(front: RunningFront, path: str, meant: str) -> None:
    assert f"{path}. Did you mean {meant}?" in httpx.post(f"{front.url}{path}", json={}).text


def test_what_is_not_there_is_told_in_the_words_of_each_interface(front: RunningFront) -> None:
    assert httpx.post(f"{front.url}/api/embed", json={}).json() == {"error": "Not Found: POST /api/embed"}
    told = httpx.post(f"{front.url}/v1/messages/batches", json={}).json()
    error = {"type": "not_found_error", "message": "Not Found: POST /v1/messages/batches"}
    assert told == {"type": "error", "error": error}


def test_a_compressed_body_is_415(front: RunningFront) -> None:
    headers = {"Content-Encoding": "gzip"}
    content = gzip.compress(json.dumps(GOOD).encode())
    response = httpx.post(f"{front.url}/v1/chat/completions", content=content, headers=headers)
    assert response.status_code == 415
    assert "gzip" in response.json()["error"]["message"]
