"""Where things are kept, whatever the environment says."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from engine.base.errors import FreetokenError
from engine.base.nearest import nearest
from engine.base.paths import Paths, make_private_folder

LONGEST = 107  # bytes of a socket's path on Linux, without its final NUL


def paths(**environment: str) -> Paths:
    return Paths.from_environment(environment)


def test_the_runtime_folder_is_the_platforms() -> None:
    assert paths(XDG_RUNTIME_DIR="/run/user/7").socket.parent == Path("/run/user/7/freetoken")


@pytest.mark.parametrize("given", ["", ".", "relative/folder", "../up"])
def test_a_relative_runtime_folder_counts_as_none(given: str) -> None:
    assert paths(XDG_RUNTIME_DIR=given) == paths()


@pytest.mark.parametrize("given", ["/" + "d" * 200, "/" + "é" * 60, "/run/" + "x" * 80])
def test_a_socket_can_be_bound_however_long_the_folders_are(given: str) -> None:
    long = paths(XDG_RUNTIME_DIR=given, FREETOKEN_STORE="/" + "s" * 4000)
    assert len(os.fsencode(long.socket)) <= LONGEST
    assert long.runtime != paths(XDG_RUNTIME_DIR=given + "2").runtime


def test_stores_do_not_share_a_front() -> None:
    one, other = paths(FREETOKEN_STORE="/models"), paths(FREETOKEN_STORE="/models2")
    assert one.socket != other.socket
    assert one.lock != other.lock
    assert one.socket == paths(FREETOKEN_STORE="/models/").socket == paths(FREETOKEN_STORE="/x/../models").socket


def test_a_private_folder_is_made_private(tmp_path: Path) -> None:
    folder = tmp_path / "run" / "freetoken"
    folder.parent.mkdir()
    folder.mkdir(mode=0o755)
    make_private_folder(folder)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_a_private_folder_is_no_link_and_no_file(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    (tmp_path / "file").touch()
    for name in ("link", "file", "file/below"):
        with pytest.raises(FreetokenError, match=name.split("/")[0]) as caught:
            make_private_folder(tmp_path / name)
        assert "XDG_RUNTIME_DIR" in caught.value.remedy


@pytest.mark.parametrize(
    ("typed", "names"),
    [
        ("rum", ["rm", "run"]),  # never the one that removes alone
        ("runn", ["run"]),
        ("PULL", ["pull"]),
        ("zzz", []),
        ("", []),
    ],
)
def test_what_was_meant(typed: str, names: list[str]) -> None:
    assert nearest(typed, ["run", "rm", "pull", "list", "pull"]) == names
