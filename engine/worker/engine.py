"""The worker without its link: messages in, steps, messages out. The only place that knows time."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from engine.base.errors import FreetokenError, UsageError
from engine.memory.budget import ContextPlan, plan_resize
from engine.memory.context import ContextMemory
from engine.memory.pages import PAGE_TOKENS
from engine.program.executor import Batch, Executor, Floats
from engine.worker.protocol import (
    PROTOCOL_VERSION,
    Cancel,
    Done,
    Failed,
    Generate,
    GetStats,
    Message,
    Progress,
    Ready,
    Resize,
    Resized,
    Stats,
    Tokens,
    experts_notes,
)
from engine.worker.requests import Request
from engine.worker.sampler import Sampler
from engine.worker.scheduler import POLICY, Policy, Run, Scheduler


@dataclass(frozen=True)
class LoadedModel:
    """A model that can take steps, and what the front is told about it."""

    executor: Executor
    vocab_size: int
    context_limit: int  # the context that was asked for, else the model's
    plan: ContextPlan
    device: str
    isa: str
    threads: int
    model_bytes: int
    load_seconds: float
    dense_step_bytes: int  # of the weights that every step reads
    available: Callable[[], int]  # bytes of memory that are free now
    context_border: int | None = None  # a context on its other side takes another program
    notes: tuple[str, ...] = ()


class Engine:
    """One loaded model, its context memory and its requests."""

    def __init__(
        self, model: LoadedModel, policy: Policy = POLICY, clock: Callable[[], float] = time.monotonic
    ) -> None:
        assert model.executor.page_tokens == PAGE_TOKENS
        assert model.executor.kv_pages == model.plan.pages
        self._model = model
        self._executor = model.executor
        self._plan = model.plan
        self._clock = clock
        self._scheduler = Scheduler(ContextMemory(model.plan.pages), model.plan.context, policy)
        self._samplers: dict[Request, Sampler] = {}
        self._read_bytes = 0  # weights read by all steps
        self._expert_bytes = 0.0  # the executor's count of those of experts
        self._totals = dict.fromkeys(
            ("requests", "prompt_tokens", "cached_tokens", "generated_tokens", "steps", "step_seconds"), 0.0
        )

    @property
    def busy(self) -> bool:
        """Whether there is a step to take."""
        return bool(self._scheduler.active or self._scheduler.waiting)

    def ready(self) -> Ready:
        """The first message of a worker."""
        model = self._model
        return Ready(
            version=PROTOCOL_VERSION,
            device=model.device,
            threads=model.threads,
            context=self._scheduler.limit,
            context_limit=model.context_limit,
            context_border=model.context_border,
            kv_tokens=self._plan.kv_tokens,
            kv_bytes_per_token=self._plan.bytes_per_token,
            model_bytes=model.model_bytes,
            load_seconds=model.load_seconds,
            notes=model.notes,
        )

    def handle(self, message: Message) -> list[Message]:
        """Carry out a message from the front; the answers that are ready at once."""
        if isinstance(message, Generate):
            return self._answering(message.request, None, lambda: self._generate(message))
        if isinstance(message, Cancel):
            request = self._scheduler.find(message.request)
            if request is not None:
                self._drop(request)
            return []
        if isinstance(message, Resize):
            return self._answering(None, message.ticket, lambda: self._resize(message))
        if isinstance(message, GetStats):
            return [Stats(message.ticket, self._stats())]
        raise ValueError(f"a worker takes no {message.kind} message")

    def step(self) -> list[Message]:
        """Compute one batch and choose its tokens; what the front should hear of it."""
        runs = self._scheduler.plan()
        if not runs:
            return []
        began = self._clock()
        for run in runs:
            if run.request.started is None:
                run.request.started = began
        try:
            logits = self._executor.step(_batch(runs))
        except Exception as error:
            return self._fail([run.request for run in runs], error)
        completing = [run.request for run in runs if run.completes]
        now = self._clock()
        self._scheduler.complete(runs, now - began)
        self._count_reading()
        self._totals["steps"] += 1
        self._totals["step_seconds"] += now - began
        out: list[Message] = [_progress(run.request) for run in runs if run.request.generated == 0]
        for request, row in zip(completing, logits, strict=True):
            out += self._choose(request, row, now)
        return out

    def _count_reading(self) -> None:
        expert_bytes = self._executor.counters()["expert_bytes"]
        self._read_bytes += self._model.dense_step_bytes + int(expert_bytes - self._expert_bytes)
        self._expert_bytes = expert_bytes

    def _generate(self, message: Generate) -> list[Message]:
        if not message.prompt:
            raise UsageError("The prompt is empty.", "Send at least one token.")
        # Bounds are checked here because an id out of range would read beyond the embedding.
        strange = next((t for t in (*message.prompt, *message.sampling.logit_bias) if not self._known(t)), None)
        if strange is not None:
            raise UsageError(f"Token {strange} is not one of the model's {self._model.vocab_size}.")
        if message.max_tokens < 1:
            raise UsageError(f"max_tokens is {message.max_tokens}.", "Ask for at least one token.")
        request = Request(
            number=message.request,
            prompt_tokens=len(message.prompt),
            tokens=list(message.prompt),
            max_tokens=message.max_tokens,
            stop_ids=frozenset(message.stop_ids),
            sampling=message.sampling,
            arrived=self._clock(),
        )
        self._scheduler.submit(request)
        self._samplers[request] = Sampler(message.sampling, message.prompt)
        self._totals["requests"] += 1
        return [_progress(request)]

    def _known(self, token: int) -> bool:
        return 0 <= token < self._model.vocab_size

    def _choose(self, request: Request, logits: Floats, now: float) -> list[Message]:
        try:
            choice = self._samplers[request].choose(logits)
        except Exception as error:
            return self._fail([request], error)
        if request.first_token is None:
            request.first_token = now
            request.read_bytes_before = self._read_bytes
            self._totals["prompt_tokens"] += request.prompt_tokens
            self._totals["cached_tokens"] += request.cached_tokens
        self._totals["generated_tokens"] += 1
        finish = request.append(choice.token, self._scheduler.limit)
        out: list[Message] = []
        if finish != "stop":
            logprobs = (choice.logprob,) if choice.logprob is not None else ()
            out.append(Tokens(request.number, (choice.token,), logprobs))
        if finish is not None:
            self._drop(request)
            out.append(_done(request, finish, now, self._read_bytes))
        return out

    def _fail(self, requests: list[Request], error: Exception) -> list[Message]:
        """End requests whose numbers cannot be trusted; nothing that they computed is kept for others."""
        if not isinstance(error, FreetokenError):
            traceback.print_exception(error)
            error = FreetokenError(f"The model failed in the middle of a step: {error!r}.", "Send the request again.")
        for request in requests:
            assert request.lease is not None
            self._scheduler.discard(request)
            del self._samplers[request]
        return [Failed.of(error, request=request.number) for request in requests]

    def _drop(self, request: Request) -> None:
        self._scheduler.remove(request)
        del self._samplers[request]

    def _resize(self, message: Resize) -> list[Message]:
        began = self._clock()
        before, model = self._plan, self._model
        if message.kv is not None:
            self._set_plan(
                plan_resize(
                    before,
                    message.kv,
                    context_limit=model.context_limit,
                    context_border=model.context_border,
                    available=model.available(),
                )
            )
        return [
            Resized(
                ticket=message.ticket,
                kv_before=before.kv_tokens,
                kv_after=self._plan.kv_tokens,
                context=self._scheduler.limit,
                kv_bytes=self._plan.kv_bytes,
                seconds=self._clock() - began,
                notes=experts_notes(model.device, message.experts),
            )
        ]

    def _set_plan(self, plan: ContextPlan) -> None:
        """Move to another budget. On any failure the old one stands."""
        memory = self._scheduler.memory
        if plan.pages > self._plan.pages:
            self._executor.resize_kv(plan.pages)
            memory.grow(plan.pages)
        elif plan.pages < self._plan.pages:
            self._scheduler.check_limit(min(plan.context, plan.kv_tokens))
            memory.shrink(plan.pages, self._executor.copy_page)
            try:
                self._executor.resize_kv(plan.pages)
            except FreetokenError:
                memory.grow(self._plan.pages)
                raise
        self._scheduler.context = plan.context
        self._plan = plan

    def _stats(self) -> Mapping[str, float]:
        memory = self._scheduler.memory
        return {
            **self._totals,
            "active": len(self._scheduler.active),
            "waiting": len(self._scheduler.waiting),
            "preemptions": self._scheduler.preemptions,
            "kv_tokens": self._plan.kv_tokens,
            "kv_tokens_held": memory.held * PAGE_TOKENS,
            "kv_tokens_cached": memory.tree.evictable * PAGE_TOKENS,
            "kv_bytes": self._plan.kv_bytes,
            "context": self._scheduler.limit,
            **{f"executor_{name}": value for name, value in self._executor.counters().items()},
        }

    @staticmethod
    def _answering(request: int | None, ticket: int | None, action: Callable[[], list[Message]]) -> list[Message]:
        """What `action` answers; a user's error becomes an answer too."""
        try:
            return action()
        except FreetokenError as error:
            return [Failed.of(error, request=request, ticket=ticket)]


def _batch(runs: list[Run]) -> Batch:
    tokens: list[int] = []
    positions: list[int] = []
    starts = [0]
    rows: list[int] = []
    tables = []
    for run in runs:
        assert run.request.lease is not None
        end = run.start + run.count
        tokens += run.request.tokens[run.start : end]
        positions += range(run.start, end)
        starts.append(len(tokens))
        tables.append(np.array(run.request.lease.pages, np.int32))
        if run.completes:
            rows.append(len(tokens) - 1)
    return Batch(
        tokens=np.array(tokens, np.int32),
        positions=np.array(positions, np.int32),
        seq_starts=np.array(starts, np.int32),
        page_tables=tuple(tables),
        rows=np.array(rows, np.int32),
    )


def _progress(request: Request) -> Progress:
    return Progress(request.number, request.computed, request.cached_tokens, request.prompt_tokens)


def _done(request: Request, reason: str, now: float, read_bytes: int) -> Done:
    assert request.started is not None
    assert request.first_token is not None
    return Done(
        request=request.number,
        reason=reason,
        prompt_tokens=request.prompt_tokens,
        cached_tokens=request.cached_tokens,
        generated=request.generated,
        queue_seconds=request.started - request.arrived,
        prompt_seconds=request.first_token - request.started,
        decode_seconds=now - request.first_token,
        decode_bytes=read_bytes - request.read_bytes_before,
    )
