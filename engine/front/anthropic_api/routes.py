"""Anthropic's interface: /v1/messages and /v1/messages/count_tokens."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from functools import partial

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from engine.front.answering import jobs_of, respond, use
from engine.front.anthropic_api.requests import read_messages
from engine.front.anthropic_api.shape import MessageShape
from engine.front.asked import ChatAsked
from engine.front.chats import chat_prompt
from engine.front.wire.http import naming_ignored, read_body, while_connected
from engine.front.workers.supervisor import Supervisor


class Anthropic:
    """The routes over one supervisor."""

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor

    def routes(self) -> list[Route]:
        return [
            Route("/v1/messages", self.messages, methods=["POST"]),
            Route("/v1/messages/count_tokens", self.count_tokens, methods=["POST"]),
        ]

    async def messages(self, request: Request) -> Response:
        """A message."""
        asked = await read_body(request, read_messages)
        return await while_connected(request, self._messages(asked))

    async def count_tokens(self, request: Request) -> Response:
        """How many tokens the prompt of a message would have."""
        asked = await read_body(request, partial(read_messages, counting=True))
        return await while_connected(request, self._count(asked))

    async def _messages(self, asked: ChatAsked) -> Response:
        async with AsyncExitStack() as stack:
            loaded = await stack.enter_async_context(use(self._supervisor, asked.model))
            prompt, reader = await asyncio.to_thread(chat_prompt, loaded.text, asked)
            jobs = jobs_of(asked, loaded, [prompt], reader)
            shape = MessageShape(loaded.name, len(prompt[0]), reader.form.id_style)
            response = await respond(asked, loaded, jobs, shape, stack)
            return naming_ignored(response, asked.idle(reader))

    async def _count(self, asked: ChatAsked) -> Response:
        async with use(self._supervisor, asked.model) as loaded:
            prompt, reader = await asyncio.to_thread(chat_prompt, loaded.text, asked)
            return naming_ignored(JSONResponse({"input_tokens": len(prompt[0])}), asked.idle(reader))
