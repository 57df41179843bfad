"""The worker without its link: messages in, steps, messages out. The only place that knows time."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

from engine.base.errors import FreetokenError, UsageError
from engine.base.units import parse_experts
from engine.memory.context import ContextMemory
from engine.memory.pages import PAGE_TOKENS, pages_for
from engine.program.executor import Floats
from engine.worker.batches import make_batch
from engine.worker.budget import Budget, in_force, move
from engine.worker.constraint import Grammars
from engine.worker.loaded import LoadedModel
from engine.worker.protocol import (
    PROTOCOL_VERSION,
    Cancel,
    Done,
    ExpertWork,
    Failed,
    Generate,
    GetStats,
    LoadContext,
    Message,
    Progress,
    Ready,
    Resize,
    Resized,
    SaveContext,
    Stats,
    Tokens,
)
from engine.worker.requests import Request
from engine.worker.sampler import Sampler
from engine.worker.scheduler import Policy, Scheduler
from engine.worker.sessions import Sessions

WATCH_SECONDS = 1.0  # between two looks at the device
GRAMMAR_SECONDS = 0.005  # between two looks at whether a grammar has been read, while there is nothing else to do


class Engine:
    """One loaded model, its context memory and its requests."""

    def __init__(
        self, model: LoadedModel, policy: Policy | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`policy` None: the model's own."""
        assert model.executor.page_tokens == PAGE_TOKENS
        context = model.budget.context
        assert model.executor.room == context.room.with_bytes(model.executor.block_bytes)
        self._model = model
        self._executor = model.executor
        self._planner = model.planner
        self._budget = model.budget
        self._clock = clock
        self._watched = clock()
        memory = ContextMemory(context.room, context.needs.traits, model.executor)
        self._scheduler = Scheduler(memory, context.context, policy or model.policy)
        self._sessions = Sessions(model.executor, memory, model.identity, clock)
        self._samplers: dict[Request, Sampler] = {}
        self._unready: list[Request] = []  # their grammars are being read
        self._grammars = Grammars(model.tokenizer, model.vocab_size)
        self._read_bytes = 0  # weights read by all steps
        self._expert_bytes = 0.0  # the executor's count of those of experts
        self._totals = dict.fromkeys(
            ("requests", "prompt_tokens", "cached_tokens", "generated_tokens", "steps", "step_seconds"), 0.0
        )

    @property
    def busy(self) -> bool:
        """Whether there is a step to take."""
        return bool(self._scheduler.active or self._scheduler.waiting or self._sessions.busy)

    def ready(self) -> Ready:
        """The first message of a worker."""
        model, context = self._model, self._budget.context
        return Ready(
            version=PROTOCOL_VERSION,
            device=model.device,
            threads=model.threads,
            context=self._scheduler.limit,
            context_limit=model.context_limit,
            context_border=model.context_border,
            kv_tokens=context.kv_tokens,
            kv_bytes_per_token=context.bytes_per_token,
            kv_bytes=context.kv_bytes,
            model_bytes=model.model_bytes,
            load_seconds=model.load_seconds,
            cache=model.planner.cache(self._budget),
            device_total=model.planner.device_total,
            device_text=model.device_text,
            notes=model.notes,
        )

    def handle(self, message: Message) -> list[Message]:
        """Carry out a message from the front; the answers that are ready at once."""
        if isinstance(message, Generate):
            return self._answering(message.request, None, lambda: self._generate(message))
        if isinstance(message, Cancel):
            self._cancel(message.request)
            return []
        if isinstance(message, Resize):
            return self._answering(None, message.ticket, lambda: self._resize(message))
        if isinstance(message, SaveContext | LoadContext):
            self._sessions.begin(message)
            return []
        if isinstance(message, GetStats):
            return [Stats(message.ticket, self._stats(), self._expert_work({}))]
        raise ValueError(f"a worker takes no {message.kind} message")

    def chore(self) -> list[Message]:
        """After a step: a little of what is to be saved or restored."""
        return self._sessions.advance()

    def close(self) -> None:
        """Before leaving: remove what is half done."""
        self._sessions.close()
        self._grammars.close()

    def admit(self) -> list[Message]:
        """Between two steps: begin the requests whose grammars have been read meanwhile."""
        ready = [request for request in self._unready if self._samplers[request].ready]
        self._unready = [request for request in self._unready if request not in ready]
        out: list[Message] = []
        for request in ready:
            out += self._answering(request.number, None, partial(self._begin, request))
        return out

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
            logits = self._executor.step(
                make_batch(runs, self._scheduler.memory.traits, self._scheduler.reading_next(runs))
            )
        except Exception as error:
            return self._fail([run.request for run in runs], error)
        completing = [run.request for run in runs if run.completes]
        now = self._clock()
        self._scheduler.complete(runs, now - began)
        self._count_reading()
        if self._model.experts is not None:
            self._model.experts.after_step(sum(run.count for run in runs), now - began)
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
        bound = message.sampling.thought
        fed = (*message.prompt, *message.sampling.logit_bias, *(() if bound is None else bound.closing))
        strange = next((token for token in fed if not self._known(token)), None)
        if strange is not None:
            raise UsageError(
                f"Token {strange} is not one of the model's {self._model.vocab_size}.",
                "Send ids of this model's tokens.",
            )
        if message.max_tokens < 1:
            raise UsageError(f"max_tokens is {message.max_tokens}.", "Ask for at least one token.")
        constraints = self._grammars.constraints(message.sampling.grammars, message.stop_ids)
        request = Request(
            number=message.request,
            prompt_tokens=len(message.prompt),
            tokens=list(message.prompt),
            max_tokens=message.max_tokens,
            stop_ids=frozenset(message.stop_ids),
            sampling=message.sampling,
            anchors=list(message.anchors),
            anchor_ids=message.anchor_ids,
            anchor_runs=message.anchor_runs,
        )
        self._samplers[request] = Sampler(message.sampling, message.prompt, constraints)
        if not self._samplers[request].ready:
            self._unready.append(request)
            return []
        return self._begin(request)

    def _begin(self, request: Request) -> list[Message]:
        try:
            self._samplers[request].check()
            self._scheduler.submit(request)
        except FreetokenError:
            self._samplers.pop(request).close()
            raise
        self._totals["requests"] += 1
        return [_progress(request)]

    def _cancel(self, number: int) -> None:
        """Give up a request or a ticket. An unknown or finished one is fine."""
        unready = next((request for request in self._unready if request.number == number), None)
        request = self._scheduler.find(number)
        if unready is not None:
            self._unready.remove(unready)
            self._samplers.pop(unready).close()
        elif request is not None:
            self._drop(request)
        else:
            self._sessions.cancel(number)

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
            if self._model.experts is not None:
                request.expert_counts_before = dict(self._model.experts.totals)
            self._totals["prompt_tokens"] += request.prompt_tokens
            self._totals["cached_tokens"] += request.cached_tokens
        self._totals["generated_tokens"] += 1
        finish = request.append(choice.token, self._scheduler.limit)
        self._scheduler.note_edges(request, *request.edge_at_end())
        out: list[Message] = []
        if finish != "stop":
            logprobs = (choice.logprob,) if choice.logprob is not None else ()
            out.append(Tokens(request.number, (choice.token,), logprobs))
        if finish is not None:
            self._drop(request)
            work = self._expert_work(request.expert_counts_before)
            out.append(_done(request, finish, now, self._read_bytes, work))
        return out

    def _fail(self, requests: list[Request], error: Exception) -> list[Message]:
        """End requests whose numbers cannot be trusted; nothing that they computed is kept for others."""
        if not isinstance(error, FreetokenError):
            traceback.print_exception(error)
            error = FreetokenError(f"The model failed in the middle of a step: {error!r}.", "Send the request again.")
        for request in requests:
            assert request.lease is not None
            self._scheduler.discard(request)
            self._samplers.pop(request).close()
        return [Failed.of(error, request=request.number) for request in requests]

    def _drop(self, request: Request) -> None:
        self._scheduler.remove(request)
        self._samplers.pop(request).close()

    def watch(self) -> list[Message]:
        """Between two steps: make way for other programs, or take what they have left. At most once a second."""
        now, watch = self._clock(), self._model.watch
        if watch is None or now - self._watched < WATCH_SECONDS:
            return []
        self._watched = now
        tokens = sum(pages_for(len(request.tokens) + 1) for request in self._scheduler.live) * PAGE_TOKENS
        found = watch.look(now, self._budget, tokens)
        if found is None:
            return []
        wanted, why = found
        try:
            return [self._move(wanted, ticket=0, notes=(why,))]
        except FreetokenError:
            return []  # the old budget stands, and the next look is a second away

    @property
    def idle_seconds(self) -> float | None:
        """Seconds until there is something to watch or to admit; None: never."""
        if self._unready:
            return GRAMMAR_SECONDS
        if self._model.watch is None:
            return None
        return max(0.0, self._watched + WATCH_SECONDS - self._clock())

    def _resize(self, message: Resize) -> list[Message]:
        experts = None if message.experts is None else parse_experts(message.experts)
        wanted = self._planner.resized(self._budget, message.kv, experts)
        resized = self._move(wanted, message.ticket, self._planner.notes(wanted, message.experts))
        if self._model.watch is not None:
            self._model.watch.wished(wanted)
        return [resized]

    def _move(self, wanted: Budget, ticket: int, notes: tuple[str, ...] = ()) -> Resized:
        """Move to another budget. On any failure the old one stands."""
        before, began, experts = self._budget, self._clock(), self._model.experts
        try:
            move(before, wanted, self._executor, experts, self._scheduler)
            self._budget = wanted
        except FreetokenError:
            self._budget = in_force(before, self._executor, experts)
            self._scheduler.context = self._budget.context.context
            raise
        return Resized(
            ticket=ticket,
            kv_before=before.context.kv_tokens,
            kv_after=wanted.context.kv_tokens,
            context=self._scheduler.limit,
            kv_bytes=wanted.context.kv_bytes,
            seconds=self._clock() - began,
            cache_before=self._planner.cache(before),
            cache_after=self._planner.cache(wanted),
            notes=notes,
        )

    def _expert_work(self, before: Mapping[str, float]) -> ExpertWork | None:
        """On a device: what happened since the counts were `before`."""
        return None if self._model.experts is None else self._model.experts.work().since(before)

    def _stats(self) -> Mapping[str, float]:
        memory = self._scheduler.memory
        context, cache = self._budget.context, self._planner.cache(self._budget)
        room = {} if cache is None else {f"expert_{name}": float(value) for name, value in vars(cache).items()}
        return {
            **self._totals,
            "read_bytes": self._read_bytes,
            "active": len(self._scheduler.active),
            "waiting": len(self._scheduler.waiting) + len(self._unready),
            "preemptions": self._scheduler.preemptions,
            "kv_tokens": context.kv_tokens,
            "kv_tokens_held": memory.held("page") * PAGE_TOKENS,
            "kv_tokens_cached": memory.tree.evictable * PAGE_TOKENS,
            "windows": memory.room.windows,
            "windows_held": memory.held("window"),
            "states": memory.room.states,
            "states_held": memory.held("state"),
            "checkpoints": memory.checkpoints.unpinned,
            "kv_bytes": context.kv_bytes,
            "context": self._scheduler.limit,
            **room,
            **({} if self._model.experts is None else self._model.experts.values()),
            **{f"executor_{name}": value for name, value in self._executor.counters().items()},
        }

    @staticmethod
    def _answering(request: int | None, ticket: int | None, action: Callable[[], list[Message]]) -> list[Message]:
        """What `action` answers; a user's error becomes an answer too."""
        try:
            return action()
        except FreetokenError as error:
            return [Failed.of(error, request=request, ticket=ticket)]


def _progress(request: Request) -> Progress:
    return Progress(request.number, request.computed, request.cached_tokens, request.prompt_tokens)


def _done(request: Request, reason: str, now: float, read_bytes: int, experts: ExpertWork | None) -> Done:
    assert request.started is not None
    assert request.first_token is not None
    return Done(
        request=request.number,
        reason=reason,
        prompt_tokens=request.prompt_tokens,
        cached_tokens=request.cached_tokens,
        generated=request.generated,
        prompt_seconds=request.first_token - request.started,
        decode_seconds=now - request.first_token,
        decode_bytes=read_bytes - request.read_bytes_before,
        experts=experts,
        reuse=None if request.reuse is None else replace(request.reuse, position=request.cached_tokens),
    )
