"""The OpenAI interface: /v1/models, /v1/chat/completions, /v1/completions."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from engine.base.errors import NotFoundError
from engine.files.ftw.manifest import MANIFEST_NAME
from engine.front.answering import folder_of, jobs_of, respond, use
from engine.front.asked import ChatAsked
from engine.front.chats import PromptIds, chat_prompt
from engine.front.openai_api.requests import CompletionAsked, read_chat, read_completion
from engine.front.openai_api.shapes import ChatShape, CompletionShape
from engine.front.wire.dialects import stamp
from engine.front.wire.http import naming_ignored, read_body, while_connected
from engine.front.workers.loaded import Loaded
from engine.front.workers.supervisor import Supervisor


class OpenAI:
    """The routes over one supervisor."""

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor

    def routes(self) -> list[Route]:
        return [
            Route("/v1/models", self.models, methods=["GET"]),
            Route("/v1/models/{name:path}", self.model, methods=["GET"]),
            Route("/v1/chat/completions", self.chat, methods=["POST"]),
            Route("/v1/completions", self.completion, methods=["POST"]),
        ]

    async def models(self, request: Request) -> Response:
        """Every model in the store; being loaded is not needed."""
        data = []
        for name in await asyncio.to_thread(self._supervisor.store.names):
            with suppress(NotFoundError, FileNotFoundError):  # removed a moment ago
                data.append(self._model_json(name))
        # Anthropic's clients ask here too, and read the members behind `data`.
        ends = {"first_id": data[0]["id"], "last_id": data[-1]["id"]} if data else {"first_id": None, "last_id": None}
        return JSONResponse({"object": "list", "data": data, "has_more": False, **ends})

    async def model(self, request: Request) -> Response:
        """One model of the store; all of them for the list's own path with a slash behind it."""
        name = request.path_params["name"]
        return JSONResponse(self._model_json(name)) if name else await self.models(request)

    async def chat(self, request: Request) -> Response:
        """A chat completion."""
        asked = await read_body(request, read_chat)
        return await while_connected(request, self._chat(asked))

    async def completion(self, request: Request) -> Response:
        """A text completion."""
        asked = await read_body(request, read_completion)
        return await while_connected(request, self._completion(asked))

    def _model_json(self, name: str) -> dict[str, Any]:
        """A model in the words of OpenAI's interface, and of Anthropic's."""
        created = int((folder_of(self._supervisor, name) / MANIFEST_NAME).stat().st_mtime)
        theirs = {"type": "model", "display_name": name, "created_at": stamp(created), "lifecycle": "active"}
        return {"id": name, "object": "model", "created": created, "owned_by": "local", **theirs}

    async def _chat(self, asked: ChatAsked) -> Response:
        async with AsyncExitStack() as stack:
            loaded = await stack.enter_async_context(use(self._supervisor, asked.model))
            # Long conversations take a while to render and encode; others must not wait for that.
            prompt, reader = await asyncio.to_thread(chat_prompt, loaded.text, asked)
            jobs = jobs_of(asked, loaded, [prompt], reader)
            shape = ChatShape(loaded.name, loaded.text, asked.logprobs >= 0, asked.include_usage, reader.form.id_style)
            response = await respond(asked, loaded, jobs, shape, stack)
            return naming_ignored(response, asked.idle(reader))

    async def _completion(self, asked: CompletionAsked) -> Response:
        async with AsyncExitStack() as stack:
            loaded = await stack.enter_async_context(use(self._supervisor, asked.model))
            prompts = await asyncio.to_thread(_encode, loaded, asked.prompts)
            jobs = jobs_of(asked, loaded, prompts)
            echoes = [""] * len(jobs)
            if asked.echo:
                texts = [
                    prompt if isinstance(prompt, str) else loaded.text.decode(prompt, skip_special=False)
                    for prompt in asked.prompts
                ]
                echoes = [text for text in texts for _ in range(asked.choices)]
            shape = CompletionShape(loaded.name, loaded.text, asked.logprobs >= 0, asked.include_usage, echoes)
            return await respond(asked, loaded, jobs, shape, stack)


def _encode(loaded: Loaded, prompts: Sequence[str | tuple[int, ...]]) -> list[PromptIds]:
    text = loaded.text
    ids = [tuple(text.encode_prompt(prompt)) if isinstance(prompt, str) else prompt for prompt in prompts]
    return [(prompt, text.anchors(prompt)) for prompt in ids]
