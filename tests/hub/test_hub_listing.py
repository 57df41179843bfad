"""The list of a repository's files: what the Hub says of it, and what may go wrong in asking."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import huggingface_hub
import pytest

from engine.base.errors import CorruptFileError, NetworkError, NotFoundError, UsageError
from engine.files.hub.listing import HubFile, Listing, fetch_listing
from engine.files.hub.session import connect
from tests.hub.pulling import QUICK, REPO
from tests.hub.server import Fault, HubServer, describe, git_sha1

API = "/api/models"


def ask(repo: str = REPO, revision: str = "main") -> Listing:
    return fetch_listing(connect(), repo, revision, QUICK)


def answer(files: dict[str, bytes], **changes: object) -> bytes:
    return json.dumps(describe(REPO, "a" * 40, files) | changes).encode()


def test_sizes_and_hashes_are_those_of_the_files(server: HubServer, files: dict[str, bytes]) -> None:
    commit = server.add(REPO, files)
    listing = ask()
    assert (listing.repo, listing.commit) == (REPO, commit)
    assert {file.path: file.size for file in listing.files} == {path: len(content) for path, content in files.items()}
    config = listing.find("config.json")
    assert config == HubFile("config.json", len(files["config.json"]), "", git_sha1(files["config.json"]))
    weights = listing.find("model-00001-of-00005.safetensors")
    assert weights is not None
    assert len(weights.sha256) == 64
    assert listing.find("nothing") is None
    assert Listing.from_json(json.loads(json.dumps(listing.to_json())), "a copy") == listing


def test_a_branch_a_tag_and_a_commit(server: HubServer) -> None:
    first = server.add(REPO, {"config.json": b"1"}, "v1")
    second = server.add(REPO, {"config.json": b"2"})
    assert (ask(revision="v1").commit, ask().commit, ask(revision=first).commit) == (first, second, first)
    with pytest.raises(NotFoundError, match="someone/Tiny-MoE at refs/pr/7 has no such revision"):
        ask(revision="refs/pr/7")


def test_a_repository_that_is_not_there_or_private(server: HubServer) -> None:
    with pytest.raises(NotFoundError, match=r"someone/Else is not on the Hub at 127\.0.*or it is private") as caught:
        ask("someone/Else")
    assert "HF_TOKEN" in caught.value.remedy


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (Fault(API, status=401, headers={"X-Error-Code": "GatedRepo"}), "is gated"),
        (
            Fault(API, status=403, headers={"X-Error-Message": "Token lacks a scope"}),
            "status 403 .*Token lacks a scope",
        ),
        (
            Fault(API, status=401, headers={"X-Error-Message": "Invalid credentials in Authorization header"}),
            "does not take the token",
        ),
        (Fault(API, status=418), "refuses someone/Tiny-MoE with status 418"),
        (Fault(API, status=599), "status 599 .no known status"),
    ],
)
def test_refusals_are_not_tried_again(server: HubServer, fault: Fault, words: str) -> None:
    server.add(REPO, {"config.json": b"{}"})
    server.faults = [fault]
    with pytest.raises(NetworkError, match=words):
        ask()
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    "faults",
    [
        [Fault(API, status=503), Fault(API, status=429, headers={"Retry-After": "0"})],
        [Fault(API, drop_after=10), Fault(API, drop_after=0)],
        [Fault(API, short=20), Fault(API, empty=True)],
        [Fault(API, body=b"<html>Log in to this network</html>")],
    ],
)
def test_faults_that_pass(server: HubServer, faults: list[Fault]) -> None:
    commit = server.add(REPO, {"config.json": b"{}"})
    server.faults = faults
    assert ask().commit == commit
    assert all(fault.times == 0 for fault in faults)


def test_a_page_that_comes_instead_every_time(server: HubServer) -> None:
    server.add(REPO, {"config.json": b"{}"})
    server.faults = [Fault(API, times=9, body=b"<html>Log in to this network</html>")]
    with pytest.raises(NetworkError, match=r"the answer of 127\.0\.0\.1:\d+ is not valid JSON.*4 times") as caught:
        ask()
    assert caught.value.remedy == "Check the connection and try again."  # whoever asks may fetch nothing


@pytest.mark.parametrize("path", ["../evil", "/etc/passwd", "a//b", "a/../b", "a\\b", "a\nb", ".", ""])
def test_names_that_lead_elsewhere_are_no_files(server: HubServer, path: str) -> None:
    server.add(REPO, {"config.json": b"{}"})
    server.faults = [Fault(API, body=answer({path: b"x", "good": b"x"}))]
    assert [file.path for file in ask().files] == ["good"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"sha": "main"}, "names no commit"),
        ({"sha": None}, "sha"),
        ({"siblings": [{"rfilename": "a"}]}, "of a, lacks 'size'"),
        ({"siblings": [{"rfilename": "a", "size": -1, "blobId": "0" * 40}]}, "of a,.*-1"),
        ({"siblings": [{"rfilename": "a", "size": 1}]}, "of a, lacks 'blobId'"),
        ({"siblings": [{"rfilename": "a", "size": 1, "blobId": "short"}]}, "git hash of a .*'short'"),
        ({"siblings": [{"rfilename": "a", "size": 1, "lfs": {"sha256": "G" * 64}}]}, "sha256 of a .*GGG"),
    ],
)
def test_a_list_that_makes_no_sense_is_not_asked_for_again(
    server: HubServer, changes: dict[str, object], words: str
) -> None:
    server.add(REPO, {"config.json": b"{}"})
    server.faults = [Fault(API, times=9, body=answer({}, **changes))]
    with pytest.raises(NetworkError, match=words) as caught:
        ask()
    assert "the answer of 127.0.0.1" in caught.value.message
    assert "connection" not in caught.value.remedy
    assert len(server.requests) == 1


def test_a_listing_that_was_damaged_on_disk_is_named() -> None:
    with pytest.raises(CorruptFileError, match=r"source\.json lacks 'repo'"):
        Listing.from_json({"files": []}, "source.json")


def test_offline_nothing_is_asked(server: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(NetworkError, match="HF_HUB_OFFLINE forbids"):
        ask()
    assert server.requests == []


def test_a_token_or_proxy_that_cannot_be_is_wrong_usage(monkeypatch: pytest.MonkeyPatch) -> None:
    huggingface_hub.close_session()  # it has read its proxies already
    for proxy in ("::bad", "socks9://host"):
        monkeypatch.setenv("http_proxy", proxy)
        with pytest.raises(UsageError, match="proxy that is set up here cannot be used"):
            connect()
    monkeypatch.delenv("http_proxy")
    monkeypatch.setenv("HF_TOKEN", "hf_ü")
    with pytest.raises(UsageError, match="letters that no token has"):
        connect()


def test_an_endpoint_that_is_no_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "huggingface.co")
    with pytest.raises(UsageError, match=r"HF_ENDPOINT is 'huggingface\.co'"):
        connect()


def test_a_variable_of_huggingface_hub_that_is_no_number() -> None:
    code = """
from engine.base.errors import UsageError
from engine.files.hub.session import connect
try:
    connect()
except UsageError as error:
    print(error)
"""
    variables = {**os.environ, "HF_HUB_DOWNLOAD_TIMEOUT": "soon"}
    done = subprocess.run([sys.executable, "-c", code], env=variables, capture_output=True, text=True, check=True)
    assert "'soon'" in done.stdout
    assert "HF_" in done.stdout
