"""How an interface puts events, comments and errors on the wire."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Protocol

from engine.base.errors import (
    BusyError,
    ContextFullError,
    DoesNotFitError,
    FreetokenError,
    NoRoomError,
    NotFoundError,
    UnsupportedError,
    UsageError,
)
from engine.front.wire.fields import FieldError

Json = dict[str, Any]
_LINE_BREAK = re.compile("[\x85\u2028\u2029]")  # those that JSON may hold as they are
_CODES = {
    NotFoundError: "model_not_found",
    ContextFullError: "context_length_exceeded",
    NoRoomError: "insufficient_memory",
}


_ANTHROPIC_KINDS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    503: "overloaded_error",
}


class TooLargeError(UsageError):
    """A body that is longer than any request may be."""


class TooSlowError(UsageError):
    """A body that did not come in time."""


class EncodedError(UsageError):
    """A body that is compressed."""


class UnheldThreadError(FieldError):
    """A conversation that the server was to hold between requests, in Anthropic's interface."""


class Dialect(Protocol):
    """One interface's manner of speaking."""

    media_type: str
    """Of a stream."""
    end: bytes
    """What stands behind the last event of a stream that went well."""

    def frame(self, event: Mapping[str, Any]) -> bytes:
        """One event."""
        ...

    def comment(self, text: str) -> bytes:
        """Something that keeps the connection alive and that clients skip; it may be empty."""
        ...

    def error(self, error: FreetokenError) -> Json:
        """The body of an error, and the last event of a stream that fails."""
        ...

    def refusal(self, status: int, message: str) -> Json:
        """The body of an answer to a request that no interface has read: it has no route, or was not let in."""
        ...


class OpenAIDialect:
    """Server-sent events that are data alone."""

    media_type = "text/event-stream"
    end = b"data: [DONE]\n\n"

    def frame(self, event: Mapping[str, Any]) -> bytes:
        return b"data: " + compact(event) + b"\n\n"

    def comment(self, text: str) -> bytes:
        return f": {text}\n\n".encode()

    def error(self, error: FreetokenError) -> Json:
        status = status_of(error)
        return {
            "error": {
                "message": str(error),
                "type": "invalid_request_error" if status < 500 else "server_error",
                "param": error.field if isinstance(error, FieldError) else None,
                "code": next((code for kind, code in _CODES.items() if isinstance(error, kind)), None),
                "remedy": error.remedy,
            }
        }

    def refusal(self, status: int, message: str) -> Json:
        return {"error": {"message": message, "type": "invalid_request_error", "param": None, "code": None}}


class AnthropicDialect:
    """Server-sent events whose names are their types."""

    media_type = "text/event-stream"
    end = b""

    def frame(self, event: Mapping[str, Any]) -> bytes:
        return f"event: {event['type']}\n".encode() + b"data: " + compact(event) + b"\n\n"

    def comment(self, text: str) -> bytes:
        return self.frame({"type": "ping"})

    def error(self, error: FreetokenError) -> Json:
        told = self.refusal(status_of(error), str(error))
        more: Json = {"remedy": error.remedy}
        if isinstance(error, UnheldThreadError):  # so that clients send the whole conversation from then on
            more["details"] = {"error_code": "thread_unsupported_request", "unsupported": [error.field]}
        return {**told, "error": {**told["error"], **more}}

    def refusal(self, status: int, message: str) -> Json:
        kind = _ANTHROPIC_KINDS.get(status, "invalid_request_error" if status < 500 else "api_error")
        return {"type": "error", "error": {"type": kind, "message": message}}


class ResponsesDialect(OpenAIDialect):
    """Server-sent events whose names are their types, from the OpenAI interface of responses."""

    end = b""

    def __init__(self, failed: Callable[[Json], Json]) -> None:
        """`failed` makes the last event of a response out of why it failed."""
        self._failed = failed

    def frame(self, event: Mapping[str, Any]) -> bytes:
        name = f"event: {event.get('type', 'error')}\n".encode()
        return name + super().frame(event)

    def error(self, error: FreetokenError) -> Json:
        told = super().error(error)["error"]
        return self._failed({"code": told["code"] or told["type"], "message": told["message"]})


class OllamaDialect:
    """A JSON object a line."""

    media_type = "application/x-ndjson"
    end = b""

    def frame(self, event: Mapping[str, Any]) -> bytes:
        return compact(event) + b"\n"

    def comment(self, text: str) -> bytes:
        return b""

    def error(self, error: FreetokenError) -> Json:
        return self.refusal(status_of(error), str(error))

    def refusal(self, status: int, message: str) -> Json:
        return {"error": message}


OPENAI, ANTHROPIC, OLLAMA = OpenAIDialect(), AnthropicDialect(), OllamaDialect()


def dialect_of(path: str) -> Dialect:
    """The dialect of the interface to which a path belongs."""
    if path.startswith("/v1/messages"):
        return ANTHROPIC
    return OLLAMA if path.startswith("/api/") else OPENAI


def status_of(error: FreetokenError) -> int:
    """The HTTP status that fits an error."""
    if isinstance(error, TooLargeError):
        return 413
    if isinstance(error, TooSlowError):
        return 408
    if isinstance(error, EncodedError):
        return 415
    if isinstance(error, NotFoundError):
        return 404
    if isinstance(error, BusyError | NoRoomError):
        return 503
    return 400 if isinstance(error, UsageError | DoesNotFitError | UnsupportedError) else 500


def our_mistake(error: Exception) -> FreetokenError:
    """What a client is told of an exception that nobody foresaw."""
    return FreetokenError(f"The server failed: {type(error).__name__}.", "Its log says more; please report it.")


def compact(value: Mapping[str, Any]) -> bytes:
    """JSON in one line, also for clients that take every line break of Unicode for the end of one."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return _LINE_BREAK.sub(lambda found: f"\\u{ord(found[0]):04x}", text).encode()


def stamp(seconds: float) -> str:
    """A time in Unix seconds as interfaces write it."""
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")
