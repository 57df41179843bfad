"""What RFC 9112 wants of a server whatever it serves: targets that are no path, and bodies whose end is told twice."""

from __future__ import annotations

import re
from urllib.parse import unquote

from starlette.datastructures import MutableHeaders
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from engine.front.wire.dialects import OPENAI

_NO_PROXY = OPENAI.refusal(501, "Not Implemented: this server is no proxy.")
_METHODS = "GET, HEAD, POST, DELETE, OPTIONS"
_ABSOLUTE = re.compile(rb"https?://([^/]*)(/.*)?", re.IGNORECASE | re.DOTALL)


class Rfc9112:
    """An ASGI middleware for requests of any form.

    `http://host/path` as a target is what `/path` with that Host is, whatever Host came beside it (section 3.2.2), for
    clients that think that they talk to a proxy. `OPTIONS *` asks what the server knows. After a request that tells the
    length of its body and sends it in chunks, where two programs may see two different ends, the connection ends (6.3).
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        if {b"content-length", b"transfer-encoding"} <= {name for name, _ in scope["headers"]}:
            send = _as_the_last(send)
        found = _ABSOLUTE.fullmatch(scope["raw_path"])
        if scope["method"] == "CONNECT":
            await JSONResponse(_NO_PROXY, status_code=501)(scope, receive, send)
        elif (scope["method"], scope["raw_path"]) == ("OPTIONS", b"*"):
            await Response(status_code=204, headers={"Allow": _METHODS})(scope, receive, send)
        elif found is None:
            await self.app(scope, receive, send)
        else:
            path = found[2] or b"/"
            others = [header for header in scope["headers"] if header[0] != b"host"]
            headers = [(b"host", found[1]), *others]
            scope = {**scope, "raw_path": path, "path": unquote(path.decode("ascii")), "headers": headers}
            await self.app(scope, receive, send)


def _as_the_last(send: Send) -> Send:
    """`send`, which ends the connection with the answer."""

    async def wrapped(message: Message) -> None:
        if message["type"] == "http.response.start":
            MutableHeaders(scope=message)["Connection"] = "close"
        await send(message)

    return wrapped
