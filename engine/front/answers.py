"""From token ids to an answer's text: several choices at once, stop strings, counts and times."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace

from engine.base.errors import ContextFullError
from engine.front.forms.custom_tools import CustomCalls
from engine.front.reuse import sentence
from engine.front.workers.client import WorkerClient
from engine.memory.lookup import Reuse
from engine.memory.retention import Anchor
from engine.text.formats.parser import AnswerParser, Part
from engine.text.formats.pieces import CallBegun, CallEnded, CallGrown, CallPiece, Said, Thought, Tools
from engine.text.formats.pieces import Piece as AnswerPiece
from engine.text.formats.record import AnswerFormat
from engine.text.text import Text
from engine.worker.protocol import (
    Done,
    ExpertWork,
    Generate,
    Grammar,
    Progress,
    Sampling,
    ThoughtBound,
    TokenLogprob,
    Tokens,
)


@dataclass(frozen=True)
class Reader:
    """How the answer of a chat is read and held. `begun` is what it begins with, the prompt's last words."""

    form: AnswerFormat
    tools: Tools | None
    part: Part
    begun: str = ""
    parallel: bool = True
    grammars: tuple[Grammar, ...] = ()
    bound: ThoughtBound | None = None
    custom: frozenset[str] = frozenset()  # the tools that are called with text
    enforced: frozenset[str] = frozenset()  # those whose calls follow all that is wished of them


PLAIN = Reader(AnswerFormat(), None, Part.SAID)


@dataclass(frozen=True)
class Job:
    """One choice of a request: a prompt to continue."""

    index: int
    prompt: tuple[int, ...]
    max_tokens: int
    stop_ids: tuple[int, ...]
    stops: tuple[str, ...]
    sampling: Sampling
    anchors: tuple[Anchor, ...] = ()
    reader: Reader = PLAIN

    def request(self, number: int, text: Text) -> Generate:
        """The choice as a request to a worker, with the anchors of what the model generates."""
        edges = (self.anchors, text.anchor_ids, text.anchor_runs)
        return Generate(number, self.prompt, self.max_tokens, self.stop_ids, self.sampling, *edges)


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


@dataclass
class Tally:
    """Counts and times of one request, over all its choices. Times in seconds."""

    began: float = field(default_factory=time.monotonic)
    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated: int = 0
    reasoned: int = 0  # of the generated tokens, those of reasoning
    first_token: float | None = None
    prompt_seconds: float = 0.0
    decode_seconds: float = 0.0
    decode_bytes: int = 0  # weights read in decode_seconds
    decoded: int = 0  # tokens after the first of each choice, which decode_seconds is the time of
    experts: ExpertWork | None = None  # of a device
    reuse: Reuse | None = None  # of the prompt of which most had to be computed
    reuse_prompt: int = 0  # its tokens

    def add(self, job: Job, cached: int, generated: int, prompt_seconds: float, decode_seconds: float) -> None:
        """Count a finished choice. Choices of one prompt share it, so it counts for the first of them alone."""
        if job.sampling.choice == 0:
            self.prompt_tokens += len(job.prompt)
            self.cached_tokens += cached
        self.generated += generated
        self.prompt_seconds += prompt_seconds
        self.decode_seconds += decode_seconds
        self.decoded += generated - 1

    def _expert_statistics(self) -> dict[str, float | int | str | None]:
        """Of the experts on a device while the answer was decoded; nothing without one."""
        work = self.experts
        if work is None or not work.counts["plans"]:
            return {}
        counts = work.counts
        routed = counts["hits"] + counts["misses"]
        return {
            "hit_rate": _share(counts["hits"], routed),
            "misses_per_layer": _share(counts["misses"], counts["plans"]),
            "misses_filled": round(counts["fills"]),
            "misses_computed": round(counts["cpu_experts"]),
            "cpu_share": _share(counts["cpu_experts"], routed),
            "link": _share(counts["link_bytes"] / 1e9, counts["link_seconds"]),
            "host": _share(counts["host_bytes"] / 1e9, counts["host_seconds"]),
            "fraction": work.fraction,
            "why": work.why,
            "clock": work.clock or None,
        }

    def add_experts(self, work: ExpertWork | None) -> None:
        """Count what happened while a choice was decoded, what it shared with other choices too."""
        if work is not None:
            self.experts = work if self.experts is None else self.experts.plus(work)

    def add_reuse(self, job: Job, reuse: Reuse | None) -> None:
        """Note what was reused of a prompt, and why no more."""
        if reuse is None or job.sampling.choice:
            return
        if self.reuse is None or len(job.prompt) - reuse.position > self.reuse_prompt - self.reuse.position:
            self.reuse, self.reuse_prompt = reuse, len(job.prompt)

    def _reuse_statistics(self) -> dict[str, float | int | str | None]:
        if self.reuse is None:
            return {}
        text = sentence(self.reuse, self.reuse_prompt)
        return {"known_tokens": self.reuse.known, "reuse_why": self.reuse.why, "reuse": text}

    def usage(self) -> dict[str, object]:
        """The OpenAI interface's `usage`."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.generated,
            "total_tokens": self.prompt_tokens + self.generated,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
            "completion_tokens_details": {"reasoning_tokens": self.reasoned},
        }

    def statistics(self) -> dict[str, float | int | str]:
        """Ours beside it, in seconds, tokens a second and GB/s of weights; what is not known is absent."""
        known: dict[str, float | int | str | None] = {
            "prompt_tokens": self.prompt_tokens,
            "prompt_rate": _rate(self.prompt_tokens - self.cached_tokens, self.prompt_seconds),
            "reused_tokens": self.cached_tokens,
            **self._reuse_statistics(),
            "generated_tokens": self.generated,
            "generated_rate": _rate(self.decoded, self.decode_seconds),
            "first_token": self.first_token,
            "memory": self.decode_bytes / self.decode_seconds / 1e9 if self.decode_bytes else None,
            **self._expert_statistics(),
        }
        return {name: value for name, value in known.items() if value is not None}


def _share(part: float, whole: float) -> float | None:
    return part / whole if whole > 0 else None


def _rate(tokens: int, seconds: float) -> float | None:
    return tokens / seconds if tokens > 0 and seconds > 0 else None


def room_for_answer(prompt_tokens: int, context: int, max_tokens: int | None) -> int:
    """Tokens an answer may have: what was asked for, at most what the context leaves.

    ContextFullError with the counts if the prompt leaves nothing.
    """
    room = context - prompt_tokens
    if room < 1:
        raise ContextFullError(
            # Agents shorten their conversations when they find "prompt is too long" or "maximum context length is".
            f"The prompt is too long: its {prompt_tokens} tokens leave no room for an answer. "
            f"This model's maximum context length is {context} tokens here.",
            "Shorten the prompt, or load the model with a larger --context and --kv.",
        )
    return room if max_tokens is None else min(room, max_tokens)


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
