"""From a request that was read to its answer, whole or streamed, whatever the interface."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import replace
from pathlib import Path

from starlette.responses import JSONResponse, Response

from engine.base.errors import NotFoundError, UsageError
from engine.front.answers import Piece, Reading, answer_all
from engine.front.asked import Asked
from engine.front.chats import PromptIds
from engine.front.jobs import PLAIN, Job, Reader, room_for_answer
from engine.front.shape import Shape
from engine.front.tally import Tally
from engine.front.wire.dialects import Json
from engine.front.wire.http import Events, EventStream
from engine.front.workers.loaded import Loaded
from engine.front.workers.supervisor import Supervisor


def folder_of(supervisor: Supervisor, name: str) -> Path:
    """Where a model is. NotFoundError also for what no model can be called, such as `someone/else`."""
    try:
        return supervisor.store.get(name)
    except UsageError as error:
        raise NotFoundError(error.message, error.remedy) from None


def use(supervisor: Supervisor, name: str) -> AbstractAsyncContextManager[Loaded]:
    """A model of the store, loaded; it stays so until the context ends. NotFoundError where there is none."""
    folder_of(supervisor, name)
    return supervisor.use(name)


def jobs_of(asked: Asked, loaded: Loaded, prompts: Sequence[PromptIds], reader: Reader = PLAIN) -> list[Job]:
    """Every choice of every prompt. ContextFullError before anything is computed if a prompt is too long."""
    seed = asked.seed
    stop_ids = () if asked.ignore_eos else tuple(sorted(loaded.text.eos_ids))
    jobs: list[Job] = []
    for prompt, anchors in prompts:
        room = room_for_answer(len(prompt), loaded.ready.context, asked.max_tokens)
        for choice in range(asked.choices):
            sampling = asked.sampling(choice, loaded.defaults, seed)
            sampling = replace(sampling, grammars=reader.grammars, thought=reader.bound)
            jobs.append(Job(len(jobs), prompt, room, stop_ids, asked.stops, sampling, anchors, reader))
    return jobs


async def respond(asked: Asked, loaded: Loaded, jobs: Sequence[Job], shape: Shape, stack: AsyncExitStack) -> Response:
    """The answer, whole or as a stream. The worker's first word comes before the headers: it may be a refusal."""
    tally = Tally()
    pieces = answer_all(loaded.client, loaded.text, jobs, tally)
    stack.push_async_callback(pieces.aclose)  # also for a client that is gone before the first event
    if not asked.stream:
        told = [piece async for piece in pieces if isinstance(piece, Piece)]
        return JSONResponse(shape.whole(told, tally))
    first = await anext(pieces)
    return EventStream(_events(pieces, first, len(jobs), shape, tally), stack.pop_all().aclose, shape.dialect)


async def _events(
    pieces: AsyncGenerator[Piece | Reading, None], first: Piece | Reading, choices: int, shape: Shape, tally: Tally
) -> Events:
    for index in range(choices):
        for opening in shape.opening(index):
            yield opening
    for event in _told(first, shape):
        yield event
    async for piece in pieces:
        for event in _told(piece, shape):
            yield event
    for closing in shape.closing(tally):
        yield closing


def _told(piece: Piece | Reading, shape: Shape) -> Sequence[Json | str]:
    if isinstance(piece, Reading):
        return [f"reading {piece.computed} of {piece.total}"]
    return shape.events(piece)
