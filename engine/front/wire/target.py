"""Targets of requests: clients that think that they talk to a proxy name the whole address."""

from __future__ import annotations

import re
from urllib.parse import unquote

from starlette.types import ASGIApp, Receive, Scope, Send

_ABSOLUTE = re.compile(rb"https?://([^/]*)(/.*)?", re.IGNORECASE | re.DOTALL)


class OriginForm:
    """An ASGI middleware that makes `http://host/path` of a request's target what `/path` with that Host is.

    So RFC 9112, section 3.2.2, wants it, whatever Host came beside it.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        found = _ABSOLUTE.fullmatch(scope["raw_path"]) if scope["type"] == "http" else None
        if found is not None:
            path = found[2] or b"/"
            others = [header for header in scope["headers"] if header[0] != b"host"]
            headers = [(b"host", found[1]), *others]
            scope = {**scope, "raw_path": path, "path": unquote(path.decode("ascii")), "headers": headers}
        await self.app(scope, receive, send)
