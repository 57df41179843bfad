"""One HTTP connection, which can be held open only as long as it is used."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Any, ClassVar

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from engine.front.wire.limits import Limits

_FAREWELL_SECONDS = 1.0  # that a client which is turned away gets to read why


class BoundedConnection(H11Protocol):
    """uvicorn's connection with a clock for everything that a client can leave undone.

    A client that has not sent its headers in time is answered 408, one that does not read or goes on sending after its
    answer is cut off; the request then ends as with any client that goes away. Bodies have their clock where they are
    read.
    """

    limits: ClassVar[Limits]
    refused: ClassVar[set[BoundedConnection]]

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._head = _Clock(self.loop)
        self._unread = _Clock(self.loop)
        self._linger = _Clock(self.loop)
        self._spoken = False

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        if len(self.connections) >= self.limits.connections:
            self._turn_away(transport)
            return
        super().connection_made(transport)
        self._head.start(self.limits.head_seconds, self._tell_late)

    def data_received(self, data: bytes) -> None:
        if self in self.refused:
            return
        self._spoken = True
        super().data_received(data)
        if self.conn.their_state is not h11.IDLE:
            self._head.stop()
        elif not self._head.running and not self.transport.is_closing():
            self._head.start(self.limits.head_seconds, self._tell_late)

    def connection_lost(self, exc: Exception | None) -> None:
        for clock in (self._head, self._unread, self._linger):
            clock.stop()
        if self in self.refused:
            self.refused.discard(self)
        else:
            super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unread.start(self.limits.unread_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        self._unread.stop()
        super().resume_writing()

    # uvicorn's

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.transport.is_closing():
            # What the machine has not taken yet waits in this process, for a client that may never read it.
            self._unread.start(self.limits.unread_seconds, self.transport.abort)
        elif self.conn.their_state is h11.SEND_BODY:
            # uvicorn reads on, so that the client comes to see its answer; a reset would take that from it.
            self._linger.start(self.limits.linger_seconds, self.transport.abort)

    def handle_events(self) -> None:
        super().handle_events()
        if self.conn.their_state is not h11.SEND_BODY:
            self._linger.stop()

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        self._unread.start(self.limits.unread_seconds, self.transport.abort)

    def send_400_response(self, msg: str) -> None:
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):  # else an answer has been given, or is being given
            self.transport.write(_bare("400 Bad Request", msg))
        self.transport.close()

    def shutdown(self) -> None:
        if self.conn.their_state is h11.SEND_BODY:
            self.transport.abort()  # what has not come by now is not waited for
        else:
            super().shutdown()

    def _tell_late(self) -> None:
        if self._spoken:
            self.transport.write(_bare("408 Request Timeout", "The request's headers did not come in time."))
        self.transport.close()

    def _turn_away(self, transport: asyncio.Transport) -> None:
        self.transport = transport
        if len(self.refused) >= self.limits.turned_away:
            transport.abort()
            return
        self.refused.add(self)
        transport.write(_bare("503 Service Unavailable", "There are too many connections. Close some, or try again."))
        with suppress(OSError):
            transport.write_eof()
        self._linger.start(_FAREWELL_SECONDS, transport.abort)


class _Clock:
    """Something that happens unless it is stopped in time."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._handle: asyncio.TimerHandle | None = None

    @property
    def running(self) -> bool:
        return self._handle is not None

    def start(self, seconds: float, then: Callable[[], None]) -> None:
        self.stop()
        self._handle = self._loop.call_later(seconds, then)

    def stop(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None


def _bare(status: str, message: str) -> bytes:
    """A whole answer for somebody whose request nobody has read."""
    body = f'{{"error": {{"message": "{message}", "type": "invalid_request_error", "param": null, "code": null}}}}'
    head = f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\nConnection: close"
    return f"{head}\r\n\r\n{body}".encode()


def connections_within(bounds: Limits) -> type[BoundedConnection]:
    """Connections of one listener, which count together."""

    class Connection(BoundedConnection):
        limits = bounds
        refused: ClassVar[set[BoundedConnection]] = set()

    return Connection


def notice_lost_peers(listener: socket.socket, limits: Limits) -> None:
    """Have the kernel drop connections of `listener` whose other machine no longer answers, or takes nothing."""
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, max(1, int(limits.unread_seconds)))
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, max(1, int(limits.unread_seconds / 3)))
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(limits.unread_seconds * 1000))
