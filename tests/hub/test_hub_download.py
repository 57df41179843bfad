"""One file over a bad line: whatever the server does, the bytes are right or the sentence says what is wrong."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from engine.base.errors import CorruptFileError, DoesNotFitError, FreetokenError, NetworkError, NotFoundError
from engine.files.hub import download as download_module
from engine.files.hub.download import Download
from engine.files.hub.listing import Listing, fetch_listing
from engine.files.hub.patience import Stopped
from engine.files.hub.session import connect
from tests.hub.pulling import QUICK, REPO
from tests.hub.server import Fault, HubServer

LARGE = os.urandom(300_000)
SMALL = b'{"small": true}'
STORED = "/storage/"  # where the redirect of a large file leads


def make(server: HubServer, folder: Path, path: str = "large.bin", stop: threading.Event | None = None) -> Download:
    if REPO not in server.repos:
        server.add(REPO, {"large.bin": LARGE, "small.json": SMALL, "empty": b""})
    hub = connect()
    listing = fetch_listing(hub, REPO, "main", QUICK)
    file = listing.find(path)
    assert file is not None
    return Download(hub, listing, file, folder, stop or threading.Event(), QUICK)


def ranges(server: HubServer) -> list[str]:
    """What was asked for of the large file, request by request."""
    return [request.range for request in server.asked(STORED)]


@pytest.mark.parametrize(("path", "content"), [("large.bin", LARGE), ("small.json", SMALL), ("empty", b"")])
def test_a_file_comes_as_it_is(server: HubServer, tmp_path: Path, path: str, content: bytes) -> None:
    assert make(server, tmp_path, path).finish().read_bytes() == content
    assert [found.name for found in tmp_path.iterdir()] == [path]


@pytest.mark.parametrize(
    "faults",
    [
        [Fault(STORED, drop_after=100_000)],
        [Fault(STORED, times=12, drop_after=20_000)],
        [Fault(STORED, drop_after=0), Fault(STORED, drop_after=1)],
        [Fault(STORED, short=50_000)],
        [Fault(STORED, short=1), Fault(STORED, empty=True)],
        [Fault(STORED, empty=True, times=3)],
        [Fault(STORED, flip=1234)],
        [Fault(STORED, flip=1234, times=2)],
        [Fault(STORED, drop_after=200_000), Fault(STORED, ignore_range=True)],
        [Fault(STORED, drop_after=200_000), Fault(STORED, ignore_range=True, drop_after=250_000)],
        [Fault(STORED, drop_after=100_000), Fault(STORED, content_range="bytes 0-299999/300000")],
        [Fault(STORED, drop_after=100_000), Fault(STORED, content_range="bytes 100000-299999/300001")],
        [Fault(STORED, drop_after=100_000), Fault(STORED, content_range="nonsense")],
        [Fault(STORED, drop_after=100_000), Fault(STORED, content_range=f"bytes {9 * 10**99}-1/2")],
        [Fault(STORED, drop_after=100_000), Fault(STORED, content_range=f"bytes 0-{'9' * 5000}/*")],
        [Fault(STORED, status=503, times=2), Fault(STORED, status=429, headers={"Retry-After": "0"})],
        [Fault("/resolve/", status=500), Fault("/resolve/", status=429, headers={"RateLimit": '"api";r=0;t=0'})],
        [Fault(STORED, status=403)],  # an address that has expired: the Hub gives a new one
    ],
)
def test_faults_that_pass(server: HubServer, tmp_path: Path, faults: list[Fault]) -> None:
    download = make(server, tmp_path)
    server.faults = faults
    assert download.finish().read_bytes() == LARGE
    assert all(fault.times == 0 for fault in faults), "a fault that never struck proves nothing"


def test_a_server_that_has_less_than_the_list(server: HubServer, tmp_path: Path) -> None:
    download = make(server, tmp_path)
    server.faults = [Fault(STORED, drop_after=100_000), Fault(STORED, status=416, times=9)]
    with pytest.raises(NetworkError, match=r"large\.bin of .*status 416"):
        download.finish()
    assert len(ranges(server)) == 2


def test_a_server_whose_file_has_another_size(server: HubServer, tmp_path: Path) -> None:
    download = make(server, tmp_path)
    server.repos[REPO][next(iter(server.repos[REPO]))]["large.bin"] = LARGE + b"more"
    with pytest.raises(NetworkError, match=r"large\.bin of .* has 300004 bytes where it is kept, and 300000"):
        download.finish()
    assert len(ranges(server)) == 2


@pytest.mark.parametrize("status", [401, 404])
def test_a_listed_file_that_is_refused_is_named(server: HubServer, tmp_path: Path, status: int) -> None:
    download = make(server, tmp_path)
    server.faults = [Fault("/resolve/", status=status)]
    with pytest.raises(NotFoundError, match=rf"lists large\.bin of someone/Tiny-MoE, and answers {status}"):
        download.finish()


def test_a_cut_transfer_goes_on_where_it_was_cut(server: HubServer, tmp_path: Path) -> None:
    download = make(server, tmp_path)
    server.faults = [Fault(STORED, drop_after=131_072)]
    download.finish()
    assert ranges(server)[0] == ""
    start = int(ranges(server)[1].removeprefix("bytes=").split("-")[0])
    assert 65_536 <= start <= 131_072, "all that came is kept but for what lay in a buffer"


def test_another_process_goes_on_where_the_first_was_killed(server: HubServer, tmp_path: Path) -> None:
    first = make(server, tmp_path)
    server.faults = [Fault(STORED, drop_after=150_000), Fault(STORED, status=503, times=9)]
    with pytest.raises(NetworkError):
        first.finish()
    server.faults.clear()
    have = first.have
    assert 0 < have <= 150_000
    again = make(server, tmp_path)
    assert again.have == have
    assert again.finish().read_bytes() == LARGE
    assert ranges(server)[-1] == f"bytes={have}-{len(LARGE) - 1}"


def test_a_silent_server_is_asked_again(server: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DOWNLOAD_TIMEOUT", 0.2)
    download = make(server, tmp_path)
    server.faults = [Fault(STORED, sleep_after=65_536, sleep=1.0)]
    assert download.finish().read_bytes() == LARGE
    assert len(ranges(server)) == 2


def test_a_server_that_stays_silent_is_given_up(
    server: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DOWNLOAD_TIMEOUT", 0.1)
    download = make(server, tmp_path)
    server.faults = [Fault(STORED, times=9, sleep_after=0, sleep=0.5)]
    with pytest.raises(NetworkError, match=r"large\.bin of someone/Tiny-MoE cannot be fetched: .* silent .* 4 times"):
        download.finish()


def test_a_server_that_dies_and_comes_back(server: HubServer, tmp_path: Path) -> None:
    download = make(server, tmp_path)
    server.stop()
    with pytest.raises(NetworkError, match="cannot be reached") as caught:
        download.finish()
    assert caught.value.exit_code == 5
    server.start()
    assert download.finish().read_bytes() == LARGE


def test_bytes_that_are_wrong_every_time_are_named_with_both_hashes(server: HubServer, tmp_path: Path) -> None:
    download = make(server, tmp_path)
    server.faults = [Fault(STORED, flip=5, times=9)]
    with pytest.raises(CorruptFileError, match="arrived damaged 3 times") as caught:
        download.finish()
    assert download.file.sha256 in caught.value.message
    assert len(ranges(server)) == 3
    assert not (tmp_path / "large.bin").exists()


def test_a_small_file_is_checked_by_its_git_hash(server: HubServer, tmp_path: Path) -> None:
    download = make(server, tmp_path, "small.json")
    assert download.file.sha256 == ""
    server.faults = [Fault("small.json", flip=3)]
    assert download.finish().read_bytes() == SMALL
    assert len(server.asked("small.json")) == 2


def test_what_an_earlier_run_finished_is_checked_again(server: HubServer, tmp_path: Path) -> None:
    path = make(server, tmp_path).finish()
    asked = len(ranges(server))
    assert make(server, tmp_path).finish() == path
    assert len(ranges(server)) == asked, "a sound file is not fetched again"
    path.write_bytes(b"\0" * len(LARGE))
    assert make(server, tmp_path).finish().read_bytes() == LARGE


def test_a_longer_file_under_the_unfinished_name_is_begun_again(server: HubServer, tmp_path: Path) -> None:
    download = make(server, tmp_path)
    download.unfinished.write_bytes(LARGE + b"more")
    assert download.finish().read_bytes() == LARGE


def test_a_file_that_is_gone(server: HubServer, tmp_path: Path) -> None:
    download = make(server, tmp_path)
    server.faults = [Fault("/resolve/", status=404, headers={"X-Error-Code": "EntryNotFound"})]
    with pytest.raises(NotFoundError, match=r"The Hub has no large\.bin of someone/Tiny-MoE"):
        download.finish()


@pytest.mark.parametrize("status", [401, 403])
def test_a_gated_file_says_what_to_do(server: HubServer, tmp_path: Path, status: int) -> None:
    download = make(server, tmp_path)
    server.faults = [Fault("/resolve/", status=status, headers={"X-Error-Code": "GatedRepo"})]
    with pytest.raises(NetworkError, match="is gated") as caught:
        download.finish()
    assert f"{server.endpoint}/{REPO}" in caught.value.remedy
    assert "HF_TOKEN" in caught.value.remedy


def test_a_wait_that_is_too_long_is_told_instead(server: HubServer, tmp_path: Path) -> None:
    download = make(server, tmp_path)
    server.faults = [Fault("/resolve/", status=429, headers={"Retry-After": "7200"})]
    with pytest.raises(NetworkError, match=r"for 2 h: .*429"):
        download.finish()


def test_the_token_goes_to_the_hub_alone(server: HubServer, tmp_path: Path) -> None:
    make(server, tmp_path).finish()
    hub, elsewhere = server.asked("/resolve/"), server.asked(STORED)
    assert {request.authorised for request in hub} == {True}
    assert {request.authorised for request in elsewhere} == {False}


def test_an_implicit_token_can_be_forbidden(server: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_IMPLICIT_TOKEN", True)
    make(server, tmp_path).finish()
    assert not any(request.authorised for request in server.requests)


def test_nothing_but_what_is_needed_is_asked_of_the_hub(server: HubServer, tmp_path: Path) -> None:
    make(server, tmp_path).finish()
    kinds = {request.path.split("/")[1] for request in server.requests}
    assert kinds == {"api", "someone", "storage"}
    assert len(server.asked("/api/")) == 1


def test_only_the_beginning_is_fetched_for_a_header(server: HubServer, tmp_path: Path) -> None:
    download = make(server, tmp_path)
    assert download.fetch_head(1000).read_bytes() == LARGE[:1000]
    assert download.fetch_head(5000).read_bytes() == LARGE[:5000]
    assert ranges(server) == ["bytes=0-999", "bytes=1000-4999"]
    server.faults = [Fault(STORED, ignore_range=True)]
    assert download.fetch_head(9000).read_bytes() == LARGE[:9000]
    assert download.finish().read_bytes() == LARGE


def test_a_large_file_is_asked_for_in_pieces(
    server: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download_module, "_PIECE_BYTES", 100_000)
    assert make(server, tmp_path).finish().read_bytes() == LARGE
    assert ranges(server) == ["bytes=0-99999", "bytes=100000-199999", "bytes=200000-299999"]


def test_room_is_given_back_but_for_the_beginning(server: HubServer, tmp_path: Path) -> None:
    download = make(server, tmp_path)
    download.finish()
    download.free(keep=5000)
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [LARGE[:5000]]
    assert make(server, tmp_path).finish().read_bytes() == LARGE
    assert ranges(server)[-1] == "bytes=5000-299999"


def test_a_full_disk(server: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    download = make(server, tmp_path)
    real = os.pwrite

    def pwrite(descriptor: int, data: memoryview, offset: int) -> int:
        if offset + len(data) > 100_000:
            raise OSError(28, "No space left on device")
        return real(descriptor, data, offset)

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", pwrite)
        with pytest.raises(DoesNotFitError, match="is full") as caught:
            download.finish()
    assert "kept" in caught.value.remedy
    kept = download.have
    assert kept > 0
    assert download.finish().read_bytes() == LARGE
    assert ranges(server)[-1].startswith(f"bytes={kept}-")


def test_a_folder_that_cannot_be_written(server: HubServer, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(FreetokenError, match="cannot be written"):
        make(server, tmp_path / "file").finish()


def test_a_fetch_can_be_stopped(server: HubServer, tmp_path: Path) -> None:
    stop = threading.Event()
    download = make(server, tmp_path, stop=stop)
    server.bytes_a_second = 400_000
    threading.Timer(0.2, stop.set).start()
    with pytest.raises(Stopped):
        download.finish()
    assert 0 < download.have < len(LARGE)


def test_a_beginning_is_compared_without_reading_what_else_is_there(server: HubServer, tmp_path: Path) -> None:
    download = make(server, tmp_path)
    download.fetch_head(200_000)
    assert download.comes_again(1000)
    assert ranges(server) == ["bytes=0-199999", "bytes=0-999"]
    server.faults = [Fault(STORED, flip=10)]
    assert not download.comes_again(1000)
    assert download.have == 0


def test_a_beginning_that_cannot_be_asked_for_again_is_believed(
    server: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    download = make(server, tmp_path)
    download.fetch_head(200_000)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    hub = connect()
    offline = Download(hub, Listing(REPO, "main", "0" * 40, ()), download.file, tmp_path, threading.Event(), QUICK)
    assert offline.comes_again(1000)
    assert offline.unfinished.is_file()
