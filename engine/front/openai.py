"""The OpenAI interface: /v1/models, /v1/chat/completions, /v1/completions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, suppress
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from engine.base.errors import NotFoundError, UsageError
from engine.files.ftw.manifest import MANIFEST_NAME
from engine.front.answers import PLAIN, Job, Piece, Reader, Reading, Tally, answer_all, room_for_answer
from engine.front.chats import PromptIds, chat_prompt
from engine.front.http import Events, EventStream, read_body, while_connected
from engine.front.loaded import Loaded
from engine.front.requests import Asked, ChatAsked, CompletionAsked, read_chat, read_completion
from engine.front.shapes import ChatShape, CompletionShape, Shape
from engine.front.supervisor import Supervisor


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
        return JSONResponse({"object": "list", "data": data})

    async def model(self, request: Request) -> Response:
        """One model of the store."""
        return JSONResponse(self._model_json(request.path_params["name"]))

    async def chat(self, request: Request) -> Response:
        """A chat completion."""
        asked = read_chat(await read_body(request))
        return await while_connected(request, self._chat(asked))

    async def completion(self, request: Request) -> Response:
        """A text completion."""
        asked = read_completion(await read_body(request))
        return await while_connected(request, self._completion(asked))

    def _folder(self, name: str) -> Path:
        """Where a model is. NotFoundError also for what no model can be called, such as `someone/else`."""
        try:
            return self._supervisor.store.get(name)
        except UsageError as error:
            raise NotFoundError(error.message, error.remedy) from None

    def _use(self, name: str) -> AbstractAsyncContextManager[Loaded]:
        self._folder(name)
        return self._supervisor.use(name)

    def _model_json(self, name: str) -> dict[str, Any]:
        created = int((self._folder(name) / MANIFEST_NAME).stat().st_mtime)
        return {"id": name, "object": "model", "created": created, "owned_by": "local"}

    async def _chat(self, asked: ChatAsked) -> Response:
        async with AsyncExitStack() as stack:
            loaded = await stack.enter_async_context(self._use(asked.model))
            # Long conversations take a while to render and encode; others must not wait for that.
            prompt, reader = await asyncio.to_thread(chat_prompt, loaded.text, asked)
            jobs = _jobs(asked, loaded, [prompt], reader)
            shape = ChatShape(loaded.name, loaded.text, asked.logprobs >= 0, reader.form.id_style)
            return await _respond(asked, loaded, jobs, shape, stack)

    async def _completion(self, asked: CompletionAsked) -> Response:
        async with AsyncExitStack() as stack:
            loaded = await stack.enter_async_context(self._use(asked.model))
            prompts = await asyncio.to_thread(_encode, loaded, asked.prompts)
            jobs = _jobs(asked, loaded, prompts)
            echoes = [""] * len(jobs)
            if asked.echo:
                texts = [
                    prompt if isinstance(prompt, str) else loaded.text.decode(prompt, skip_special=False)
                    for prompt in asked.prompts
                ]
                echoes = [text for text in texts for _ in range(asked.choices)]
            shape = CompletionShape(loaded.name, loaded.text, asked.logprobs >= 0, echoes)
            return await _respond(asked, loaded, jobs, shape, stack)


def _encode(loaded: Loaded, prompts: Sequence[str | tuple[int, ...]]) -> list[PromptIds]:
    text = loaded.text
    ids = [tuple(text.encode_prompt(prompt)) if isinstance(prompt, str) else prompt for prompt in prompts]
    return [(prompt, text.anchors(prompt)) for prompt in ids]


def _jobs(asked: Asked, loaded: Loaded, prompts: Sequence[PromptIds], reader: Reader = PLAIN) -> list[Job]:
    """Every choice of every prompt. ContextFullError before anything is computed if a prompt is too long."""
    seed = asked.seed
    stop_ids = () if asked.ignore_eos else tuple(sorted(loaded.text.eos_ids))
    jobs: list[Job] = []
    for prompt, anchors in prompts:
        room = room_for_answer(len(prompt), loaded.ready.context, asked.max_tokens)
        for choice in range(asked.choices):
            sampling = asked.sampling(choice, loaded.defaults, seed)
            jobs.append(Job(len(jobs), prompt, room, stop_ids, asked.stops, sampling, anchors, reader))
    return jobs


async def _respond(asked: Asked, loaded: Loaded, jobs: Sequence[Job], shape: Shape, stack: AsyncExitStack) -> Response:
    """The answer, whole or as a stream. The worker's first word comes before the headers: it may be a refusal."""
    tally = Tally()
    pieces = answer_all(loaded.client, loaded.text, jobs, tally)
    stack.push_async_callback(pieces.aclose)  # also for a client that is gone before the first event
    if not asked.stream:
        told = [piece async for piece in pieces if isinstance(piece, Piece)]
        return JSONResponse(shape.whole(told, tally.usage(), tally.statistics()))
    first = await anext(pieces)
    events = _events(asked, pieces, first, len(jobs), shape, tally)
    return EventStream(events, stack.pop_all().aclose)


async def _events(
    asked: Asked,
    pieces: AsyncGenerator[Piece | Reading, None],
    first: Piece | Reading,
    choices: int,
    shape: Shape,
    tally: Tally,
) -> Events:
    for index in range(choices):
        opening = shape.opening(index)
        if opening is not None:
            yield opening
    yield _event(first, shape)
    async for piece in pieces:
        yield _event(piece, shape)
    if asked.include_usage:
        yield shape.closing(tally.usage(), tally.statistics())


def _event(piece: Piece | Reading, shape: Shape) -> dict[str, Any] | str:
    if isinstance(piece, Reading):
        return f"reading {piece.computed} of {piece.total}"
    return shape.event(piece)
