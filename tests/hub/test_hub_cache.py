"""The cache of huggingface_hub: used in place, never written, and not trusted."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from engine.base.errors import CorruptFileError, NetworkError
from engine.files.pulling.repository import CONVERT
from tests.hub.pulling import REPO, contents, in_cache, pull_it
from tests.hub.server import HubServer


def test_a_snapshot_in_the_cache_is_used_in_place(
    server: HubServer, tmp_path: Path, files: dict[str, bytes], expected: dict[str, bytes]
) -> None:
    commit = server.add(REPO, files)
    in_cache(tmp_path / "cache", commit, files)
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "cache").rglob("*")}
    phases: set[str] = set()
    folder = pull_it(tmp_path, progress=lambda phase, done, total: phases.add(phase))
    assert contents(folder) == expected
    assert server.asked("/resolve/") == []
    assert CONVERT in phases
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "cache").rglob("*")} == before


def test_what_huggingface_hub_itself_fetched_is_used_in_place(
    server: HubServer, tmp_path: Path, files: dict[str, bytes], expected: dict[str, bytes]
) -> None:
    server.add(REPO, files)
    code = "import sys; from huggingface_hub import hf_hub_download as get; [get(sys.argv[1], n) for n in sys.argv[2:]]"
    variables = {"HF_ENDPOINT": server.endpoint, "HF_HUB_CACHE": str(tmp_path / "cache"), "HF_HOME": str(tmp_path)}
    subprocess.run([sys.executable, "-c", code, REPO, *files], env=os.environ | variables, check=True)
    server.requests.clear()
    assert contents(pull_it(tmp_path)) == expected
    assert [request.path.split("/")[1] for request in server.requests] == ["api"], "the list of files, and no file"


def test_what_the_cache_lacks_or_holds_damaged_is_fetched(
    server: HubServer, tmp_path: Path, files: dict[str, bytes], expected: dict[str, bytes]
) -> None:
    commit = server.add(REPO, files)
    snapshot = in_cache(tmp_path / "cache", commit, files)
    (snapshot / "model-00002-of-00005.safetensors").resolve().unlink()
    (snapshot / "config.json").resolve().write_bytes(b"[" + files["config.json"][1:])
    damaged = (snapshot / "model-00004-of-00005.safetensors").resolve()
    content = bytearray(damaged.read_bytes())
    content[-1] ^= 1
    damaged.write_bytes(content)
    assert contents(pull_it(tmp_path)) == expected
    asked = {request.path.rsplit("/", 1)[-1] for request in server.asked("/resolve/")}
    assert asked == {"config.json", "model-00002-of-00005.safetensors", "model-00004-of-00005.safetensors"}
    assert damaged.read_bytes() == content, "the cache is not ours to mend"


def test_offline_the_cache_is_enough(
    server: HubServer,
    tmp_path: Path,
    files: dict[str, bytes],
    expected: dict[str, bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    commit = server.add(REPO, files)
    snapshot = in_cache(tmp_path / "cache", commit, files)
    server.requests.clear()
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert contents(pull_it(tmp_path)) == expected
    assert server.requests == []
    with pytest.raises(NetworkError, match="HF_HUB_OFFLINE"):
        pull_it(tmp_path, "someone/Else")
    damaged = (snapshot / "model-00004-of-00005.safetensors").resolve()
    content = bytearray(damaged.read_bytes())
    content[-1] ^= 1
    damaged.write_bytes(content)
    with pytest.raises(CorruptFileError, match="is damaged: its sha256 should be") as caught:
        pull_it(tmp_path, name="again")
    assert damaged.name in caught.value.message


def test_a_hub_that_cannot_be_reached_and_a_cache_that_has_it(
    server: HubServer, tmp_path: Path, files: dict[str, bytes], expected: dict[str, bytes]
) -> None:
    commit = server.add(REPO, files)
    in_cache(tmp_path / "cache", commit, files)
    server.stop()
    notes: list[str] = []
    assert contents(pull_it(tmp_path, note=notes.append)) == expected
    assert "cannot be reached" in notes[0]
    assert commit[:12] in notes[0]


def test_a_copy_without_links_is_used_too(
    server: HubServer, tmp_path: Path, files: dict[str, bytes], expected: dict[str, bytes]
) -> None:
    """Systems without symbolic links have files in the snapshot itself."""
    commit = server.add(REPO, files)
    snapshot = tmp_path / "cache/models--someone--Tiny-MoE/snapshots" / commit
    snapshot.mkdir(parents=True)
    for name, content in files.items():
        (snapshot / name).write_bytes(content)
    assert contents(pull_it(tmp_path)) == expected
    assert server.asked("/resolve/") == []


def test_offline_a_link_whose_blob_is_gone_is_named(
    server: HubServer, tmp_path: Path, files: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot = in_cache(tmp_path / "cache", server.add(REPO, files), files)
    for link in snapshot.glob("*.safetensors"):
        link.resolve().unlink()
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(NetworkError, match=r"\.safetensors of .* is not on this machine, and HF_HUB_OFFLINE forbids"):
        pull_it(tmp_path)
