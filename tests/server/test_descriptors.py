"""A front that may open few files, and one whose clients talk nonsense: neither spins, and neither fills its log."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import httpx
import pytest

from tests.server.running_front import HERE, RunningFront, start_front
from tests.server.test_limits import answer

FILES = 160
MANY = 170  # more than a front with so few files has room for


def with_files(count: int, folder: Path) -> tuple[Path, Path]:
    """A script that starts a front which may open `count` files, and its log."""
    log, script = folder / "log", folder / "front.py"
    script.write_text(
        "import os, resource, runpy\n"
        f"resource.setrlimit(resource.RLIMIT_NOFILE, ({count}, {count}))\n"
        f"os.dup2(os.open({str(log)!r}, os.O_WRONLY | os.O_CREAT | os.O_APPEND), 2)\n"
        f"runpy.run_path({str(HERE / 'run_front.py')!r}, run_name='__main__')\n"
    )
    return script, log


@pytest.fixture
def narrow(store: Path, runtime: Path) -> Iterator[tuple[RunningFront, Path]]:
    """A front with few files, and its log."""
    script, log = with_files(FILES, runtime)
    running = start_front(store, runtime, script=script, limits={"head_seconds": 1.5})
    yield running, log
    assert running.stop() == 0


def connect(front: RunningFront) -> socket.socket:
    return socket.create_connection(("127.0.0.1", front.port), timeout=10)


def busy_seconds(pid: int) -> float:
    """Seconds of processor time that a process has had."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


def test_a_crowd_takes_no_more_files_than_there_are(narrow: tuple[RunningFront, Path]) -> None:
    front, log = narrow
    with ExitStack() as stack:
        crowd = [stack.enter_context(closing(connect(front))) for _ in range(MANY)]
        with closing(connect(front)) as late:
            assert late.recv(100)[9:12] in (b"503", b"")
        before = busy_seconds(front.process.pid)
        time.sleep(1.0)
        assert busy_seconds(front.process.pid) - before < 0.3
        said = [client.recv(100) for client in crowd]  # those who are served hear nothing until their time is up
    assert b"503" in b"".join(said)
    body = {"model": "fake", "prompt": "x", "max_tokens": 2}
    assert httpx.post(f"{front.url}/v1/completions", json=body, timeout=60).status_code == 200
    assert log.read_text() == ""


def test_a_front_without_files_says_what_it_needs(store: Path, runtime: Path) -> None:
    script, log = with_files(100, runtime)
    with pytest.raises(AssertionError, match="the front ended with 2"):
        start_front(store, runtime, script=script)
    assert "open 100 files" in log.read_text()
    assert "ulimit -n" in log.read_text()


def test_nonsense_is_an_error_of_ours_before_an_answer_and_the_end_after_it(narrow: tuple[RunningFront, Path]) -> None:
    front, log = narrow
    with closing(connect(front)) as client:
        client.sendall(b"nonsense\r\n\r\n")
        told, _, content = client.recv(10_000).partition(b"\r\n\r\n")
        assert told.startswith(b"HTTP/1.1 400 ")
        assert json.loads(content)["error"]["type"] == "invalid_request_error"
        assert client.recv(100) == b""
    with closing(connect(front)) as client:
        client.sendall(b"POST /nowhere HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n")
        assert answer(client)[0] == 404
        client.sendall(b"nonsense\r\n")
        assert client.recv(100) == b""
    assert log.read_text() == ""
