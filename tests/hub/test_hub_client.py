"""Both clients that huggingface_hub may hand out: of httpx in its version 1, of httpx2 in its version 2."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from engine.base.errors import NetworkError
from engine.files.hub.client import library_of
from engine.files.hub.patience import Passing
from engine.files.hub.session import connect, request
from tests.hub.pulling import REPO, contents, pull_it
from tests.hub.server import Fault, HubServer

LARGE = os.urandom(100_000)


@pytest.fixture(params=["httpx", "httpx2"])
def library(request: pytest.FixtureRequest, server: HubServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """A library whose client is handed out, and used by all that the test does."""
    library = importlib.import_module(request.param)

    class OwnClient(library.Client):  # type: ignore[misc, name-defined]
        """As a user of huggingface_hub may set up, with proxies of his own."""

    with OwnClient() as client:
        monkeypatch.setattr("huggingface_hub.get_session", lambda: client)
        yield library


def failure(url: str) -> str:
    """Why asking for an address fails, in a way that may pass."""
    with pytest.raises(Passing) as caught, request(connect(), url, REPO, "a file", 0) as answer:
        b"".join(answer.chunks)
    return caught.value.reason


def test_failures_of_either_are_told_apart(
    library: ModuleType, server: HubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert library_of(connect().client) is library
    url = connect().file_url(REPO, server.add(REPO, {"large.bin": LARGE}), "large.bin")
    server.faults = [Fault("/storage/", sleep_after=0, sleep=0.3), Fault("/storage/", drop_after=20_000)]
    with monkeypatch.context() as patch:
        patch.setattr("huggingface_hub.constants.HF_HUB_DOWNLOAD_TIMEOUT", 0.1)
        assert failure(url) == f"{connect().host} was silent for 0.1 s"
    assert failure(url).startswith("the connection was cut (")
    with request(connect(), url, REPO, "a file", 0) as answer:
        assert b"".join(answer.chunks) == LARGE
    server.stop()
    assert "cannot be reached" in failure(url)


def test_a_proxy_that_refuses(library: ModuleType, server: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loopback Hub is no proxy, and says so to whoever wants a tunnel through it."""
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "https://127.0.0.1:9")
    with library.Client(proxy=server.endpoint) as client:
        monkeypatch.setattr("huggingface_hub.get_session", lambda: client)
        assert "the proxy refuses the connection" in failure("https://127.0.0.1:9/a")


@pytest.mark.usefixtures("library")
def test_a_pull_over_a_bad_line_gives_the_model(
    server: HubServer, tmp_path: Path, files: dict[str, bytes], expected: dict[str, bytes]
) -> None:
    server.add(REPO, files)
    server.faults = [Fault("/storage/", drop_after=50_000, times=3), Fault("/resolve/", status=503)]
    assert contents(pull_it(tmp_path)) == expected


@pytest.mark.usefixtures("library")
def test_a_hub_that_is_not_there(server: HubServer, tmp_path: Path) -> None:
    server.stop()
    with pytest.raises(NetworkError, match="cannot be reached"):
        pull_it(tmp_path)
