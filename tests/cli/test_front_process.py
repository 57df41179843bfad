"""Finding and starting the background front: bounded, once, and with its reason when it fails."""

import fcntl
import os
import socket
import sys
import threading
from collections.abc import Mapping
from contextlib import closing
from typing import Any

import pytest

import freetoken_cli.front_process as front_process
from engine import __version__
from engine.base.config import Config
from engine.base.errors import BusyError, FreetokenError
from engine.base.paths import make_private_folder
from freetoken_cli.client import Front
from freetoken_cli.front_process import ensure_front, health, stop_front, stop_idle_front
from freetoken_cli.loaded import loaded_models
from freetoken_cli.model_chat import ModelChat
from freetoken_cli.unix_http import FrontGone, stream
from tests.cli.harness import FAKE_FRONT, FakeFront, Home


def test_it_is_started_once_and_found_again(home: Home) -> None:
    failures: list[BaseException] = []

    def start() -> None:
        try:
            ensure_front(home.paths, 300.0, FAKE_FRONT)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=start) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert health(home.paths.socket) is not None
    assert home.paths.runtime.stat().st_mode & 0o077 == 0
    assert stop_front(home.paths)
    assert not stop_front(home.paths)


def test_a_dead_socket_is_no_front(home: Home) -> None:
    home.paths.runtime.mkdir(mode=0o700)
    home.paths.socket.touch()
    assert health(home.paths.socket) is None
    ensure_front(home.paths, 300.0, FAKE_FRONT)
    assert stop_idle_front(home.paths)


def test_one_that_is_silent_is_not_said_to_be_gone(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """As one that Ctrl-Z has stopped: its models are loaded, and their files in use."""
    monkeypatch.setattr(front_process, "HEALTH_SECONDS", 0.1)
    home.paths.runtime.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(home.paths.socket))
        listener.listen(1)
        for ask in (lambda: loaded_models(home.paths.socket), lambda: stop_front(home.paths)):
            with pytest.raises(BusyError, match="has not answered"):
                ask()


def test_one_that_ends_at_once_tells_why(home: Home) -> None:
    command = (sys.executable, "-c", "import sys; print('the port is on fire', file=sys.stderr); sys.exit(3)")
    with pytest.raises(FreetokenError, match=r"exit code 3\): the port is on fire") as caught:
        ensure_front(home.paths, 300.0, command)
    assert str(home.paths.front_log) in caught.value.remedy


def test_a_front_in_a_folder_of_somebody_else_is_not_asked(
    home: Home, front: FakeFront, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert health(home.paths.socket) is not None
    mine = os.getuid()
    monkeypatch.setattr("os.getuid", lambda: mine + 1)
    assert health(home.paths.socket) is None
    with pytest.raises(FreetokenError, match="not a folder of this user"):
        ensure_front(home.paths, 300.0, FAKE_FRONT)


def test_a_state_folder_that_cannot_be_made_is_a_sentence(home: Home) -> None:
    home.paths.state.parent.write_text("in the way")
    with pytest.raises(FreetokenError, match="cannot be created") as caught:
        ensure_front(home.paths, 300.0, FAKE_FRONT)
    assert "XDG_STATE_HOME" in caught.value.remedy


def test_one_that_is_leaving_is_waited_for_and_followed(home: Home) -> None:
    make_private_folder(home.paths.runtime)
    with home.paths.lock.open("wb") as leaving:
        fcntl.flock(leaving, fcntl.LOCK_EX)
        timer = threading.Timer(0.5, lambda: fcntl.flock(leaving, fcntl.LOCK_UN))
        timer.start()
        ensure_front(home.paths, 300.0, FAKE_FRONT)
        timer.join()
    assert stop_front(home.paths)


def test_a_model_is_asked_for_again_when_its_front_leaves_before_it_hears(
    home: Home, front: FakeFront, monkeypatch: pytest.MonkeyPatch
) -> None:
    loads = []

    def load(self: Front, body: Mapping[str, Any]) -> Any:
        loads.append(body)
        if len(loads) == 1:
            raise FrontGone("gone") from ConnectionRefusedError()
        raise FrontGone("gone again") from ConnectionResetError()

    monkeypatch.setattr(Front, "load", load)
    with pytest.raises(FrontGone, match="gone again"):
        ModelChat(home.paths, "demo", Config()).load()
    assert len(loads) == 2


def test_one_that_never_answers_is_given_up(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(front_process, "START_SECONDS", 0.3)
    with pytest.raises(FreetokenError, match="did not answer within"):
        ensure_front(home.paths, 300.0, (sys.executable, "-c", "import time; time.sleep(60)"))


def test_only_the_end_of_this_start_is_shown(home: Home) -> None:
    home.paths.state.mkdir(parents=True)
    home.paths.front_log.write_text("an old complaint\n")
    with pytest.raises(FreetokenError) as caught:
        ensure_front(home.paths, 300.0, (sys.executable, "-c", "raise SystemExit(1)"))
    assert "complaint" not in caught.value.message


def test_a_long_log_makes_way(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(front_process, "LARGEST_LOG", 10)
    home.paths.state.mkdir(parents=True)
    home.paths.front_log.write_text("more than ten bytes")
    ensure_front(home.paths, 300.0, FAKE_FRONT)
    assert home.paths.front_log.stat().st_size == 0
    stop_front(home.paths)


def test_a_runtime_folder_of_somebody_else_is_refused(home: Home) -> None:
    elsewhere = home.folder / "elsewhere"
    elsewhere.mkdir()
    home.paths.runtime.symlink_to(elsewhere)
    with pytest.raises(FreetokenError, match="not a folder of this user"):
        ensure_front(home.paths, 300.0, FAKE_FRONT)


def test_serve_fails_where_another_front_of_the_store_has_just_started(home: Home) -> None:
    home.paths.runtime.mkdir(mode=0o700)
    with home.paths.lock.open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # it has the lock and does not answer yet
        done = home.run_here("serve", "--port", "0")
    assert (done.returncode, done.stdout) == (1, "")
    assert "Error: Another server of this store is running." in done.stderr


def test_a_busy_front_is_left_alone(home: Home, front: FakeFront, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(front_process, "call", lambda *args, **more: {"busy": ["demo"], "status": "ok"})
    assert not stop_idle_front(home.paths)
    assert front.process.poll() is None


def test_a_serving_front_is_not_stopped_for_another(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = {"status": "ok", "version": "1", "host": "127.0.0.1", "port": 8642}
    monkeypatch.setattr(front_process, "call", lambda *args, **more: answer)
    with pytest.raises(BusyError, match=r"at http://127\.0\.0\.1:8642/v1"):
        stop_idle_front(home.paths)


def test_an_idle_front_of_another_release_is_replaced(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_VERSION", "0.0.1")
    ensure_front(home.paths, 300.0, FAKE_FRONT)
    old = health(home.paths.socket)
    monkeypatch.delenv("FAKE_VERSION")
    ensure_front(home.paths, 300.0, FAKE_FRONT)
    new = health(home.paths.socket)
    assert old is not None
    assert new is not None
    assert (old.version, new.version) == ("0.0.1", __version__)
    stop_front(home.paths)


def test_a_busy_front_of_another_release_is_told_about(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_VERSION", "0.0.1")
    ensure_front(home.paths, 300.0, FAKE_FRONT)
    body = {"model": "demo", "messages": [{"role": "user", "content": "slow"}]}
    with closing(stream(home.paths.socket, "/v1/chat/completions", body)) as events:
        next(events)
        with pytest.raises(BusyError, match=r"version 0\.0\.1 and is answering"):
            ensure_front(home.paths, 300.0, FAKE_FRONT)
    stop_front(home.paths)
