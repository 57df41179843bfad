"""The control interface, on the private socket alone. docs/api.md describes it for those who call it."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from engine.base.errors import FreetokenError, UsageError
from engine.base.sampling import Range
from engine.front.openai_api.requests import CHAT
from engine.front.wire import fields
from engine.front.wire.fields import Field, read_fields
from engine.front.wire.http import control_error, read_body, while_connected
from engine.front.workers.attach import FLAGS, LoadFlags, kv_budget
from engine.front.workers.supervisor import Supervisor, Wish

_MODEL = {"model": Field(fields.model, required=True)}
RESIZE = {**_MODEL, **{name: FLAGS[name] for name in ("kv_tokens", "kv_bytes", "kv_share", "experts")}}
_SETTINGS = {**FLAGS, "keep_alive": Field(fields.within(Range(0, 10**12)), null=float("inf"))}
_PATH = Field(fields.absolute_path, required=True)
_CONVERSATION = {name: CHAT[name] for name in ("messages", "chat_template_kwargs")}

Action = Callable[[Mapping[str, Any]], Awaitable[dict[str, Any]]]
Endpoint = Callable[[Request], Awaitable[Response]]


class Control:
    """The routes over one supervisor. `shut_down` makes the front leave."""

    def __init__(self, supervisor: Supervisor, shut_down: Callable[[], None]) -> None:
        self._supervisor = supervisor
        self._shut_down = shut_down

    def routes(self) -> list[Route]:
        return [
            _route("load", self.load, {**_MODEL, **_SETTINGS, "defaults": Field(fields.mapping, {})}),
            _route("ps", self.ps, None),
            _route("resize", partial(resize, self._supervisor), RESIZE),
            _route("stop", self.stop, _MODEL),
            _route("stats", self.stats, _MODEL),
            _route("save", self.save, {**_MODEL, **_CONVERSATION, "path": _PATH}, until_gone=True),
            _route("restore", self.restore, {**_MODEL, "path": _PATH}, until_gone=True),
            _route("shutdown", self.shutdown, {"if_idle": Field(fields.flag, False)}),
        ]

    async def load(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Load a model, or attach to it."""
        defaults = read_fields(body["defaults"], _SETTINGS)
        wish = Wish(
            asked=LoadFlags.of(body),
            defaults=LoadFlags.of(defaults),
            keep_alive=body["keep_alive"],
            default_keep_alive=defaults["keep_alive"],
        )
        loaded, seconds, notes = await self._supervisor.load(body["model"], wish)
        await self._supervisor.refresh(loaded)
        return {**loaded.state(), "load": seconds, "notes": list(notes)}

    async def ps(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """The loaded models, and those that are being loaded."""
        models = [loaded.state() for loaded in await self._supervisor.refresh_all()]
        return {"models": models, "loading": self._supervisor.loading}

    async def stop(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Unload a model."""
        name = await self._supervisor.stop(body["model"])
        print(f"{name} was unloaded: freetoken stop.", file=sys.stderr, flush=True)  # whoever serves it wonders else
        return {"stopped": [name]}

    async def stats(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """The counters of a loaded model's worker."""
        stats = await self._supervisor.find(body["model"]).client.stats()
        return {**stats.values, "experts": None if stats.experts is None else vars(stats.experts)}

    async def save(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Write what a loaded model has computed of a conversation to a file."""
        self._supervisor.find(body["model"])  # loading it for this would help nobody
        async with self._supervisor.use(body["model"]) as loaded:
            values = {"add_generation_prompt": False, **body["chat_template_kwargs"]}
            prompt = await asyncio.to_thread(loaded.text.render, body["messages"], **values)
            saved = await loaded.client.save_context(body["path"], tuple(prompt.ids))
        return {"tokens": saved.saved, "bytes": saved.bytes}

    async def restore(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Take such a file into the memory of a model, which is loaded if need be."""
        async with self._supervisor.use(body["model"]) as loaded:
            restored = await loaded.client.load_context(body["path"])
        return {"tokens": restored.loaded, "total": restored.total}

    async def shutdown(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Leave, workers first. With `if_idle` only if no request is being answered."""
        busy = [loaded.name for loaded in self._supervisor.models if loaded.users]
        if body["if_idle"] and busy:
            return {"busy": busy}
        asyncio.get_running_loop().call_soon(self._shut_down)
        return {}


async def resize(supervisor: Supervisor, body: Mapping[str, Any]) -> dict[str, Any]:
    """Move memory of a loaded model."""
    kv, experts = kv_budget(body), body["experts"]
    if kv is None and experts is None:
        raise UsageError("There is nothing to resize.", "Give --kv or --experts.")
    before, loaded, resized = await supervisor.resize(body["model"], kv, experts)
    return {"before": before, "after": loaded.state(), "seconds": resized.seconds, "notes": list(resized.notes)}


def endpoint_of(action: Action, table: Mapping[str, Field] | None, until_gone: bool = False) -> Endpoint:
    """What calls `action` with the checked members of a request's body; without a table there is no body.

    `until_gone`: it is given up when the client goes away.
    """

    async def endpoint(request: Request) -> Response:
        try:
            body = {} if table is None else await read_body(request, partial(read_fields, table=table))
            work = action(body)
            return JSONResponse(await (while_connected(request, work) if until_gone else work))
        except FreetokenError as error:
            status, content = control_error(error)
            return JSONResponse(content, status_code=status)

    return endpoint


def _route(name: str, action: Action, table: Mapping[str, Field] | None, until_gone: bool = False) -> Route:
    endpoint = endpoint_of(action, table, until_gone)
    return Route(f"/control/{name}", endpoint, methods=["GET" if table is None else "POST"])
