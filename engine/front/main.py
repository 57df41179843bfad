"""The life of a front: take the lock, listen, serve until told to stop, leave nothing behind."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from engine.base.errors import FreetokenError
from engine.front.config import FrontConfig
from engine.front.wire.limits import Limits, within_descriptors
from engine.front.wire.listen import BACKLOG, listen_private, listen_tcp, take_lock
from engine.front.workers.process import WORKER_COMMAND

if TYPE_CHECKING:
    import uvicorn
    from starlette.types import ASGIApp

    from engine.front.workers.supervisor import Supervisor

DRAIN_SECONDS = 2.0  # what answers in progress get when the front is told to stop
LAST_WORDS_SECONDS = 1.0  # what clients get then to read how it ended
IDLE_CHECK_SECONDS = 1.0


def main(arguments: Sequence[str], worker_command: Sequence[str] = WORKER_COMMAND) -> int:
    """Run a front; the exit code. The one argument is a JSON object, see docs/api.md."""
    try:
        if not run_front(arguments[0] if arguments else "", worker_command):
            print("Another server of this store is running.", file=sys.stderr)
    except FreetokenError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


def run_front(argument: str, worker_command: Sequence[str] = WORKER_COMMAND) -> bool:
    """Serve until told to stop; False where the store has another front. Raises FreetokenError."""
    logging.getLogger("asyncio").setLevel(logging.ERROR)  # it warns of clients that leave in the middle of an answer
    config = FrontConfig.from_json(argument)
    config = replace(config, limits=within_descriptors(config.limits))
    lock = take_lock(config.lock)
    if lock is None:
        return False
    with contextlib.ExitStack() as stack:
        private = stack.enter_context(listen_private(config.socket))
        stack.callback(config.socket.unlink, missing_ok=True)
        public = None
        if config.port is not None:
            public = stack.enter_context(listen_tcp(config.host, config.port))
        asyncio.run(_serve(config, private, public, worker_command))
    return True


async def _serve(
    config: FrontConfig, private: socket.socket, public: socket.socket | None, worker_command: Sequence[str]
) -> None:
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, stopped.set)
    # Imported here: a front that finds the lock or the port taken should say so at once.
    from engine.files.store import Store
    from engine.front.app import private_app, public_app
    from engine.front.wire.connection import notice_lost_peers
    from engine.front.workers.supervisor import Supervisor

    supervisor = Supervisor(Store(config.store), config.keep_alive, worker_command, config.profile)
    address = None if public is None else public.getsockname()[:2]
    servers = [_server(private_app(supervisor, config.limits, address, stopped.set), config.limits)]
    listeners = [private]
    if public is not None:
        notice_lost_peers(public, config.limits)
        servers.append(_server(public_app(supervisor, config), config.limits))
        listeners.append(public)
    serving = [
        asyncio.create_task(server.serve(sockets=[listener]))
        for server, listener in zip(servers, listeners, strict=True)
    ]
    idle = asyncio.create_task(_stop_when_idle(supervisor, config.idle_exit, stopped))
    await asyncio.wait({asyncio.create_task(stopped.wait()), *serving}, return_when=asyncio.FIRST_COMPLETED)
    idle.cancel()
    for server in servers:
        server.should_exit = True  # nobody new is let in; answers in progress go on
    await asyncio.wait(serving, timeout=DRAIN_SECONDS)
    # Answers that are still in progress end with an error event, then their connections close.
    await supervisor.close()
    await asyncio.wait(serving, timeout=LAST_WORDS_SECONDS)
    for server in servers:
        for connection in tuple(server.server_state.connections):
            connection.transport.abort()  # of a client that does not read
    await asyncio.gather(*serving)


async def _stop_when_idle(supervisor: Supervisor, most: float, stopped: asyncio.Event) -> None:
    """Set `stopped` once the front has had nothing to do for `most` seconds."""
    while supervisor.idle_seconds < most:
        await asyncio.sleep(min(IDLE_CHECK_SECONDS, most))
    stopped.set()


def _server(app: ASGIApp, limits: Limits) -> uvicorn.Server:
    """A server that leaves signals to us: two of them run side by side."""
    import uvicorn

    from engine.front.wire.connection import connections_within

    class Server(uvicorn.Server):
        @contextlib.contextmanager
        def capture_signals(self) -> Iterator[None]:
            yield

        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            for listener in sockets or ():
                listener.listen(BACKLOG)  # asyncio sets it to what it accepts at once, which is another matter

    return Server(
        uvicorn.Config(
            app,
            http=connections_within(limits),
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            log_level="error",  # what strangers send wrong is theirs to know, and would fill the log
            server_header=False,
            proxy_headers=False,
            backlog=limits.accepted_at_once,
            timeout_keep_alive=limits.idle_seconds,
            timeout_graceful_shutdown=10,  # it never comes to that: `_serve` is done earlier
        )
    )
