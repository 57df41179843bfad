"""The life of a worker process: load, say so, take steps until the front has had enough."""

from __future__ import annotations

import os
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from dataclasses import replace

from engine.base.config import hidden_settings
from engine.base.errors import FreetokenError, NoRoomError
from engine.files.untrusted import resource_error
from engine.worker.engine import Engine
from engine.worker.link import Closed, Link, die_with_parent
from engine.worker.loaded import LoadedModel
from engine.worker.protocol import LINK_FD, Failed, Stop, WorkerConfig

Loader = Callable[[WorkerConfig], LoadedModel]


def main(arguments: list[str], load: Loader) -> int:
    """Run a worker whose link is its standard input. `arguments` holds the configuration; `load` opens the model."""
    config = WorkerConfig.from_json(arguments[0])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to the whole terminal; the front decides what it means
    die_with_parent(config.parent)
    link = Link(socket.socket(fileno=os.dup(LINK_FD)))
    # Whatever prints by accident must meet neither the link nor the result of a command.
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, LINK_FD)
    os.close(null)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    try:
        return _serve(config, link, load)
    except Closed as end:
        print(f"A worker leaves: {end}.", file=sys.stderr)
        return 0


def _serve(config: WorkerConfig, link: Link, load: Loader) -> int:
    try:
        engine = Engine(load(replace(config, **hidden_settings(os.environ))))
    except FreetokenError as error:
        link.send([Failed.of(error)])
        return error.exit_code
    except Exception as error:
        traceback.print_exc()
        failure = _told(f"{config.model} cannot be loaded", error)
        link.send([Failed.of(failure)])
        return failure.exit_code
    link.send([engine.ready()])
    try:
        while True:
            for message in link.receive(wait=not engine.busy, seconds=engine.idle_seconds):
                if isinstance(message, Stop):
                    return 0
                link.send(engine.handle(message))
            link.send(engine.admit())
            if engine.busy:
                link.send(engine.step())
                link.send(engine.chore())
            link.send(engine.watch())
    finally:
        engine.close()


def _told(what: str, error: Exception) -> FreetokenError:
    """What the user is to know of a failure that no room of ours foresaw."""
    if isinstance(error, MemoryError):
        return NoRoomError(f"{what}: memory ran out.", "Close other programs, or ask for less: --context, --kv.")
    if isinstance(error, OSError):
        where = f" ({error.filename})" if error.filename else ""
        return resource_error(error, what) or FreetokenError(f"{what}: {error.strerror or error}{where}.")
    return FreetokenError(f"{what}: {error!r}.", "Its log says more.")
