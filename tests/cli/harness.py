"""The program as a process in a home of its own, and the fake front beside it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from io import BytesIO, TextIOWrapper
from pathlib import Path
from typing import Any
from unittest import mock

import psutil

from engine.base.paths import Paths

ROOT = Path(__file__).parents[2]
PROGRAM = (sys.executable, "-P", "-m", "freetoken_cli")
FAKE_FRONT = (sys.executable, str(Path(__file__).with_name("fake_front.py")))


@dataclass
class Home:
    """A user's folders and environment, away from the real ones."""

    folder: Path
    runtime: Path
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def paths(self) -> Paths:
        """What the program will take for its paths in this home."""
        return Paths(
            store=self.folder / "models",
            config=self.folder / "config/freetoken/config.toml",
            state=self.folder / "state/freetoken",
            runtime=self.runtime / "freetoken",
        )

    def run(self, *args: str, stdin: str | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run `freetoken ARGS`. Without `stdin` it reads from the null device."""
        return subprocess.run(
            [*PROGRAM, *args],
            input=stdin,
            stdin=subprocess.DEVNULL if stdin is None else None,
            capture_output=True,
            text=True,
            timeout=60,
            env={**self.environment, **environment},
            cwd=self.folder,
        )

    def run_here(self, *args: str, stdin: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
        """Run `freetoken ARGS` in this very process, which takes a tenth of the time.

        For what has been imported already it is too late to read the environment, as huggingface_hub does.
        """
        from freetoken_cli.program import run

        out, err = (TextIOWrapper(BytesIO(), "utf-8") for _ in range(2))
        with ExitStack() as stack:
            stack.enter_context(mock.patch.dict(os.environ, {**self.environment, **environment}, clear=True))
            stack.enter_context(contextlib.chdir(self.folder))
            stack.callback(signal.signal, signal.SIGTERM, signal.getsignal(signal.SIGTERM))
            given = stack.enter_context(tempfile.TemporaryFile("w+", encoding="utf-8"))
            given.write(stdin)
            given.seek(0)
            stack.enter_context(mock.patch.multiple(sys, stdin=given, stdout=out, stderr=err))
            try:
                code = run(args)
            except SystemExit as left:  # the parser's completions
                code = int(left.code or 0)
        texts = (stream.buffer.getvalue().decode() for stream in (out, err))  # type: ignore[attr-defined]
        return subprocess.CompletedProcess(args, code, *texts)

    def start(self, *args: str, **kwargs: Any) -> subprocess.Popen[str]:
        """Start `freetoken ARGS` with pipes, for tests that send signals."""
        return self.start_python(*PROGRAM[1:], *args, **kwargs)

    def start_python(self, *args: str, **kwargs: Any) -> subprocess.Popen[str]:
        """Start this Python with pipes; it hears Ctrl-C."""
        streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        command = [sys.executable, *args]
        return subprocess.Popen(
            command, text=True, env=self.environment, cwd=self.folder, preexec_fn=hear_ctrl_c, **{**streams, **kwargs}
        )


def hear_ctrl_c() -> None:
    """For a child's start: tests that run in the background are started with Ctrl-C ignored, and hand that on."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@dataclass
class FakeFront:
    """A running fake front and what it was asked."""

    process: subprocess.Popen[bytes]
    log: Path

    def requests(self, path: str = "") -> list[dict[str, Any]]:
        """Bodies of the requests to `path`, or every request."""
        if not self.log.exists():
            return []
        entries = [json.loads(line) for line in self.log.read_text().splitlines()]
        return [entry["body"] for entry in entries if entry["path"] == path] if path else entries


def wait_for(what: Callable[[], Any], seconds: float = 30.0) -> Any:
    """The first true value of `what`, or a failure after `seconds`."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        value = what()
        if value:
            return value
        time.sleep(0.02)
    raise AssertionError(f"nothing happened within {seconds:g} s")


def ours(home: Home, module: str = "engine.") -> list[psutil.Process]:
    """Living processes of `module` that serve this home: they were started with its paths."""
    found = []
    for process in psutil.process_iter(["cmdline", "status"]):
        line = " ".join(process.info["cmdline"] or ())
        alive = process.info["status"] != psutil.STATUS_ZOMBIE
        if alive and module in line and (str(home.folder) in line or str(home.runtime) in line):
            found.append(process)
    return found
