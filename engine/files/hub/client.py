"""The HTTP client that `huggingface_hub` hands out: its version 1 one of httpx, its version 2 one of httpx2."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from types import ModuleType
from typing import Protocol

_LIBRARIES = ("httpx", "httpx2")


class Url(Protocol):
    """What is used of an address."""

    @property
    def host(self) -> str: ...


class Response(Protocol):
    """What is used of an answer."""

    status_code: int

    @property
    def headers(self) -> Mapping[str, str]: ...

    @property
    def url(self) -> Url: ...

    def iter_raw(self) -> Iterator[bytes]: ...


class Client(Protocol):
    """What is used of a client. `timeout` in seconds is for each step: connecting, and every read."""

    def stream(
        self, method: str, url: str, *, headers: Mapping[str, str], timeout: float, follow_redirects: bool
    ) -> AbstractContextManager[Response]: ...


def library_of(client: Client) -> ModuleType:
    """The library of a client, which has the exceptions that it raises. A user's own client derives from one of it."""
    names = {kind.__module__.partition(".")[0] for kind in type(client).__mro__}
    return next(sys.modules[name] for name in _LIBRARIES if name in names)
