"""Who may talk to the TCP port: the right Host, no strange web page, and the key if there is one."""

from __future__ import annotations

import hmac
import re

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from engine.front.config import FrontConfig, is_loopback
from engine.front.wire.dialects import dialect_of

_CORS_METHODS = "GET, POST, DELETE, OPTIONS"
# What a page may send: the keys and versions of every interface, and what the official clients add of their own.
_CORS_HEADERS = ", ".join(
    (
        *("Accept", "Authorization", "Content-Type", "User-Agent", "X-Api-Key", "X-Request-Id"),
        *("OpenAI-Organization", "OpenAI-Project", "OpenAI-Beta"),
        *("Anthropic-Version", "Anthropic-Beta", "Anthropic-Dangerous-Direct-Browser-Access"),
        *(
            f"X-Stainless-{name}"
            for name in (
                *("Arch", "Helper", "Helper-Method", "Lang", "OS", "Package-Version", "Poll-Helper", "Retry-Count"),
                *("Runtime", "Runtime-Version", "Timeout"),
            )
        ),
    )
)
_CORS_EXPOSED = "X-Freetoken-Ignored"
_HOST = re.compile(r"(?P<name>\[[0-9A-Fa-f:.]+\]|[^\s:/?#@\[\]\\]+)(:[0-9]*)?")


class Guard:
    """An ASGI middleware.

    A page of any web site can make a browser send requests to this machine, and can make its own name point here (DNS
    rebinding). So the Host must be one of ours, and a request with an Origin must come from a page that this machine
    serves or that was allowed by name.
    """

    def __init__(self, app: ASGIApp, config: FrontConfig, keyless: frozenset[str] = frozenset({"/health"})) -> None:
        """`keyless` are the paths that need no key."""
        self._app = app
        self._config = config
        self._keyless = keyless
        self._hosts = frozenset({config.host.lower(), *map(host_name, config.allowed_hosts)} - {""})
        self._origins = frozenset(origin.lower().rstrip("/") for origin in config.allowed_origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        origin = headers.get("origin")
        refusal = self._refusal(headers.getlist("host"), origin)
        if refusal is not None:
            await _refused(scope["path"], 403, refusal)(scope, receive, send)
        elif scope["method"] == "OPTIONS" and origin is not None:
            preflight = Response(status_code=204, headers={"Access-Control-Max-Age": "600"})
            preflight.headers["Access-Control-Allow-Methods"] = _CORS_METHODS
            preflight.headers["Access-Control-Allow-Headers"] = _CORS_HEADERS
            await preflight(scope, receive, _allowing(send, origin))
        elif not self._has_key(scope["path"], headers.get("authorization", ""), headers.get("x-api-key", "")):
            told = "The key is missing or wrong. Send it as: Authorization: Bearer KEY"
            response = _refused(scope["path"], 401, told)
            response.headers["WWW-Authenticate"] = "Bearer"
            await response(scope, receive, _allowing(send, origin))
        else:
            await self._app(scope, receive, _allowing(send, origin))

    def _refusal(self, hosts: list[str], origin: str | None) -> str | None:
        """Why a request is turned away, None if it is not."""
        if len(hosts) != 1:
            return "The request must name one Host."
        name = host_name(hosts[0])
        # On an address that others can reach any name may be ours; there the key keeps strangers out.
        if self._config.loopback and not (is_loopback(name) or name in self._hosts):
            return f"The Host {hosts[0]!r} is not one of this server's names."
        if origin is None:
            return None
        page = origin.lower().partition("://")[2]  # an origin is a scheme, a host and a port, and nothing else
        if host_name(page) and (
            is_loopback(host_name(page))
            or origin.lower() in self._origins
            or (page == hosts[0].lower() and not self._config.loopback)
        ):
            return None
        return f"Pages of {origin!r} may not use this server."

    def _has_key(self, path: str, authorization: str, own: str) -> bool:
        """Whether a request brings the key, as most clients send it or, in `own`, as Anthropic's do."""
        key = self._config.api_key
        if not key or path in self._keyless:
            return True
        scheme, _, given = authorization.partition(" ")
        brought = [own, given if scheme.lower() == "bearer" else ""]
        return sum(hmac.compare_digest(each.strip().encode(), key.encode()) for each in brought) > 0


def host_name(host: str) -> str:
    """The name in a Host header, without its port; "" for what is no host, such as one with a user's name."""
    match = _HOST.fullmatch(host)
    return match["name"].strip("[]").lower() if match else ""


def _refused(path: str, status: int, message: str) -> JSONResponse:
    return JSONResponse(dialect_of(path).refusal(status, message), status_code=status)


def _allowing(send: Send, origin: str | None) -> Send:
    """`send`, with the header that lets a page of `origin` read the answer."""
    if origin is None:
        return send

    async def wrapped(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            headers["Access-Control-Allow-Origin"] = origin
            headers["Access-Control-Expose-Headers"] = _CORS_EXPOSED
            headers.add_vary_header("Origin")
        await send(message)

    return wrapped
