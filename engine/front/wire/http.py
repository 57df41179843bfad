"""What every route needs: bodies within bounds, errors in one shape, streams that notice when nobody listens."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing, suppress
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from engine.base.errors import BusyError, DoesNotFitError, FreetokenError, NotFoundError, UsageError
from engine.front.wire.bodies import read_object
from engine.front.wire.dialects import Dialect, EncodedError, TooLargeError, TooSlowError, our_mistake
from engine.front.wire.fields import shortened
from engine.front.wire.limits import Limits

_LOG = logging.getLogger(__name__)
_LONGEST_HEADER = 2000  # of ours; clients take a few thousand bytes of all together

Value = TypeVar("Value")
Events = AsyncGenerator[dict[str, Any] | str, None]  # JSON objects, or text for a comment


async def read_body(request: Request, read: Callable[[dict[str, Any]], Value]) -> Value:
    """What `read` makes of the request's JSON object. It runs in a thread: a long conversation or a hard schema must
    not hold up everybody else's tokens.

    UsageError for anything but an object, EncodedError for one that is compressed, TooLargeError and TooSlowError past
    the bounds, and whatever `read` raises.
    """
    limits = _limits(request.scope)
    try:
        async with asyncio.timeout(limits.body_seconds):
            data = await _read(request, limits.body_bytes)
    except TimeoutError:
        raise TooSlowError(
            f"The request's body did not come within {limits.body_seconds:g} seconds.", "Send it again."
        ) from None
    return await asyncio.to_thread(lambda: read(read_object(data)))


async def _read(request: Request, most: int) -> bytes:
    """The body. One that says that it is too long, or compressed, is not waited for."""
    coding = request.headers.get("content-encoding") or "identity"
    if coding.lower() != "identity":
        raise EncodedError(f"The request's body is encoded as {shortened(coding)}.", "Send it as it is.")
    size, parts = 0, list[bytes]()
    told = request.headers.get("content-length", "")
    if told.isdecimal() and int(told[:20]) > most:
        raise _too_large(most)
    async for part in request.stream():
        size += len(part)
        if size > most:
            raise _too_large(most)
        parts.append(part)
    return b"".join(parts)


def _too_large(most: int) -> TooLargeError:
    return TooLargeError(f"The request's body is longer than {most} bytes.", "Send less at once.")


def _limits(scope: Scope) -> Limits:
    """Those of the app that a request was sent to."""
    limits: Limits = scope["app"].state.limits
    return limits


def control_error(error: FreetokenError) -> tuple[int, dict[str, Any]]:
    """Status and body of an error on the control interface, which names our own types."""
    statuses = (
        *((UsageError, 400), (NotFoundError, 404), (BusyError, 409), (DoesNotFitError, 507)),
        *((TooLargeError, 413), (TooSlowError, 408), (EncodedError, 415)),  # kinds of UsageError
    )
    status, kind = 500, "FreetokenError"
    for cls in type(error).__mro__:  # a subclass of ours counts as the public type that it is
        if cls.__module__ == FreetokenError.__module__:
            kind = cls.__name__
            break
    for cls, number in statuses:
        if isinstance(error, cls):
            status = number
    return status, {"error": {"type": kind, "message": error.message, "remedy": error.remedy}}


async def while_connected(request: Request, work: Awaitable[Value]) -> Value:
    """The result of `work`, which is cancelled when the client goes away (ClientDisconnect). The body must be read."""
    task = asyncio.ensure_future(work)
    watcher = asyncio.create_task(_disconnected(request.receive))
    try:
        await asyncio.wait({task, watcher}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnect
        return task.result()
    finally:
        watcher.cancel()
        task.cancel()
        with suppress(asyncio.CancelledError, Exception):
            await task


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def naming_ignored(response: Response, ignored: Sequence[str]) -> Response:
    """`response`, which says what of the request changed nothing, as far as a header has room.

    Names come from the client: what a header may not carry in their place, blank names among it, is told as `?`.
    """
    if ignored:
        told = ", ".join(re.sub(r"[^!-~]", "?", name) or "?" for name in ignored)
        response.headers["X-Freetoken-Ignored"] = (
            told if len(told) <= _LONGEST_HEADER else f"{told[:_LONGEST_HEADER]}..."
        )
    return response


class EventStream(Response):
    """Events as they come. The source is closed as soon as the client is gone; an error becomes the last event."""

    def __init__(self, events: Events, on_close: Callable[[], Awaitable[None]], dialect: Dialect) -> None:
        """`on_close` runs in any case, after `events` are closed."""
        self.media_type = dialect.media_type
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        self._dialect = dialect
        del self.headers["content-length"]
        self._events = events
        self._on_close = on_close
        self._silent_since: float | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        writer = asyncio.create_task(self._write(send))
        watcher = asyncio.create_task(_disconnected(receive))
        comments = asyncio.create_task(self._comment(send, _limits(scope).silent_seconds))
        try:
            await asyncio.wait({writer, watcher}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            watcher.cancel()
            comments.cancel()
            writer.cancel()
            try:
                with suppress(asyncio.CancelledError, OSError):
                    await writer
            finally:
                await asyncio.shield(self._on_close())

    async def _write(self, send: Send) -> None:
        clock = asyncio.get_running_loop().time
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        self._silent_since = clock()
        async with aclosing(_frames(self._events, self._dialect)) as frames:
            async for data in frames:
                self._silent_since = None
                await send(_part(data))
                self._silent_since = clock()
        self._silent_since = None
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _comment(self, send: Send, silence: float) -> None:
        """Say something whenever nothing was said for so long, so that nobody takes the connection for dead.

        Events go out in one piece, and none is on its way while it is known since when the stream is silent.
        """
        comment = self._dialect.comment("still at it")
        wait = silence
        while comment:
            await asyncio.sleep(wait)
            wait = silence
            if self._silent_since is not None:
                now = asyncio.get_running_loop().time()
                wait = self._silent_since + silence - now
                if wait <= 0:
                    await send(_part(comment))
                    wait = silence


def _part(data: bytes) -> Message:
    return {"type": "http.response.body", "body": data, "more_body": True}


async def _frames(events: Events, dialect: Dialect) -> AsyncGenerator[bytes, None]:
    """Events as they go over the wire."""
    try:
        async with aclosing(events) as source:
            async for event in source:
                data = dialect.comment(event) if isinstance(event, str) else dialect.frame(event)
                if data:
                    yield data
        if dialect.end:
            yield dialect.end
    except FreetokenError as error:
        yield dialect.frame(dialect.error(error))
    except Exception as error:
        _LOG.exception("a stream failed")
        yield dialect.frame(dialect.error(our_mistake(error)))
