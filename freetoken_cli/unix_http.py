"""HTTP over a Unix socket with the standard library: importing a larger client would cost more than the request."""

from __future__ import annotations

import errno
import http.client
import json
import os
import socket
from collections.abc import Generator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from engine.base import errors
from engine.base.errors import FreetokenError, error_named

_LARGEST_LINE = 16 * 2**20


class FrontGone(FreetokenError):
    """The front does not listen, or went away in the middle of an answer."""


class UnixConnection(http.client.HTTPConnection):
    """An HTTP connection to the Unix socket at `path`; `timeout` in seconds, None waits for ever."""

    def __init__(self, path: Path, timeout: float | None) -> None:
        super().__init__("localhost")
        self._path = path
        self._seconds = timeout

    def connect(self) -> None:
        # In a shared temporary folder somebody else could have laid ours out first, and would read every prompt.
        if self._path.parent.lstat().st_uid != os.getuid():
            raise PermissionError(errno.EPERM, "its folder belongs to somebody else")
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self._seconds)
        self.sock.connect(str(self._path))


def call(
    path: Path, method: str, target: str, body: Mapping[str, Any] | None = None, timeout: float | None = None
) -> dict[str, Any]:
    """One JSON request and its JSON answer. Raises FrontGone, or the error that the answer carries."""
    with closing(UnixConnection(path, timeout)) as connection:
        response = _send(connection, method, target, body)
        try:
            content = response.read()
        except (OSError, http.client.HTTPException) as error:
            raise _gone(error) from error
    if response.status >= 400:
        raise error_of(content, response.status)
    try:
        answer = json.loads(content)
    except ValueError as error:
        raise _gone(error) from error
    if not isinstance(answer, dict):
        raise FrontGone("The background server answered something that is not an object.", _REMEDY)
    return answer


def stream(path: Path, target: str, body: Mapping[str, Any]) -> Generator[dict[str, Any], None, None]:
    """The events of a streamed answer. Closing the generator closes the connection, which stops the model.

    Raises FrontGone when the stream ends without its last event, or the error that an event carries.
    """
    with closing(UnixConnection(path, None)) as connection:
        response = _send(connection, "POST", target, body)
        if response.status >= 400:
            raise error_of(response.read(), response.status)
        while True:
            try:
                line = response.readline(_LARGEST_LINE)
            except (OSError, http.client.HTTPException) as error:
                raise _gone(error) from error
            if not line:
                raise FrontGone("The background server ended in the middle of its answer.", _REMEDY)
            if not line.startswith(b"data:"):
                continue
            content = line[len(b"data:") :].strip()
            if content == b"[DONE]":
                return
            event = json.loads(content)
            if "error" in event:
                raise error_of(content, 500)
            yield event


_REMEDY = "Run the command again; a new server starts by itself."


def _send(
    connection: UnixConnection, method: str, target: str, body: Mapping[str, Any] | None
) -> http.client.HTTPResponse:
    try:
        if body is None:
            connection.request(method, target)
        else:
            connection.request(method, target, json.dumps(body).encode(), {"Content-Type": "application/json"})
        return connection.getresponse()
    except (OSError, http.client.HTTPException) as error:
        raise _gone(error) from error


def _gone(error: Exception) -> FrontGone:
    return FrontGone(f"The background server does not answer: {error or type(error).__name__}.", _REMEDY)


def error_of(content: bytes, status: int) -> FreetokenError:
    """The exception in an error answer: of our own type if it names one, else by its code or the HTTP status."""
    try:
        table = json.loads(content)["error"]
        message, remedy = str(table["message"]), str(table.get("remedy") or "")
        kind, code = str(table.get("type")), str(table.get("code"))
    except (ValueError, KeyError, TypeError, AttributeError):
        return FreetokenError(f"The background server answered with status {status}.", _REMEDY)
    cls = error_named(kind) or _BY_CODE.get(code) or _BY_STATUS.get(status, FreetokenError)
    # The OpenAI interface has the remedy at the end of its message too, for clients that show nothing else.
    return cls(message.removesuffix(remedy).rstrip(), remedy)


_BY_CODE = {
    "context_length_exceeded": errors.ContextFullError,
    "insufficient_memory": errors.NoRoomError,
    "model_not_found": errors.NotFoundError,
}
_BY_STATUS = {
    400: errors.UsageError,
    404: errors.NotFoundError,
    409: errors.BusyError,
    413: errors.DoesNotFitError,
    503: errors.BusyError,
    507: errors.DoesNotFitError,
}
