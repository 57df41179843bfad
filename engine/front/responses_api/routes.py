"""The routes of responses: /v1/responses and /v1/responses/ID."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from engine.front.answering import jobs_of, respond, use
from engine.front.chats import chat_prompt
from engine.front.responses_api.items import Items
from engine.front.responses_api.requests import PAGE, ResponseAsked, previous_id, read_response
from engine.front.responses_api.shape import ResponseShape
from engine.front.responses_api.stored import Stored, StoredResponses
from engine.front.wire.fields import FieldError
from engine.front.wire.http import naming_ignored, read_body, while_connected
from engine.front.workers.supervisor import Supervisor


class Responses:
    """The routes over one supervisor."""

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor
        self._stored = StoredResponses()

    def routes(self) -> list[Route]:
        return [
            Route("/v1/responses", self.create, methods=["POST"]),
            Route("/v1/responses/input_tokens", self.count, methods=["POST"]),
            Route("/v1/responses/{identity}", self.get, methods=["GET"]),
            Route("/v1/responses/{identity}", self.delete, methods=["DELETE"]),
            Route("/v1/responses/{identity}/input_items", self.input_items, methods=["GET"]),
            Route("/v1/responses/{identity}/cancel", self.cancel, methods=["POST"]),
        ]

    async def create(self, request: Request) -> Response:
        """A response."""
        asked = await read_body(request, self._read)
        return await while_connected(request, self._create(asked))

    async def count(self, request: Request) -> Response:
        """How many tokens the prompt of a response would have."""
        asked = await read_body(request, self._read)
        return await while_connected(request, self._count(asked))

    async def get(self, request: Request) -> Response:
        """One that was stored. FieldError where it is to be streamed, for clients make no events of anything else."""
        if request.query_params.get("stream", "false") != "false":
            raise FieldError("stream", "a response that was stored is not streamed again.", "Leave it out.")
        return JSONResponse(self._found(request).response)

    async def delete(self, request: Request) -> Response:
        """Forget one."""
        identity = request.path_params["identity"]
        if not self._stored.remove(identity):
            raise HTTPException(404)
        return JSONResponse({"id": identity, "object": "response", "deleted": True})

    async def input_items(self, request: Request) -> Response:
        """A page of the items that one was made from, those of the responses before it among them."""
        items = self._found(request).inputs
        asked = {name: field.value(name, request.query_params) for name, field in PAGE.items()}
        if asked["order"] == "desc":
            items = items[::-1]
        if asked["after"] is not None:
            ids = [item["id"] for item in items]
            if asked["after"] not in ids:
                raise FieldError("after", "the response was made from no such item.")
            items = items[ids.index(asked["after"]) + 1 :]
        page = items[: asked["limit"]]
        ends = {"first_id": page[0]["id"], "last_id": page[-1]["id"]} if page else {"first_id": None, "last_id": None}
        return JSONResponse({"object": "list", "data": page, **ends, "has_more": len(page) < len(items)})

    async def cancel(self, request: Request) -> Response:
        """FieldError: what can be cancelled elsewhere is made in the background."""
        self._found(request)
        raise FieldError(
            "response", "it is complete.", "To end a response here, close the connection that it comes by."
        )

    def _found(self, request: Request) -> Stored:
        stored = self._stored.get(request.path_params["identity"])
        if stored is None:
            raise HTTPException(404)
        return stored

    def _read(self, body: dict[str, Any]) -> ResponseAsked:
        whole = {**body, "input": self._stored.with_items(body.get("input"))}
        return read_response(whole, self._before(previous_id(body)))

    def _before(self, previous: str | None) -> Items:
        """The items that a response of that id ended."""
        if previous is None:
            return ()
        stored = self._stored.get(previous)
        if stored is None:
            raise FieldError(
                "previous_response_id",
                "there is no such response.",
                "It was not stored, or long ago: send the whole conversation.",
            )
        return stored.conversation

    async def _count(self, asked: ResponseAsked) -> Response:
        async with use(self._supervisor, asked.model) as loaded:
            prompt, reader = await asyncio.to_thread(chat_prompt, loaded.text, asked)
            counted = {"object": "response.input_tokens", "input_tokens": len(prompt[0])}
            return naming_ignored(JSONResponse(counted), asked.idle(reader))

    async def _create(self, asked: ResponseAsked) -> Response:
        async with AsyncExitStack() as stack:
            loaded = await stack.enter_async_context(use(self._supervisor, asked.model))
            prompt, reader = await asyncio.to_thread(chat_prompt, loaded.text, asked)
            jobs = jobs_of(asked, loaded, [prompt], reader)

            def keep(response: dict[str, object]) -> None:
                if asked.store:
                    self._stored.add(response, asked.items)

            shape = ResponseShape(loaded.name, asked, reader.form.id_style, keep)
            ignored = asked.idle(reader)
            return naming_ignored(await respond(asked, loaded, jobs, shape, stack), ignored)
