"""What the TCP port serves to a browser: the page at `/`, and what the page asks of the machine.

The page is public, since it holds nothing; what it asks for goes through the guard as everything else does, and needs
the key where there is one. A resize must come as JSON: other pages can make a browser send forms and plain text here,
but JSON only after the guard has agreed to their origin.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from engine.base.errors import UsageError
from engine.front.control import RESIZE, Endpoint, endpoint_of, resize
from engine.front.wire.http import control_error
from engine.front.workers.loaded import Loaded
from engine.front.workers.supervisor import Supervisor

_FOLDER = Path(__file__).with_name("page")
_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
PAGE_FILES = {
    "/": _FOLDER / "index.html",
    **{f"/page/{file.name}": file for file in sorted(_FOLDER.iterdir()) if file.name != "index.html"},
}
"""Paths that are answered without a key, and the files behind them."""

PAGE_HEADERS = {
    # What a model says is shown as text. Should that ever fail, no script of its runs and nothing leaves the machine.
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'; trusted-types 'none'"
    ),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Cache-Control": "no-cache",
}


def page_routes(supervisor: Supervisor) -> list[Route]:
    """The files of the page, `GET /machine`, and `POST /machine/resize`, the control interface's under another path."""

    async def machine(request: Request) -> Response:
        models = await supervisor.refresh_all()
        return JSONResponse({"models": [_watched(model) for model in models]}, headers={"Cache-Control": "no-store"})

    return [
        *(Route(path, _file(file), methods=["GET"]) for path, file in PAGE_FILES.items()),
        Route("/machine", machine, methods=["GET"]),
        Route("/machine/resize", _json_alone(endpoint_of(partial(resize, supervisor), RESIZE)), methods=["POST"]),
    ]


def _json_alone(endpoint: Endpoint) -> Endpoint:
    """`endpoint` for requests whose body is declared as JSON; 415 for others."""

    async def checked(request: Request) -> Response:
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind == "application/json":
            return await endpoint(request)
        error = UsageError("The request's body is not declared as JSON.", "Send Content-Type: application/json.")
        return JSONResponse(control_error(error)[1], status_code=415)

    return checked


def media_type(file: Path) -> str:
    """What a file of the page is served as."""
    return _TYPES[file.suffix]


def _file(path: Path) -> Endpoint:
    """A route that answers with one file of the page."""
    content, kind = path.read_bytes(), media_type(path)

    async def file(request: Request) -> Response:
        return Response(content, media_type=kind, headers=PAGE_HEADERS)

    return file


def _watched(model: Loaded) -> dict[str, Any]:
    """A loaded model as the control interface shows it, how far its context could grow, and its counters."""
    stats = model.stats
    return {
        **model.state(),
        "context_limit": model.ready.context_limit,
        "counters": dict(stats.values),
        "work": None if stats.experts is None else vars(stats.experts),
    }
