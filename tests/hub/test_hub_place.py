"""What is shown of an address, and when two are the same server."""

from __future__ import annotations

from pathlib import Path

import pytest
from huggingface_hub import constants

from engine.base.errors import FreetokenError, NotFoundError, UsageError
from engine.files.hub.place import Place
from engine.files.hub.session import connect
from tests.hub.pulling import REPO, pull_it
from tests.hub.server import HubServer

SECRET = "hunter2"


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        (f"https://someone:{SECRET}@hub.test/a/b", "hub.test"),
        ("https://HUB.test:443", "hub.test"),
        ("http://hub.test:80", "hub.test"),
        ("http://hub.test:443", "hub.test:443"),
        ("https://[::1]:8080/x", "[::1]:8080"),
    ],
)
def test_an_address_is_shown_as_its_host(address: str, shown: str) -> None:
    assert str(Place.of(address)) == shown


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("https://hub.test", "https://hub.test:443/x", True),
        (f"https://someone:{SECRET}@hub.test", "https://hub.test", True),
        ("https://hub.test", "https://cdn.hub.test", False),
        ("https://hub.test", "https://hub.test:8443", False),
    ],
)
def test_servers_are_told_apart(one: str, other: str, same: bool) -> None:
    assert Place.of(one).is_on(Place.of(other)) is same


@pytest.mark.parametrize("address", ["", "hub.test", "ftp://hub.test", "http://", "http://[x", "http://h:99999"])
def test_no_address(address: str) -> None:
    with pytest.raises(ValueError, match="no address"):
        Place.of(address)


@pytest.mark.parametrize("start", ["ftp://someone", "http://someone", "//someone"])
def test_a_password_in_a_wrong_address_is_not_shown(monkeypatch: pytest.MonkeyPatch, start: str) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", f"{start}:{SECRET}@hub.test:99999")
    with pytest.raises(UsageError, match="HF_") as caught:
        connect()
    assert SECRET not in str(caught.value)


def test_a_password_is_not_shown_and_makes_no_other_host(
    server: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", server.endpoint.replace("://", f"://someone:{SECRET}@"))
    assert SECRET not in connect().host
    with pytest.raises(NotFoundError) as caught:
        pull_it(tmp_path)
    assert len(server.requests) == 1, "what is not there is asked for once"
    told = caught.value.message + caught.value.remedy
    server.stop()
    with pytest.raises(FreetokenError) as caught_too:
        pull_it(tmp_path, REPO)
    assert SECRET not in told + caught_too.value.message + caught_too.value.remedy
