"""What a client may leave undone, seen from raw sockets: half requests, unread answers, more than is wanted."""

from __future__ import annotations

import json
import socket
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from engine.front.wire.connection import notice_lost_peers
from engine.front.wire.limits import Limits
from tests.server.running_front import RunningFront, eventually, start_front

HASTY = {"head_seconds": 0.4, "body_seconds": 0.4, "unread_seconds": 0.6, "linger_seconds": 0.5, "connections": 12}
MOST = 1 << 20
KEY = "secret"
SAY: dict[str, Any] = {"model": "endless", "messages": [{"role": "user", "content": "go on"}]}
# How each interface is asked to stream 3000 tokens, which take six seconds here.
STREAMS: Mapping[str, dict[str, Any]] = {
    "/v1/chat/completions": {**SAY, "stream": True, "max_tokens": 3000},
    "/v1/completions": {"model": "endless", "prompt": "x", "stream": True, "max_tokens": 3000},
    "/v1/responses": {"model": "endless", "input": "go on", "stream": True, "max_output_tokens": 3000},
    "/v1/messages": {**SAY, "stream": True, "max_tokens": 3000},
    "/api/chat": {**SAY, "options": {"num_predict": 3000}},
    "/api/generate": {"model": "endless", "prompt": "x", "options": {"num_predict": 3000}},
}


@pytest.fixture(scope="module")
def hasty(store: Path) -> Iterator[RunningFront]:
    """A front that waits for nothing, with a key."""
    with tempfile.TemporaryDirectory(prefix="ft-") as folder:
        running = start_front(store, Path(folder), limits={**HASTY, "body_bytes": MOST}, api_key=KEY)
        yield running
        assert running.stop() == 0


def connect(front: RunningFront) -> socket.socket:
    return socket.create_connection(("127.0.0.1", front.port), timeout=10)


def head(path: str, length: int, *more: str, key: str = KEY, host: str = "localhost") -> bytes:
    lines = [f"POST {path} HTTP/1.1", f"Host: {host}", f"Authorization: Bearer {key}", f"Content-Length: {length}"]
    return "\r\n".join([*lines, *more, "", ""]).encode()


def everything(client: socket.socket) -> bytes:
    """What comes until the server closes; TimeoutError if it does not."""
    parts = []
    while part := client.recv(1 << 16):
        parts.append(part)
    return b"".join(parts)


def answer(client: socket.socket) -> tuple[int, dict[str, Any]]:
    """Status and JSON of an answer whose length is told."""
    data = b""
    while b"\r\n\r\n" not in data:
        data += client.recv(1 << 16)
    headers, _, body = data.partition(b"\r\n\r\n")
    (length,) = (int(line.split()[1]) for line in headers.lower().split(b"\r\n") if line.startswith(b"content-length"))
    while len(body) < length:
        body += client.recv(1 << 16)
    return int(headers.split()[1]), json.loads(body)


def test_a_connection_that_says_nothing_is_closed(hasty: RunningFront) -> None:
    with closing(connect(hasty)) as client:
        assert everything(client) == b""


@pytest.mark.parametrize("begun", [b"P", b"POST /v1/messages HTTP/1.1\r\nHost: localhost\r\nX-Long: a"])
def test_headers_that_do_not_end_are_408(hasty: RunningFront, begun: bytes) -> None:
    with closing(connect(hasty)) as client:
        client.sendall(begun)
        assert everything(client).startswith(b"HTTP/1.1 408 ")


def test_headers_that_trickle_are_408_too(hasty: RunningFront) -> None:
    with closing(connect(hasty)) as client, suppress(ConnectionError):
        for letter in b"GET /v1/models HTTP/1.1":
            client.send(bytes([letter]))
            time.sleep(0.05)
        raise AssertionError("it was let go on for more than a second")


def test_a_second_request_on_a_connection_has_as_long_as_the_first(hasty: RunningFront) -> None:
    with closing(connect(hasty)) as client:
        for _ in range(3):
            client.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert answer(client)[0] == 200
            time.sleep(0.2)
        client.sendall(b"GET /hea")
        assert everything(client).startswith(b"HTTP/1.1 408 ")


def test_a_body_that_does_not_end_is_408_in_the_interfaces_own_words(hasty: RunningFront) -> None:
    with ExitStack() as stack:
        clients = {
            path: stack.enter_context(closing(connect(hasty)))
            for path in (*STREAMS, "/v1/messages/count_tokens", "/api/show")
        }
        for path, client in clients.items():
            client.sendall(head(path, 100) + b'{"model": ')
        for path, client in clients.items():
            status, body = answer(client)
            assert status == 408, path
            assert "did not come within" in json.dumps(body)
            assert isinstance(body["error"], str if path.startswith("/api/") else dict)
            assert everything(client) == b"", "and it is not waited for after that"


def test_control_tells_late_and_long_bodies_by_their_status_too(hasty: RunningFront) -> None:
    for length, status in ((2, 408), (MOST + 1, 413)):
        with closing(over_the_private_socket(hasty)) as client:
            client.sendall(head("/control/stats", length))
            assert answer(client)[0] == status


def test_a_body_that_trickles_is_408(hasty: RunningFront) -> None:
    began = time.monotonic()
    with closing(connect(hasty)) as client:
        client.sendall(head("/v1/chat/completions", 1000, "Connection: close"))
        with suppress(ConnectionError):
            while time.monotonic() < began + 0.8:
                client.sendall(b" ")
                time.sleep(0.05)
        assert answer(client)[0] == 408
    assert hasty.control("ps")["models"] == [], "nothing was loaded for it"


def test_a_body_that_says_it_is_too_long_is_refused_unsent(hasty: RunningFront) -> None:
    with closing(connect(hasty)) as client:
        client.sendall(head("/v1/chat/completions", MOST + 1, "Expect: 100-continue"))
        assert answer(client)[0] == 413


REFUSALS: Mapping[str, tuple[int, Mapping[str, Any]]] = {
    "too long": (413, {}),
    "no key": (401, {"key": "wrong"}),
    "a stranger's page": (403, {"more": "Origin: https://evil.example"}),
    "a name that was pointed here": (403, {"host": "evil.example"}),
    "no such route": (404, {"path": "/v1/nothing"}),
}


@pytest.mark.parametrize("refusal", REFUSALS)
def test_who_sends_everything_first_sees_why_it_was_refused(hasty: RunningFront, refusal: str) -> None:
    status, how = REFUSALS[refusal]
    body = b" " * (8 * MOST)  # more than sockets buffer
    more = [how["more"]] if "more" in how else []
    request = head(
        how.get("path", "/v1/chat/completions"),
        len(body),
        *more,
        key=how.get("key", KEY),
        host=how.get("host", "localhost"),
    )
    with closing(connect(hasty)) as client:
        client.sendall(request + body)
        found, content = answer(client)
        assert (found, "error" in content) == (status, True)
        client.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert answer(client)[0] == 200, "the connection can still be used"


def test_a_body_in_chunks_that_is_too_long_is_refused_and_read(hasty: RunningFront) -> None:
    with closing(connect(hasty)) as client:
        client.sendall(
            f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {KEY}\r\n"
            "Transfer-Encoding: chunked\r\n\r\n".encode()
        )
        for _ in range(8):
            client.sendall(f"{MOST:x}\r\n".encode() + b" " * MOST + b"\r\n")
        client.sendall(b"0\r\n\r\n")
        assert answer(client)[0] == 413


def test_who_goes_on_sending_after_a_refusal_is_cut_off(hasty: RunningFront) -> None:
    began = time.monotonic()
    with closing(connect(hasty)) as client:
        client.sendall(head("/v1/nothing", 1 << 40))
        with suppress(ConnectionError):
            while time.monotonic() < began + 5:
                client.sendall(b" ")
                time.sleep(0.02)
    assert time.monotonic() < began + 2


def test_connections_are_counted_and_one_too_many_is_told_so(hasty: RunningFront) -> None:
    time.sleep(0.5)  # for those of other tests to go
    with ExitStack() as stack:
        crowd = [stack.enter_context(closing(connect(hasty))) for _ in range(HASTY["connections"])]  # type: ignore[arg-type]
        for client in crowd:  # so that they are known of
            client.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert answer(client)[0] == 200
        with closing(connect(hasty)) as late:
            late.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert answer(late)[0] == 503
            assert everything(late) == b""
        assert hasty.control("ps")["models"] == [], "the private socket is not full"
    assert eventually(lambda: httpx.get(f"{hasty.url}/health").status_code == 200, 2)


def unread_stream(client: socket.socket) -> None:
    """Ask for a long answer with much to say for each token, and do not read it."""
    more = {"logprobs": True, "top_logprobs": 20, "n": 4}
    body = json.dumps({**STREAMS["/v1/chat/completions"], **more}).encode()
    client.sendall(head("/v1/chat/completions", len(body)) + body)


def over_tcp(front: RunningFront) -> socket.socket:
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.connect(("127.0.0.1", front.port))
    return client


def over_the_private_socket(front: RunningFront) -> socket.socket:
    """Where the kernel has no clock of its own for this."""
    client = socket.socket(socket.AF_UNIX)
    client.connect(front.config["socket"])
    return client


@pytest.mark.parametrize("way", [pytest.param(over_tcp, marks=pytest.mark.long), over_the_private_socket])
def test_a_client_that_does_not_read_holds_nothing(
    hasty: RunningFront, way: Callable[[RunningFront], socket.socket]
) -> None:
    hasty.control("load", model="endless")
    with closing(way(hasty)) as client:
        unread_stream(client)
        assert eventually(lambda: hasty.stats("endless")["active"] == 4)
        steps = hasty.stats("endless")["steps"]
        assert eventually(lambda: hasty.stats("endless")["active"] == 0, 8)
        stats = hasty.stats("endless")
        assert stats["kv_tokens_held"] == stats["waiting"] == 0
        assert stats["steps"] < steps + 2900, "it ended by itself"
    assert eventually(lambda: not hasty.control("ps")["models"][0]["busy"], 2)


def test_who_reads_slowly_but_reads_is_served_to_the_end(hasty: RunningFront) -> None:
    with closing(over_the_private_socket(hasty)) as client:
        body = json.dumps({**STREAMS["/v1/chat/completions"], "max_tokens": 400, "logprobs": True}).encode()
        client.settimeout(10)
        client.sendall(head("/v1/chat/completions", len(body), "Connection: close") + body)
        data = b""
        while part := client.recv(8000):
            data += part
            time.sleep(0.01)
    assert b"data: [DONE]" in data


def begin(front: RunningFront, path: str) -> socket.socket:
    """A client of which the first piece of an answer has come."""
    client = connect(front)
    body = json.dumps(STREAMS[path]).encode()
    client.sendall(head(path, len(body)) + body)
    first = b""
    while first.count(b"\n") < 12:
        first += client.recv(1 << 16)
    return client


def test_a_front_that_is_stopped_ends_every_stream_in_its_own_words_and_waits_for_nobody(
    own_front: Callable[..., RunningFront],
) -> None:
    front = own_front()
    with ExitStack() as stack:
        clients = {path: stack.enter_context(closing(begin(front, path))) for path in STREAMS}
        silent = stack.enter_context(closing(connect(front)))
        half = stack.enter_context(closing(connect(front)))
        half.sendall(head("/v1/messages", 100) + b"{")
        deaf = stack.enter_context(closing(over_the_private_socket(front)))
        unread_stream(deaf)
        assert eventually(lambda: front.stats("endless")["active"] == len(STREAMS) + 4)
        began = time.monotonic()
        assert front.stop() == 0
        assert time.monotonic() < began + 8
        for path, client in clients.items():
            told = everything(client)
            assert b"model was unloaded before it had answered" in told, (path, told[-400:])
        assert everything(silent) == b""


def test_peers_that_vanish_are_noticed_by_the_kernel() -> None:
    """What is set on a listener holds for every connection that comes to it."""
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        notice_lost_peers(listener, Limits(unread_seconds=7))
        with closing(socket.create_connection(listener.getsockname())), closing(listener.accept()[0]) as accepted:
            assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 7
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 7000


def test_limits_that_are_none_are_a_sentence(store: Path, runtime: Path) -> None:
    with pytest.raises(AssertionError, match="the front ended with 2"):
        start_front(store, runtime, limits={"patience": 3})
