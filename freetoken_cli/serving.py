"""The front in the foreground: made in this process, announced when it answers and its models are loaded."""

from __future__ import annotations

import json
import shlex
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from engine.base.config import Config
from engine.base.errors import BusyError, FreetokenError
from engine.base.paths import Paths, make_private_folder
from freetoken_cli.client import Front, in_force, load_request
from freetoken_cli.front_process import POLL_SECONDS, Health, front_config, health, shut_down, stop_idle_front
from freetoken_cli.output import Output


def serve(paths: Paths, models: Sequence[str], config: Config, output: Output) -> None:
    """Serve until a signal ends it. A background front of the same store makes way if it is idle.

    Raises BusyError for one that is not, or that another process starts at the same time.
    """
    from engine.front.main import run_front

    make_private_folder(paths.runtime)
    if not stop_idle_front(paths):
        raise BusyError("A server of this store is answering somebody.", "End it first: freetoken stop --all")
    announcer = Announcer(paths, models, config, output)
    announcer.start()
    names = ("host", "port", "api_key", "allowed_hosts", "allowed_origins")
    network = {name: getattr(config, name) for name in names} | {"idle_exit": None}
    # The front must have the main thread: it takes the signals, and its workers die with the thread that made them.
    try:
        served = run_front(json.dumps(front_config(paths, config.keep_alive, **network)))
    finally:
        announcer.finish()
    if not served:
        raise BusyError("Another server of this store is running.", "Use that one, or end it: freetoken stop --all")
    if announcer.failure is not None:
        raise announcer.failure


class Announcer(threading.Thread):
    """Waits until the front of this process answers, loads the models, and prints where it is.

    `failure` is why that did not come about; the front is then told to leave.
    """

    def __init__(self, paths: Paths, models: Sequence[str], config: Config, output: Output) -> None:
        super().__init__(daemon=True)
        self._paths = paths
        self._models = models
        self._config = config
        self._output = output
        self._left = threading.Event()
        self.failure: FreetokenError | None = None

    def finish(self) -> None:
        """The front has left: stop waiting for it."""
        self._left.set()
        self.join(timeout=1.0)

    def run(self) -> None:
        found = self._wait()
        if found is None:
            return
        try:
            for model in self._models:
                self._load(model)
        except FreetokenError as error:
            if not self._left.is_set():
                self.failure = error
                shut_down(self._paths)
            return
        self._announce(found)

    def _wait(self) -> Health | None:
        while not self._left.is_set():
            with suppress(BusyError):
                if found := health(self._paths.socket):
                    return found
            time.sleep(POLL_SECONDS)
        return None

    def _load(self, model: str) -> None:
        config = self._config
        if "keep_alive" not in config.explicit:
            config = replace(config, keep_alive=float("inf"), explicit=config.explicit | {"keep_alive"})
        state, answer = Front(self._paths.socket).load(load_request(model, config))
        for note in answer["notes"]:
            self._output.warn(note)
        self._output.note(in_force(state))

    def _announce(self, found: Health) -> None:
        url = base_url(self._config.host, found.port or self._config.port)
        if self._output.as_json:
            self._output.document({"url": url, "models": list(self._models)})
        elif self._output.quiet:
            self._output.line(url)
        else:
            self._output.line(f"Serving {', '.join(self._models) or 'every model of the store'} at {url}")
            self._output.line(curl_line(url, self._models[0] if self._models else "MODEL", key_text(self._config)))
            self._output.note(f"A page to chat, and to watch the machine: {url.removesuffix('v1')}")
        self._output.stdout.flush()


def base_url(host: str, port: int) -> str:
    """The address that clients take as their base URL; a host that means all addresses is reached by loopback."""
    host = host.strip("[]")
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://{f'[{host}]' if ':' in host else host}:{port}/v1"


def key_text(config: Config) -> str:
    """How the request shows the key: by its variable, unless it was typed on the command line anyway."""
    if config.api_key is None:
        return ""
    return shlex.quote(config.api_key) if "api_key" in config.explicit else '"$FREETOKEN_API_KEY"'


def curl_line(url: str, model: str, key: str) -> str:
    """A request that can be pasted into a shell."""
    body = json.dumps({"model": model, "messages": [{"role": "user", "content": "Hello"}]})
    authorization = f"-H 'Authorization: Bearer '{key} " if key else ""
    return f"curl {url}/chat/completions {authorization}-H 'Content-Type: application/json' -d {shlex.quote(body)}"
