"""Starting an agent beside a server that it can reach, and letting that server go when the agent ends."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from engine.base.config import Config
from engine.base.errors import BusyError, NotFoundError, UsageError
from engine.base.paths import Paths
from freetoken_cli.agents import NO_KEY, Agent, Server, command_of, environment_of, file_of, variables_of
from freetoken_cli.client import Front, load_request
from freetoken_cli.front_process import ensure_front, health, shut_down, stop_idle_front
from freetoken_cli.output import Output
from freetoken_cli.serving import base_url


def dry_run(agent: Agent, server: Server, arguments: Sequence[str], output: Output) -> None:
    """Print the command with the variables that it gets; nothing is started."""
    variables = variables_of(agent, server)
    command = command_of(agent, server, arguments)
    file = file_of(agent, server)
    if output.as_json:
        files = {} if file is None else {file[0]: json.loads(file[1])}
        output.document({"environment": variables, "files": files, "command": command})
        return
    for name, value in variables.items():
        output.line(f"export {name}={shlex.quote(value)}")
    if file is not None:
        name, content = file
        output.line(f"export {name}=$(mktemp)")
        output.line(f'printf %s {shlex.quote(content)} > "${name}"')
    output.line(shlex.join(command))


def launch(paths: Paths, agent: Agent, model: str, config: Config, arguments: Sequence[str], output: Output) -> int:
    """Run an agent against `model` until it ends; its exit code.

    Raises NotFoundError where the program is not installed, UsageError where the server wants another key.
    """
    if shutil.which(agent.program) is None:
        raise NotFoundError(f"There is no program {agent.program}.", f"Install it: {agent.install}")
    with reachable(paths, config) as root:
        _check_key(root, config.api_key)
        kept = replace(config, keep_alive=float("inf"), explicit=config.explicit | {"keep_alive"})
        state, answer = Front(paths.socket).load(load_request(model, kept))
        for note in answer["notes"]:
            output.warn(note)
        server = Server(root, state.name, config.api_key or NO_KEY, state.context)
        output.note(f"{agent.name} asks {state.name} at {root}; its context is {state.context} tokens long.")
        with file_written(agent, server) as named:
            environment = {**environment_of(agent, server, os.environ), **named}
            return _run(command_of(agent, server, arguments), environment)


def _check_key(root: str, key: str | None) -> None:
    """Raises UsageError unless the server at `root` lets in whoever sends `key`."""
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        direct.open(urllib.request.Request(f"{root}/v1/models", headers=headers), timeout=10).close()
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == 401:
            raise UsageError(
                f"The server at {root} wants {'another' if key else 'a'} key.",
                "Give the one that it was started with: FREETOKEN_API_KEY=secret (or --api-key).",
            ) from None


def served_at(paths: Paths) -> str | None:
    """The address at which the store is being served on TCP, without `/v1`; None where it is not."""
    found = health(paths.socket)
    if found is None or found.port is None:
        return None
    return base_url(found.host or "127.0.0.1", found.port).removesuffix("/v1")


@contextmanager
def reachable(paths: Paths, config: Config) -> Iterator[str]:
    """The address of a server of this store on TCP, without `/v1`. One that was started for it leaves afterwards.

    Raises BusyError while a background server without a port answers somebody.
    """
    root = served_at(paths)
    started = root is None
    if started:
        if not stop_idle_front(paths):
            raise BusyError("The background server is answering somebody.", "Try again when it is done.")
        network: dict[str, Any] = {"host": "127.0.0.1", "port": 0, "api_key": config.api_key, "idle_exit": None}
        ensure_front(paths, config.keep_alive, **network)
        root = served_at(paths)
    if root is None:
        raise BusyError("The background server has left.", "Try again.")
    try:
        yield root
    finally:
        if started:
            shut_down(paths, if_idle=True)


@contextmanager
def file_written(agent: Agent, server: Server) -> Iterator[dict[str, str]]:
    """The variable that names a file for an agent, if it takes one; it is there until the block is left."""
    file = file_of(agent, server)
    if file is None:
        yield {}
        return
    name, content = file
    with tempfile.NamedTemporaryFile("w", prefix="freetoken-", suffix=".json", encoding="utf-8") as written:
        written.write(content)
        written.flush()
        yield {name: written.name}


def _run(command: Sequence[str], environment: dict[str, str]) -> int:
    """Run a program in the foreground, which gets the keyboard's signals itself; the exit code as shells tell it."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        code = subprocess.run(command, env=environment, check=False).returncode
    finally:
        signal.signal(signal.SIGINT, before)
    return 128 - code if code < 0 else code
