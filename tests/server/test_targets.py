"""Requests that name the whole address, as clients send them that think that they talk to a proxy."""

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
