"""The two faces of a front: one for anybody on the TCP port, one with control for this user's socket."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from http import HTTPStatus

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Match, Route
from starlette.types import ASGIApp

from engine import __version__
from engine.base.errors import FreetokenError, UsageError
from engine.front.anthropic_api.routes import Anthropic
from engine.front.config import FrontConfig
from engine.front.control import Control
from engine.front.guard import Guard
from engine.front.metrics import metrics_route
from engine.front.ollama_api.routes import Ollama
from engine.front.openai_api.routes import OpenAI
from engine.front.openapi import openapi_route
from engine.front.page_routes import PAGE_FILES, page_routes
from engine.front.responses_api.routes import Responses
from engine.front.wire.dialects import dialect_of, our_mistake, status_of
from engine.front.wire.fields import shortened
from engine.front.wire.limits import Limits
from engine.front.wire.rfc9112 import Rfc9112
from engine.front.workers.supervisor import Supervisor


def public_app(supervisor: Supervisor, config: FrontConfig) -> ASGIApp:
    """What the TCP port serves: the interfaces, the counters and the page, behind the guard."""
    app = _app([_health(), *_interfaces(supervisor), *page_routes(supervisor)], config.limits)
    return Rfc9112(Guard(app, config, keyless=frozenset({"/health", *PAGE_FILES})))


def private_app(
    supervisor: Supervisor, limits: Limits, address: tuple[str, int] | None, shut_down: Callable[[], None]
) -> ASGIApp:
    """What the Unix socket serves: the same but for the page, and control. The socket's mode is its guard.

    `address` is what the TCP port is bound to; /health tells it here, because a port of 0 becomes a real one.
    """
    host, port = address or (None, None)
    control = Control(supervisor, shut_down).routes()
    return Rfc9112(_app([_health(host=host, port=port), *_interfaces(supervisor), *control], limits))


def _interfaces(supervisor: Supervisor) -> list[Route]:
    interfaces = (OpenAI(supervisor), Responses(supervisor), Anthropic(supervisor), Ollama(supervisor))
    return [
        metrics_route(supervisor),
        openapi_route(),
        *(route for interface in interfaces for route in interface.routes()),
    ]


def _health(**more: str | int | None) -> Route:
    """A route that answers as soon as the front does; no model has to be loaded."""

    async def health(request: Request) -> Response:
        return JSONResponse({"status": "ok", "version": __version__, **more})

    return Route("/health", health, methods=["GET"])


def _app(routes: list[Route], limits: Limits) -> Starlette:
    app = Starlette(
        routes=routes,
        exception_handlers={
            FreetokenError: _tell,
            RecursionError: _tell_nested,
            HTTPException: _tell_http,
            ClientDisconnect: _nobody,
            Exception: _tell_unexpected,
        },
    )
    app.state.limits = limits
    return app


async def _tell(request: Request, error: Exception) -> Response:
    assert isinstance(error, FreetokenError)
    return JSONResponse(dialect_of(request.url.path).error(error), status_code=status_of(error))


async def _tell_http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    status, path, headers = error.status_code, request.url.path, error.headers
    if status == 405:
        headers = {"Allow": _allowed(request)}
        if request.method == "OPTIONS":
            return Response(status_code=204, headers=headers)
    message = f"{HTTPStatus(status).phrase}: {request.method} {shortened(path)}"
    if status == 404:
        message += _meant(path, request.app.routes)
    return JSONResponse(dialect_of(path).refusal(status, message), status_code=status, headers=headers)


def _allowed(request: Request) -> str:
    """The methods of a path. Each route knows its own, and a path may have several."""
    routes: list[Route] = request.app.routes
    fitting = (route.methods or () for route in routes if route.matches(request.scope)[0] is not Match.NONE)
    return ", ".join(sorted({"OPTIONS"}.union(*fitting)))


def _meant(path: str, routes: Sequence[BaseRoute]) -> str:
    """Routes that end as `path` does, or that it ends as, as a question: a base URL has a part too many or too few."""
    asked = path.rstrip("/")
    known = sorted({route.path for route in routes if isinstance(route, Route)} - {"/"})
    near = [each for each in known if each.endswith(asked) or asked.endswith(each)] if asked else []
    return f". Did you mean {' or '.join(near)}?" if near else ""


async def _nobody(request: Request, error: Exception) -> Response:
    """The client has gone; this goes nowhere."""
    return Response(status_code=499)


async def _tell_nested(request: Request, error: Exception) -> Response:
    """What a client sent can be parsed, and yet be nested too deeply for what is done with it."""
    return await _tell(request, UsageError("The request's body is nested too deeply.", "Send flatter data."))


async def _tell_unexpected(request: Request, error: Exception) -> Response:
    """A mistake of ours. The server's log has the traceback."""
    return JSONResponse(dialect_of(request.url.path).error(our_mistake(error)), status_code=500)
