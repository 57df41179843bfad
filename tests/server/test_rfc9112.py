"""Requests of every form that RFC 9112 knows, from raw sockets: targets that are no path, methods that a path lacks,
bodies that are framed in unusual ways."""

from __future__ import annotations

import json
import socket
from contextlib import closing

import pytest

from tests.server.running_front import RunningFront


def answered(client: socket.socket, method: str, target: str, host: str = "localhost", body: bytes = b"") -> bytes:
    """The whole answer to a request on a connection that ends with it."""
    head = f"{method} {target} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
    with closing(client):
        client.sendall(head.encode() + body)
        parts = []
        while part := client.recv(1 << 16):
            parts.append(part)
    return b"".join(parts)


def connect(front: RunningFront) -> socket.socket:
    return socket.create_connection(("127.0.0.1", front.port), timeout=30)


def exchanged(front: RunningFront, *requests: bytes) -> list[tuple[int, dict[str, str], bytes]]:
    """Status, headers and body of the answers to `requests`, which are sent at once, and to a last one."""
    last = b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    answers = []
    with closing(connect(front)) as client:
        client.sendall(b"".join(requests) + last)
        with client.makefile("rb") as told:
            while line := told.readline():
                lines = [header.decode().split(":", 1) for header in iter(told.readline, b"\r\n")]
                head = {name.lower(): value.strip() for name, value in lines}
                bodiless = not answers and requests[0].startswith(b"HEAD")
                body = b"" if bodiless else told.read(int(head.get("content-length", 0)))
                answers.append((int(line.split()[1]), head, body))
    return answers


def request(method: str, target: str, *more: str, body: bytes = b"") -> bytes:
    return "\r\n".join([f"{method} {target} HTTP/1.1", "Host: localhost", *more, "", ""]).encode() + body


COMPLETION = b'{"model": "fake", "prompt": "x", "max_tokens": 2}'
IN_CHUNKS = b"%x\r\n%s\r\n0\r\n\r\n" % (len(COMPLETION), COMPLETION)
ITS_LENGTH = f"Content-Length: {len(COMPLETION)}"


@pytest.mark.parametrize(
    ("method", "target", "status", "methods"),
    [
        ("OPTIONS", "*", 204, "GET, HEAD, POST, DELETE, OPTIONS"),
        ("OPTIONS", "/v1/models", 204, "GET, HEAD, OPTIONS"),
        ("OPTIONS", "/v1/nothing", 404, None),
        ("GET", "*", 404, None),
        ("GET", "/v1/chat/completions", 405, "OPTIONS, POST"),
        ("PUT", "/v1/responses/x", 405, "DELETE, GET, HEAD, OPTIONS"),
        ("BREW", "/health", 405, "GET, HEAD, OPTIONS"),
        ("CONNECT", "localhost:80", 501, None),
        ("CONNECT", "elsewhere.example:443", 501, None),
    ],
)
def test_every_method_is_answered_and_what_a_path_has_is_told(
    front: RunningFront, method: str, target: str, status: int, methods: str | None
) -> None:
    (found, head, _), (after, _, _) = exchanged(front, request(method, target))
    assert (found, head.get("allow"), after) == (status, methods, 200)


@pytest.mark.parametrize("target", ["/health", "/v1/models", "/v1/models/fake", "/", "/metrics", "/v1/nothing"])
def test_head_is_get_without_its_body(front: RunningFront, target: str) -> None:
    (status, head, _), _ = exchanged(front, request("HEAD", target))
    (same, whole, body), _ = exchanged(front, request("GET", target))
    assert (status, head["content-type"]) == (same, whole["content-type"])
    assert abs(int(head["content-length"]) - len(body)) <= 1, "the method is in some"


@pytest.mark.parametrize(
    "sent",
    [
        request("POST", "/v1/completions", ITS_LENGTH, body=COMPLETION),
        request("POST", "/v1/completions", ITS_LENGTH, "Expect: 100-continue", body=COMPLETION),
        request("POST", "/v1/completions", "Transfer-Encoding: chunked", body=IN_CHUNKS),
        request(
            "POST", "/v1/completions", "Transfer-Encoding: chunked", "Trailer: X-Sum",
            body=IN_CHUNKS.replace(b"\r\n", b';a=b; c="d e"\r\n', 1)[:-2] + b"X-Sum: 1\r\n\r\n",
        ),
    ],
    ids=["length", "expect", "chunks", "extensions and trailers"],
)  # fmt: skip
def test_bodies_are_framed_in_every_way_and_requests_sent_ahead(front: RunningFront, sent: bytes) -> None:
    answers = exchanged(front, sent, sent)
    assert [status for status, _, _ in answers if status != 100] == [200, 200, 200]
    assert sum(b'"completion_tokens":2' in body for _, _, body in answers) == 2


def test_a_body_whose_end_is_told_twice_is_the_last_of_its_connection(front: RunningFront) -> None:
    """RFC 9112, 6.3: by its length what looks like a second request here is the body, by its chunks it is not."""
    both = ("Content-Length: 5", "Transfer-Encoding: chunked")
    answers = exchanged(front, request("POST", "/v1/completions", *both, body=IN_CHUNKS))
    ((status, head, body),) = answers
    assert (status, head["connection"]) == (200, "close")
    assert b'"completion_tokens":2' in body


@pytest.mark.parametrize(
    "framing",
    [
        ("Content-Length: 5", "Content-Length: 6"),
        ("Content-Length: -5",),
        ("Content-Length: ",),
        ("Transfer-Encoding: chunked", "Transfer-Encoding: chunked"),
        ("Transfer-Encoding: gzip, chunked",),
    ],
)
def test_a_body_without_an_end_that_is_known_is_400(front: RunningFront, framing: tuple[str, ...]) -> None:
    ((status, head, _),) = exchanged(front, request("POST", "/v1/completions", *framing))
    assert (status, head["connection"]) == (400, "close")


@pytest.mark.parametrize(
    ("target", "inside"),
    [
        ("http://127.0.0.1/health", b'"status":"ok"'),
        ("HTTP://localhost:8642/health?x=http://y/z", b'"status":"ok"'),
        ("http://localhost/v1/models/fak%65", b'"id":"fake"'),
        ("http://localhost", b"<!doctype html>"),
        ("http://localhost?x", b"<!doctype html>"),
    ],
)
def test_a_whole_address_is_understood(front: RunningFront, target: str, inside: bytes) -> None:
    answer = answered(connect(front), "GET", target)
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert inside in answer


def test_a_chat_is_answered_over_either_side(front: RunningFront) -> None:
    body = json.dumps({"model": "fake", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}).encode()
    private = socket.socket(socket.AF_UNIX)
    private.connect(front.config["socket"])
    for client in (connect(front), private):
        answer = answered(client, "POST", "http://localhost/v1/chat/completions", body=body)
        assert b'"completion_tokens":2' in answer


def test_the_host_of_the_address_counts_and_no_other(front: RunningFront) -> None:
    """RFC 9112, 3.2.2. So who points a name of his own at this machine gets in neither way."""
    evil = "http://evil.example/v1/models"
    assert answered(connect(front), "GET", evil).startswith(b"HTTP/1.1 403 ")
    assert answered(connect(front), "GET", "http://me@localhost/v1/models").startswith(b"HTTP/1.1 403 ")
    assert answered(connect(front), "GET", "http://localhost/v1/models", host="evil.example").startswith(
        b"HTTP/1.1 200 "
    )


@pytest.mark.parametrize(
    "target", ["ftp://localhost/health", "localhost/health", "//localhost/health", "/http://localhost/health"]
)
def test_what_is_no_address_of_ours_is_404(front: RunningFront, target: str) -> None:
    assert answered(connect(front), "GET", target).startswith(b"HTTP/1.1 404 ")
