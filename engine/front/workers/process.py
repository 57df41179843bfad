"""Starting a worker process. Nothing heavy is imported: a front reads this before it knows whether it may run."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace

from engine.base.child import child_environment
from engine.worker.protocol import WorkerConfig

WORKER_COMMAND = (sys.executable, "-P", "-m", "engine.worker")


@dataclass(frozen=True)
class WorkerProcess:
    """A child and our end of its link."""

    child: subprocess.Popen[bytes]
    connection: socket.socket


def spawn(config: WorkerConfig, command: Sequence[str]) -> WorkerProcess:
    """Start a worker. Call it on the main thread: the kernel ends the child with the thread that made it."""
    ours, theirs = socket.socketpair()
    with theirs:
        child = subprocess.Popen(
            [*command, replace(config, parent=os.getpid()).to_json()],
            stdin=theirs.fileno(),
            stdout=sys.stderr.fileno(),
            env=child_environment(os.environ),
        )
    ours.setblocking(False)
    return WorkerProcess(child, ours)


def ending(code: int) -> str:
    """How a child that ended with `code` is described."""
    if code >= 0:
        return f"ended with code {code}"
    if -code == signal.SIGKILL:
        return "was killed (perhaps the machine ran out of memory)"
    if -code == signal.SIGBUS:
        return "could not read its model (a file of it was cut short meanwhile, or the disk failed)"
    return f"was ended by {signal.Signals(-code).name}"
