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
from engine.front.responses_api.requests import Messages, ResponseAsked, previous_id, read_response
from engine.front.responses_api.shape import ResponseShape
from engine.front.responses_api.stored import StoredResponses
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
            Route("/v1/responses/{identity}", self.get, methods=["GET"]),
            Route("/v1/responses/{identity}", self.delete, methods=["DELETE"]),
        ]

    async def create(self, request: Request) -> Response:
        """A response."""
        asked = await read_body(request, self._read)
        return await while_connected(request, self._create(asked))

    async def get(self, request: Request) -> Response:
        """One that was stored. FieldError where it is to be streamed, for clients make no events of anything else."""
        if request.query_params.get("stream", "false") != "false":
            raise FieldError("stream", "a response that was stored is not streamed again.", "Leave it out.")
        stored = self._stored.get(request.path_params["identity"])
        if stored is None:
            raise HTTPException(404)
        return JSONResponse(stored.response)

    async def delete(self, request: Request) -> Response:
        """Forget one."""
        identity = request.path_params["identity"]
        if not self._stored.remove(identity):
            raise HTTPException(404)
        return JSONResponse({"id": identity, "object": "response", "deleted": True})

    def _read(self, body: dict[str, Any]) -> ResponseAsked:
        whole = {**body, "input": self._stored.with_items(body.get("input"))}
        return read_response(whole, self._before(previous_id(body)))

    def _before(self, previous: str | None) -> Messages:
        """The conversation that a response of that id ended."""
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

    async def _create(self, asked: ResponseAsked) -> Response:
        async with AsyncExitStack() as stack:
            loaded = await stack.enter_async_context(use(self._supervisor, asked.model))
            prompt, reader = await asyncio.to_thread(chat_prompt, loaded.text, asked)
            jobs = jobs_of(asked, loaded, [prompt], reader)

            def keep(response: dict[str, object]) -> None:
                if asked.store:
                    self._stored.add(response, asked.conversation)

            shape = ResponseShape(loaded.name, asked, reader.form.id_style, keep)
            ignored = asked.idle(reader)
            return naming_ignored(await respond(asked, loaded, jobs, shape, stack), ignored)
