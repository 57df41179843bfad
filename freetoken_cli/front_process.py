"""The background front of a store: find the one that runs, or start one and wait until it answers."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine import __version__
from engine.base.child import child_environment
from engine.base.errors import BusyError, FreetokenError
from engine.base.paths import Paths, make_private_folder
from freetoken_cli.unix_http import FrontGone, call

# `-P` keeps the current folder off the path, so that a user's own folder named `engine` is not taken for ours.
FRONT_COMMAND = (sys.executable, "-P", "-m", "engine.front")
START_SECONDS = 20.0
STOP_SECONDS = 20.0
POLL_SECONDS = 0.02
HEALTH_SECONDS = 5.0
LARGEST_LOG = 2**20


@dataclass(frozen=True)
class Health:
    """What a front says about itself; `port` is its TCP port, None when it has none."""

    version: str
    host: str | None = None
    port: int | None = None


def health(socket: Path) -> Health | None:
    """The running front's health; None when none listens at `socket`. BusyError for one that does, and is silent."""
    try:
        answer = call(socket, "GET", "/health", timeout=HEALTH_SECONDS)
    except FreetokenError as error:
        if isinstance(error.__cause__, TimeoutError | BlockingIOError):
            raise BusyError(
                f"The background server has not answered for {HEALTH_SECONDS:g} s.",
                "If Ctrl-Z stopped it, let it go on with fg; else end its process.",
            ) from error
        return None
    return Health(str(answer.get("version", "")), answer.get("host"), answer.get("port"))


def ensure_front(
    paths: Paths,
    keep_alive: float,
    command: Sequence[str] = FRONT_COMMAND,
    **network: Any,
) -> None:
    """Return when a front of this store answers; start one if there is none, on TCP where `network` says so.

    Raises FreetokenError with the end of the front's log when it does not come up within `START_SECONDS`.
    """
    if _usable(paths):
        return
    make_private_folder(paths.runtime)
    with _start_lock(paths):
        if not _usable(paths):
            _start(paths, front_config(paths, keep_alive, **network), command)


def _usable(paths: Paths) -> bool:
    """Whether a front answers that is of our release; an idle one that an older release left is ended."""
    found = health(paths.socket)
    if found is None:
        return False
    if found.version == __version__ or found.port is not None:
        return True
    if not stop_idle_front(paths):
        raise BusyError(
            f"The background server is of version {found.version} and is answering somebody; this is {__version__}.",
            "Try again when it is done, or end it: freetoken stop --all",
        )
    return False


def front_config(paths: Paths, keep_alive: float, **more: Any) -> dict[str, Any]:
    """The argument of `engine.front`; `more` adds what a front that listens on TCP needs."""
    return {
        "socket": str(paths.socket),
        "lock": str(paths.lock),
        "store": str(paths.store),
        "profile": str(paths.profile),
        "keep_alive": None if keep_alive == float("inf") else keep_alive,
        **more,
    }


@contextlib.contextmanager
def _start_lock(paths: Paths) -> Iterator[None]:
    """One starter at a time; the second finds the first one's front when it gets the lock."""
    name = paths.runtime / f"start-{paths.store_key}.lock"
    deadline = time.monotonic() + START_SECONDS
    with name.open("wb") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise BusyError(
                        "Another command has been starting the background server for too long.",
                        f"See {paths.front_log}.",
                    ) from None
                time.sleep(POLL_SECONDS)
        yield


def _start(paths: Paths, config: Mapping[str, Any], command: Sequence[str]) -> None:
    try:
        paths.state.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FreetokenError(
            f"The folder {paths.state} cannot be created: {error.strerror}.",
            "It is for logs. Set XDG_STATE_HOME to a folder that you can write to.",
        ) from error
    if paths.front_log.exists() and paths.front_log.stat().st_size > LARGEST_LOG:
        paths.front_log.replace(paths.front_log.with_suffix(".log.1"))
    start = paths.front_log.stat().st_size if paths.front_log.exists() else 0
    process = _spawn(paths, config, command)
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        with contextlib.suppress(BusyError):
            if health(paths.socket) is not None:
                return
        code = process.poll()
        if code == 0 and not _locked(paths.lock):
            # It made way for a front that was not about to answer but about to leave.
            process = _spawn(paths, config, command)
        elif code not in (None, 0):
            raise FreetokenError(
                f"The background server ended at once (exit code {code}){_log_end(paths.front_log, start)}",
                f"Its log is {paths.front_log}.",
            )
        time.sleep(POLL_SECONDS)
    process.terminate()
    raise FreetokenError(
        f"The background server did not answer within {START_SECONDS:g} s{_log_end(paths.front_log, start)}",
        f"Its log is {paths.front_log}.",
    )


def _spawn(paths: Paths, config: Mapping[str, Any], command: Sequence[str]) -> subprocess.Popen[bytes]:
    with paths.front_log.open("ab") as log:
        # A session of its own: Ctrl-C in this terminal, and its end, do not reach the front.
        return subprocess.Popen(
            [*command, json.dumps(config)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            cwd="/",
            env=child_environment(os.environ),
            close_fds=True,
        )


def _log_end(log: Path, start: int) -> str:
    """ ": the last line written after byte `start`", or a full stop when there is none."""
    with log.open("rb") as file:
        file.seek(start)
        lines = [line for line in file.read().decode(errors="replace").splitlines() if line.strip()]
    return f": {lines[-1].strip()}" if lines else "."


def stop_front(paths: Paths) -> bool:
    """Have the front stop its workers and leave; False when none runs. Waits until it is gone."""
    if health(paths.socket) is None:
        return False
    shut_down(paths)
    _wait_until_gone(paths)
    return True


def stop_idle_front(paths: Paths) -> bool:
    """Have the front leave unless it answers somebody; whether the store has no front now.

    Raises BusyError for one that was started to serve others.
    """
    found = health(paths.socket)
    if found is None:
        return True
    if found.port is not None:
        raise BusyError(
            f"This store is being served already, at http://{found.host}:{found.port}/v1.",
            "Use that one, or end it: freetoken stop --all",
        )
    if shut_down(paths, if_idle=True).get("busy"):
        return False
    _wait_until_gone(paths)
    return True


def shut_down(paths: Paths, if_idle: bool = False) -> Mapping[str, Any]:
    """Ask the front to leave; its answer. One that is gone already has left."""
    try:
        return call(paths.socket, "POST", "/control/shutdown", {"if_idle": True} if if_idle else {}, STOP_SECONDS)
    except FrontGone:
        return {}


def _wait_until_gone(paths: Paths) -> None:
    deadline = time.monotonic() + STOP_SECONDS
    while _locked(paths.lock):
        if time.monotonic() > deadline:
            raise BusyError("The background server does not leave.", f"Its log is {paths.front_log}.")
        time.sleep(POLL_SECONDS)


def _locked(lock: Path) -> bool:
    """Whether a living front holds `lock`."""
    try:
        descriptor = os.open(lock, os.O_RDWR)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False
