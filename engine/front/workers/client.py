"""The front's side of one worker: requests out, streams of messages back."""

from __future__ import annotations

import asyncio
import itertools
import subprocess
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from typing import TypeVar

from engine.base.errors import FreetokenError
from engine.base.units import KvBudget
from engine.front.workers.process import WorkerProcess, ending
from engine.worker.protocol import (
    PROTOCOL_VERSION,
    Cancel,
    ContextLoaded,
    ContextSaved,
    Done,
    Failed,
    Generate,
    GetStats,
    LoadContext,
    Message,
    Progress,
    Ready,
    Resize,
    Resized,
    SaveContext,
    Stats,
    Stop,
    Tokens,
)
from engine.worker.wire import LineBuffer, decode, encode

STOP_SECONDS = 2.0  # a worker that does not leave within this is killed

# Another release can be installed while a front runs, and its next worker is of that one.
_STRANGER = Failed(
    "FreetokenError",
    "The model's worker is of another release than the server that started it.",
    "End the server and run the command again: freetoken stop --all",
)

Answer = TypeVar("Answer", bound=Message)


class WorkerClient(asyncio.Protocol):
    """One worker process. When it ends, whatever still waits for it gets an error that says how."""

    def __init__(
        self,
        process: WorkerProcess,
        on_end: Callable[[WorkerClient], None],
        on_moved: Callable[[WorkerClient, Resized], None],
    ) -> None:
        self._child = process.child
        self._on_end = on_end
        self._on_moved = on_moved
        self._lines = LineBuffer()
        self._numbers = itertools.count(1)
        self._streams: dict[int, asyncio.Queue[Message]] = {}
        self._tickets: dict[int, asyncio.Future[Message]] = {}
        self._ready: asyncio.Future[Ready] = asyncio.get_running_loop().create_future()
        self._ended = asyncio.Event()
        self._transport: asyncio.Transport | None = None
        self._reaping: asyncio.Task[None] | None = None
        self._stopping = False

    @staticmethod
    async def connect(
        process: WorkerProcess,
        on_end: Callable[[WorkerClient], None],
        on_moved: Callable[[WorkerClient, Resized], None],
    ) -> WorkerClient:
        """Take over a worker that was started.

        `on_end` is called with the client once it has ended, `on_moved` when it has moved memory by itself.
        """
        loop = asyncio.get_running_loop()
        _, client = await loop.create_connection(
            lambda: WorkerClient(process, on_end, on_moved), sock=process.connection
        )
        return client

    @property
    def alive(self) -> bool:
        """Whether requests can still be sent."""
        return self._reaping is None and not self._stopping

    @property
    def crashed(self) -> bool:
        """Whether it has ended although nobody asked for that and it did not refuse."""
        return self._ended.is_set() and not self._stopping

    async def ready(self) -> Ready:
        """What the worker said when its model was loaded, or the error that kept it from loading."""
        return await asyncio.shield(self._ready)

    async def generate(self, make: Callable[[int], Generate]) -> AsyncGenerator[Progress | Tokens | Done, None]:
        """The messages of one request, from Progress (accepted) to Done. Leaving early cancels it.

        `make` writes the request under the number that it is given.

        Close the iterator (`aclosing`), or the request runs until it is collected as garbage.
        """
        self._check_alive()
        number = next(self._numbers)
        queue: asyncio.Queue[Message] = asyncio.Queue()
        self._streams[number] = queue
        finished = False
        try:
            self._send(make(number))
            while not finished:
                message = await queue.get()
                if isinstance(message, Failed):
                    finished = True
                    raise message.exception()
                finished = isinstance(message, Done)
                assert isinstance(message, Progress | Tokens | Done)
                yield message
        finally:
            del self._streams[number]
            if not finished:
                self._send(Cancel(number))

    async def resize(self, kv: KvBudget | None, experts: str | None) -> Resized:
        """Change the budgets between two steps."""
        return await self._ask(lambda ticket: Resize(ticket, kv, experts), Resized)

    async def stats(self) -> Stats:
        """The worker's counters."""
        return await self._ask(GetStats, Stats)

    async def save_context(self, path: str, tokens: tuple[int, ...]) -> ContextSaved:
        """Write what context memory knows of `tokens` to a file, a little between any two steps.

        Cancelled, it leaves no file, or the one that was there; so it is with `load_context` and context memory.
        """
        return await self._ask(lambda ticket: SaveContext(ticket, path, tokens), ContextSaved)

    async def load_context(self, path: str) -> ContextLoaded:
        """Take such a file into context memory, likewise."""
        return await self._ask(lambda ticket: LoadContext(ticket, path), ContextLoaded)

    async def stop(self) -> None:
        """Have the worker leave, and wait until the process is gone. Requests in progress end with an error."""
        self._stopping = True
        self._send(Stop())
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._ended.wait(), STOP_SECONDS)
        if self._child.poll() is None:
            self._child.kill()
        await self._ended.wait()

    async def abort(self) -> None:
        """End a worker that has nothing to finish, at once."""
        self._stopping = True
        self._child.kill()
        await self._ended.wait()

    async def wait_ended(self) -> None:
        """Wait until the process is gone and everybody who waited for it has been told."""
        await self._ended.wait()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        for line in self._lines.feed(data):
            try:
                self._dispatch(decode(line))
            except ValueError:
                if not self._ready.done():
                    self._refuse(_STRANGER)
                self._child.kill()  # a worker that talks nonsense cannot be trusted with the rest
                return

    def connection_lost(self, exc: Exception | None) -> None:
        self._reaping = asyncio.get_running_loop().create_task(self._reap())

    def _dispatch(self, message: Message) -> None:
        if isinstance(message, Ready):
            if message.version != PROTOCOL_VERSION:
                raise ValueError(f"a worker of protocol {message.version}")
            if not self._ready.done():
                self._ready.set_result(message)
        elif isinstance(message, Failed) and message.request is None and message.ticket is None:
            self._refuse(message)
        elif isinstance(message, Resized) and message.ticket == 0:
            self._on_moved(self, message)
        elif isinstance(message, Stats | Resized | ContextSaved | ContextLoaded) or (
            isinstance(message, Failed) and message.ticket is not None
        ):
            assert message.ticket is not None
            waiter = self._tickets.pop(message.ticket, None)
            if waiter is not None and not waiter.done():
                waiter.set_result(message)
        elif isinstance(message, Progress | Tokens | Done | Failed):
            assert message.request is not None
            queue = self._streams.get(message.request)  # None: cancelled while this was on its way
            if queue is not None:
                queue.put_nowait(message)

    def _refuse(self, failure: Failed) -> None:
        """The model is not going to be loaded, and whoever waits for it hears why."""
        self._stopping = True
        self._fail_ready(failure)

    def _fail_ready(self, failure: Failed) -> None:
        if not self._ready.done():
            self._ready.set_exception(failure.exception())
            self._ready.exception()  # nobody may be waiting, and that is fine

    async def _ask(self, make: Callable[[int], Message], kind: type[Answer]) -> Answer:
        self._check_alive()
        ticket = next(self._numbers)
        waiter: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self._tickets[ticket] = waiter
        try:
            self._send(make(ticket))
            message = await waiter
        except asyncio.CancelledError:
            self._send(Cancel(ticket))
            raise
        finally:
            self._tickets.pop(ticket, None)
        if isinstance(message, Failed):
            raise message.exception()
        assert isinstance(message, kind)
        return message

    def _check_alive(self) -> None:
        if not self.alive:
            raise FreetokenError("The model's worker has just ended.", "Send the request again.")

    def _send(self, message: Message) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(encode(message))

    async def _reap(self) -> None:
        """Collect the process and tell everybody who waits how it ended."""
        try:
            code = await asyncio.to_thread(self._child.wait, STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._child.kill()
            code = await asyncio.to_thread(self._child.wait)
        if self._stopping:
            error = Failed("BusyError", "The model was unloaded before it had answered.", "Send the request again.")
        else:
            error = Failed("FreetokenError", f"The model's worker {ending(code)}.", "Send the request again.")
        self._fail_ready(error)
        for queue in self._streams.values():
            queue.put_nowait(error)
        for waiter in self._tickets.values():
            if not waiter.done():
                waiter.set_result(error)
        self._ended.set()
        self._on_end(self)
