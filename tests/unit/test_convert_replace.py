"""A new model takes the place of an old one: whoever is killed on the way, one of the two is there."""

from __future__ import annotations

import errno
import os
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest

from engine.base.errors import BusyError, FreetokenError, UsageError
from engine.files.conversion import placing
from engine.files.conversion.placing import exchange, put_in_place, remove_tree, settle, take_away
from engine.files.ftw.opening import open_model
from engine.files.locks import lock_folder
from engine.files.store import Store
from tests.unit.checkpoints import mixtral_tensors, write_folder
from tests.unit.converting import Interrupted, contents, resumed_at, run


class KillAt:
    """Ends the process, as far as files can tell, before the step of that number; `count` are those there were."""

    def __init__(self, monkeypatch: Any, number: int, can_exchange: bool) -> None:
        self.count = 0
        self._number = number
        for owner, name in ((Path, "rename"), (Path, "unlink"), (shutil, "rmtree")):
            monkeypatch.setattr(owner, name, self._counting(getattr(owner, name)))
        monkeypatch.setattr(placing, "exchange", self._counting(exchange if can_exchange else lambda *names: False))

    def _counting(self, real: Any) -> Any:
        def step(*arguments: Any, **options: Any) -> Any:
            if self.count == self._number:
                raise Interrupted
            self.count += 1
            return real(*arguments, **options)

        return step


def named(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("can_exchange", [True, False])
def test_a_kill_at_any_step_of_a_replacement_costs_nothing(tmp_path: Path, tensors: dict, can_exchange: bool) -> None:
    source = write_folder(tmp_path / "source", tensors)
    old = write_folder(tmp_path / "other", mixtral_tensors(seed=1))
    run(old, tmp_path / "old")
    run(source, tmp_path / "whole")
    old_content, new_content = contents(tmp_path / "old"), contents(tmp_path / "whole")
    total = sum(len(content) for name, content in new_content.items() if not name.endswith(".json"))
    for number in range(30):
        root = tmp_path / f"at {number}"
        shutil.copytree(tmp_path / "old", root / "dest")
        with pytest.MonkeyPatch.context() as patched:
            kill = KillAt(patched, number, can_exchange)
            try:
                run(source, root / "dest", force=True)
            except Interrupted:
                killed = True
            else:
                killed = False
        if not killed:
            break
        shown = root / "dest"
        assert shown.is_dir() or not can_exchange, "one of the two is there at any moment"
        there = contents(shown) if shown.is_dir() else old_content
        there.pop("journal", None)
        assert there in (old_content, new_content)
        begins = resumed_at(source, shown, force=True)
        assert (begins == total) == (there == old_content), "what was converted is used, unless it has arrived"
        assert contents(shown) == new_content
        assert named(root) == ["dest"]
    assert 3 <= kill.count <= number, "every step was killed at once"


def test_the_old_model_comes_back_where_the_new_one_did_not_arrive(tmp_path: Path, source: Path) -> None:
    run(source, tmp_path / "dest")
    before = contents(tmp_path / "dest")
    (tmp_path / "dest").rename(tmp_path / ".dest.replaced")
    with pytest.raises(UsageError, match="is there already"):
        run(source, tmp_path / "dest")
    assert contents(tmp_path / "dest") == before
    assert named(tmp_path) == ["dest", "source"]


def test_a_link_is_replaced_and_what_it_points_to_stays(tmp_path: Path, source: Path) -> None:
    run(write_folder(tmp_path / "other", mixtral_tensors(seed=1)), tmp_path / "elsewhere")
    before = contents(tmp_path / "elsewhere")
    (tmp_path / "dest").symlink_to(tmp_path / "elsewhere")
    run(source, tmp_path / "dest", force=True)
    assert not (tmp_path / "dest").is_symlink()
    assert contents(tmp_path / "elsewhere") == before
    assert named(tmp_path) == ["dest", "elsewhere", "other", "source"]


def test_a_model_that_is_being_removed_is_not_replaced_meanwhile(tmp_path: Path, source: Path) -> None:
    run(source, tmp_path / "dest")
    lock = lock_folder(tmp_path / "dest", "busy")
    with pytest.raises(BusyError, match="is being removed"):
        run(source, tmp_path / "dest", force=True)
    os.close(lock)
    total = sum(path.stat().st_size for path in (tmp_path / "dest").iterdir() if path.suffix != ".json")
    assert resumed_at(source, tmp_path / "dest", force=True) == total


def test_folders_change_places_in_one_step_or_it_says_that_they_cannot(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / name).touch()
    if not exchange(tmp_path / "a", tmp_path / "b"):
        pytest.skip("this file system cannot exchange two folders")
    assert [named(tmp_path / name) for name in ("a", "b")] == [["b"], ["a"]]
    with pytest.raises(FileNotFoundError):
        exchange(tmp_path / "a", tmp_path / "absent")


@pytest.mark.parametrize("code", [errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP, errno.EXDEV])
def test_a_file_system_that_cannot_exchange_is_served_all_the_same(tmp_path: Path, monkeypatch: Any, code: int) -> None:
    class Library:
        def __init__(self, name: None, use_errno: bool) -> None:
            self.renameat2 = lambda *names: -1

    monkeypatch.setattr(placing.ctypes, "CDLL", Library)
    monkeypatch.setattr(placing.ctypes, "get_errno", lambda: code)
    for name in ("new", "dest"):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"of {name}").touch()
    put_in_place(tmp_path / "new", tmp_path / "dest", replace=True)
    assert named(tmp_path) == ["dest"]
    assert named(tmp_path / "dest") == ["of new"]


# --- what kills leave ------------------------------------------------------------------------------------------------


def test_a_removal_sweeps_what_kills_left_in_the_store_and_among_its_downloads(tmp_path: Path, source: Path) -> None:
    store = Store(tmp_path / "store")
    for name in ("m", "kept", "hidden"):
        run(source, store.destination(name))
    store.destination("hidden").rename(store.root / ".hidden.replaced")
    left = [store.root / ".gone.removed", store.root / ".kept.replaced", store.root / ".downloads" / ".gone.removed"]
    for folder in left:
        (folder / "deep").mkdir(parents=True)
    store.remove("m")
    assert not any(folder.exists() for folder in left)
    assert store.names() == ["hidden", "kept"]
    open_model(store.get("hidden"))


def test_a_sweep_leaves_alone_what_is_being_replaced_at_this_moment(tmp_path: Path, source: Path) -> None:
    store = Store(tmp_path / "store")
    for name in ("m", "busy"):
        run(source, store.destination(name))
    store.destination("busy").rename(store.root / ".busy.replaced")
    lock = lock_folder(store.root / "busy.partial", "busy")
    store.remove("m")
    assert (store.root / ".busy.replaced").is_dir()
    assert not store.destination("busy").exists()
    os.close(lock)


def test_two_may_remove_one_folder_at_once(tmp_path: Path) -> None:
    for number in range(5):
        folder = tmp_path / str(number)
        for part in range(60):
            (folder / str(part)).mkdir(parents=True)
            (folder / str(part) / "file").touch()
        failures: list[Exception] = []

        def remove(path: Path = folder, failures: list[Exception] = failures) -> None:
            try:
                remove_tree(path)
            except Exception as error:
                failures.append(error)

        threads = [threading.Thread(target=remove) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failures == []
        assert not folder.exists()


def test_what_cannot_be_removed_is_named(tmp_path: Path, monkeypatch: Any) -> None:
    def fail(path: Path) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path / "deep"))

    (tmp_path / "m" / "deep").mkdir(parents=True)
    monkeypatch.setattr(placing.shutil, "rmtree", fail)
    with pytest.raises(FreetokenError, match=r"cannot be removed: Permission denied \(.*deep\)") as caught:
        take_away(tmp_path / "m")
    assert caught.value.remedy


def test_settling_touches_nothing_else(tmp_path: Path) -> None:
    for name in ("dest", ".dest.removed", ".other.removed", "dest.partial"):
        (tmp_path / name).mkdir()
    settle(tmp_path / "dest")
    assert named(tmp_path) == [".other.removed", "dest", "dest.partial"]
