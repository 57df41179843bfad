"""From token ids to an answer's text, reasoning and calls: several choices at once, cut at stop strings."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace

from engine.front.forms.custom_tools import CustomCalls
from engine.front.jobs import Job
from engine.front.tally import Tally
from engine.front.workers.client import WorkerClient
from engine.text.formats.parser import AnswerParser
from engine.text.formats.pieces import CallBegun, CallEnded, CallGrown, CallPiece, Said, Thought
from engine.text.formats.pieces import Piece as AnswerPiece
from engine.text.text import Text
from engine.worker.protocol import Done, Progress, TokenLogprob, Tokens


@dataclass(frozen=True)
class ScoredToken:
    """A token with its log probabilities."""

    token: int
    scores: TokenLogprob


@dataclass(frozen=True)
class Piece:
    """Some more of choice `index`: of its text, its reasoning or a call. The last one carries why it ended."""

    index: int
    text: str = ""
    tokens: tuple[ScoredToken, ...] = ()  # those of the text
    finish_reason: str | None = None
    thought: str = ""
    call: CallPiece | None = None
    stopped: str | None = None  # the stop string that ended the choice


@dataclass(frozen=True)
class Reading:
    """How far the prompt of choice `index` has been read."""

    index: int
    computed: int
    total: int


async def answer_all(
    client: WorkerClient, text: Text, jobs: Sequence[Job], tally: Tally
) -> AsyncGenerator[Piece | Reading, None]:
    """The pieces of all choices as they come. Errors of any choice end all; so does closing the iterator."""
    queue: asyncio.Queue[Piece | Reading | BaseException] = asyncio.Queue()

    async def run(job: Job) -> None:
        try:
            async with aclosing(answer(client, text, job, tally)) as pieces:
                async for piece in pieces:
                    queue.put_nowait(piece)
        except Exception as error:
            queue.put_nowait(error)

    tasks = [asyncio.create_task(run(job)) for job in jobs]
    unfinished = len(tasks)
    try:
        while unfinished:
            item = await queue.get()
            if isinstance(item, BaseException):
                raise item
            if isinstance(item, Piece) and item.finish_reason is not None:
                unfinished -= 1
            yield item
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def answer(client: WorkerClient, text: Text, job: Job, tally: Tally) -> AsyncGenerator[Piece | Reading, None]:
    """The pieces of one choice. Text is held back while it may still turn out to be part of something else."""
    heard = reused = 0
    began = first = time.monotonic()
    telling = _Telling(job, text)
    messages = client.generate(lambda number: job.request(number, text))
    async with aclosing(messages):
        async for message in messages:
            if isinstance(message, Progress):
                reused = message.reused
                yield Reading(job.index, message.computed, message.total)
            elif isinstance(message, Tokens):
                if not heard:
                    first = time.monotonic()
                    tally.first_token = min(first - tally.began, tally.first_token or float("inf"))
                heard += len(message.ids)
                tally.reasoned += len(message.ids) if telling.thinking else 0
                for piece in telling.hear(message):
                    yield piece
                if telling.ended:
                    # The worker is cut off and gives no account of its own.
                    tally.add(job, reused, heard, first - began, time.monotonic() - first)
                    for piece in telling.finish("stop"):
                        yield piece
                    return
            elif isinstance(message, Done):
                tally.add(job, message.cached_tokens, message.generated, message.prompt_seconds, message.decode_seconds)
                tally.decode_bytes += message.decode_bytes
                tally.add_experts(message.experts)
                tally.add_reuse(job, message.reuse)
                for piece in telling.finish(message.reason):
                    yield piece


class _Telling:
    """Makes pieces of the tokens of one choice."""

    def __init__(self, job: Job, text: Text) -> None:
        self._job = job
        reader = job.reader
        self._stream = text.stream(job.stops, markers=reader.form.markers)
        self._parser = AnswerParser(reader.form, reader.tools, reader.part)
        self._begun = self._parser.push(reader.begun)
        self._calls = CustomCalls(reader.custom)
        self._held: list[ScoredToken] = []
        self._called = self._enough = False
        self.ended = False
        """Whether nothing more is wanted: a stop string has come, or the only call that was allowed."""

    @property
    def thinking(self) -> bool:
        """Whether the model is in the middle of reasoning."""
        return self._parser.thinking

    def hear(self, message: Tokens) -> list[Piece]:
        """What some more tokens make certain."""
        grown = "".join([self._stream.push(token) for token in message.ids])
        self._held += [ScoredToken(*pair) for pair in zip(message.ids, message.logprobs, strict=False)]
        if self._stream.stopped is not None:
            self.ended = True
            self._held.clear()
        return self._pieces(self._parser.push(grown)) if grown else []

    def finish(self, reason: str) -> list[Piece]:
        """The rest, and why the answer ended."""
        rest = [] if self.ended else self._parser.push(self._stream.finish())
        unfinished = self._parser.finish()
        pieces = self._pieces([*rest, *unfinished])
        stopped = self._stream.stopped
        cut = stopped is not None and any(isinstance(part, CallGrown) for part in unfinished)
        reason = "tool_calls" if self._called and reason == "stop" and not cut else reason
        if pieces and not self._held:
            return [*pieces[:-1], replace(pieces[-1], finish_reason=reason, stopped=stopped)]
        return [*pieces, Piece(self._job.index, "", tuple(self._held), reason, stopped=stopped)]

    def _pieces(self, parts: Sequence[AnswerPiece]) -> list[Piece]:
        pieces = []
        for part in [*self._begun, *parts]:
            if self._enough:
                break
            match part:
                case Said():
                    pieces.append(Piece(self._job.index, part.text, tuple(self._held)))
                case Thought():
                    pieces.append(Piece(self._job.index, thought=part.text))
                case _:
                    pieces += [Piece(self._job.index, call=call) for call in self._calls.read(part)]
            if isinstance(part, CallBegun):
                self._called = True
            elif isinstance(part, CallEnded) and not self._job.reader.parallel:
                self.ended = self._enough = True
            self._held.clear()
        self._begun = []
        return pieces
