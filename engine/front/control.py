"""The control interface, on the private socket alone. docs/api.md describes it for those who call it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from engine.base.errors import FreetokenError, UsageError
from engine.front.attach import LoadFlags
from engine.front.http import control_error, read_body
from engine.front.supervisor import Supervisor, Wish

_FLAGS = frozenset({"device", "threads", "context", "kv_tokens", "kv_bytes", "experts", "keep_alive"})


class Control:
    """The routes over one supervisor. `shut_down` makes the front leave."""

    def __init__(self, supervisor: Supervisor, shut_down: Callable[[], None]) -> None:
        self._supervisor = supervisor
        self._shut_down = shut_down

    def routes(self) -> list[Route]:
        return [
            Route("/control/load", self._answering(self.load), methods=["POST"]),
            Route("/control/ps", self._answering(self.ps), methods=["GET"]),
            Route("/control/resize", self._answering(self.resize), methods=["POST"]),
            Route("/control/stop", self._answering(self.stop), methods=["POST"]),
            Route("/control/stats", self._answering(self.stats), methods=["POST"]),
            Route("/control/shutdown", self._answering(self.shutdown), methods=["POST"]),
        ]

    async def load(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Load a model, or attach to it."""
        _check_members(body, _FLAGS | {"model", "defaults"})
        defaults = body.get("defaults") or {}
        if not isinstance(defaults, dict):
            raise UsageError("defaults is not an object.")
        _check_members(defaults, _FLAGS)
        wish = Wish(
            asked=LoadFlags.from_json(body),
            defaults=LoadFlags.from_json(defaults),
            keep_alive=_keep_alive(body),
            default_keep_alive=_keep_alive(defaults),
        )
        loaded, seconds, notes = await self._supervisor.load(_model(body), wish)
        return {**loaded.state(), "load": seconds, "notes": list(notes)}

    async def ps(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """The loaded models."""
        return {"models": [loaded.state() for loaded in self._supervisor.models]}

    async def resize(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Move memory of a loaded model."""
        _check_members(body, frozenset({"model", "kv_tokens", "kv_bytes", "experts"}))
        flags = LoadFlags.from_json(body)
        if flags == LoadFlags():
            raise UsageError("There is nothing to resize.", "Give --kv or --experts.")
        before, loaded, resized = await self._supervisor.resize(_model(body), flags.kv, flags.experts)
        return {"before": before, "after": loaded.state(), "seconds": resized.seconds, "notes": list(resized.notes)}

    async def stop(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Unload a model."""
        _check_members(body, frozenset({"model"}))
        return {"stopped": [await self._supervisor.stop(_model(body))]}

    async def stats(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """The counters of a loaded model's worker."""
        _check_members(body, frozenset({"model"}))
        return dict((await self._supervisor.find(_model(body)).client.stats()).values)

    async def shutdown(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Leave, workers first. With `if_idle` only if no request is being answered."""
        _check_members(body, frozenset({"if_idle"}))
        busy = [loaded.name for loaded in self._supervisor.models if loaded.users]
        if body.get("if_idle") and busy:
            return {"busy": busy}
        asyncio.get_running_loop().call_soon(self._shut_down)
        return {}

    @staticmethod
    def _answering(action: Callable[[Mapping[str, Any]], Any]) -> Callable[[Request], Any]:
        async def endpoint(request: Request) -> Response:
            try:
                body = await read_body(request) if request.method == "POST" else {}
                return JSONResponse(await action(body))
            except FreetokenError as error:
                status, content = control_error(error)
                return JSONResponse(content, status_code=status)

        return endpoint


def _keep_alive(table: Mapping[str, Any]) -> float | None:
    """`keep_alive` of a load in seconds; null is for ever (infinity), an absent one None."""
    if "keep_alive" not in table:
        return None
    value = table["keep_alive"]
    if value is None:
        return float("inf")
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e12:
        raise UsageError(f"keep_alive {value!r} is not a number of seconds.")
    return float(value)


def _check_members(table: Mapping[str, Any], known: frozenset[str]) -> None:
    unknown = table.keys() - known
    if unknown:
        raise UsageError(f"{min(unknown)} is not understood here.", f"Known are {', '.join(sorted(known))}.")


def _model(body: Mapping[str, Any]) -> str:
    name = body.get("model")
    if not isinstance(name, str) or not name:
        raise UsageError("model is not a model's name.")
    return name
