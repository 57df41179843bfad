"""Errors of the front become our own types, whatever shape they come in."""

import json

import pytest

from engine.base import errors
from freetoken_cli.serving import base_url, curl_line
from freetoken_cli.unix_http import error_of


def _body(**members: object) -> bytes:
    return json.dumps({"error": members}).encode()


@pytest.mark.parametrize(
    ("content", "status", "kind", "message", "remedy"),
    [
        (_body(type="BusyError", message="Busy.", remedy="Wait."), 409, errors.BusyError, "Busy.", "Wait."),
        (
            _body(type="invalid_request_error", code="context_length_exceeded", message="Long. Cut.", remedy="Cut."),
            400,
            errors.ContextFullError,
            "Long.",
            "Cut.",
        ),
        (_body(type="server_error", code="insufficient_memory", message="Full."), 503, errors.NoRoomError, "Full.", ""),
        (_body(type="invalid_request_error", message="Bad."), 400, errors.UsageError, "Bad.", ""),
        (_body(type="invalid_request_error", message="Huge."), 413, errors.DoesNotFitError, "Huge.", ""),
        (_body(type="server_error", message="Broken."), 500, errors.FreetokenError, "Broken.", ""),
        (_body(type="Exception", message="Odd."), 404, errors.NotFoundError, "Odd.", ""),
    ],
)
def test_error_answers(
    content: bytes, status: int, kind: type[errors.FreetokenError], message: str, remedy: str
) -> None:
    error = error_of(content, status)
    assert (type(error), error.message, error.remedy) == (kind, message, remedy)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"error": "text"}', b'{"error": {}}', b"<html>"])
def test_an_answer_that_is_no_error_object(content: bytes) -> None:
    assert "status 502" in error_of(content, 502).message


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:80/v1"),
        ("0.0.0.0", "http://127.0.0.1:80/v1"),
        ("::", "http://[::1]:80/v1"),
        ("[::1]", "http://[::1]:80/v1"),
        ("box.local", "http://box.local:80/v1"),
    ],
)
def test_base_urls(host: str, url: str) -> None:
    assert base_url(host, 80) == url


def test_the_curl_line_carries_the_key() -> None:
    assert "Authorization" not in curl_line("http://x/v1", "m", "")
    assert "-H 'Authorization: Bearer 'secret -H" in curl_line("http://x/v1", "m", "secret")
