"""Which tokens the next step computes. Pure decisions: no arrays, no clock, no input or output."""

from __future__ import annotations

import bisect
from dataclasses import dataclass

from engine.base.errors import ContextFullError, DoesNotFitError
from engine.memory.context import ContextMemory
from engine.memory.pages import PAGE_TOKENS, pages_for
from engine.worker.pace import Pace
from engine.worker.requests import Request


@dataclass(frozen=True)
class Policy:
    """What a step may cost.

    While answers are streaming, a step that also reads a prompt should take `streaming_seconds`, or `patience` times
    the steps without one if that is more: below it a slow machine would hardly read. Without streams a prompt is read
    in steps of `alone_seconds`, so that a cancellation is heard.
    """

    max_active: int = 32
    max_step_tokens: int = 512
    first_step_tokens: int = 128  # before anything is known of this machine
    streaming_seconds: float = 0.15
    patience: float = 3.0
    alone_seconds: float = 1.0


POLICY = Policy()


@dataclass(frozen=True)
class Run:
    """`count` tokens of one request, from its first that is not computed."""

    request: Request
    start: int
    count: int

    @property
    def completes(self) -> bool:
        """Whether the logits of its last token choose the request's next token."""
        return self.start + self.count == len(self.request.tokens)


class Scheduler:
    """Continuous batching over one context memory.

    Requests are admitted in the order they came. When context memory runs out, old prefixes are forgotten first, then
    the youngest request is put back to wait; the oldest one always goes on, so every request is finished some day.
    """

    def __init__(self, memory: ContextMemory, context: int, policy: Policy = POLICY) -> None:
        self.memory = memory
        self.context = context
        self.policy = policy
        self.pace = Pace()
        self.waiting: list[Request] = []  # oldest first
        self.active: list[Request] = []  # oldest first
        self.preemptions = 0
        self._steps = 0
        self._decode_seconds = 0.0
        self._refused: tuple[int, int, int] | None = None  # who did not fit, and the pages there were

    @property
    def limit(self) -> int:
        """The most tokens a prompt and its answer may have; the last of them is never computed."""
        return min(self.context, self.memory.pool.capacity * PAGE_TOKENS)

    @property
    def live(self) -> list[Request]:
        return self.active + self.waiting

    def submit(self, request: Request) -> None:
        """Take a request in. ContextFullError with the counts if its prompt leaves no room for an answer."""
        if request.prompt_tokens >= self.limit:
            raise ContextFullError(
                f"The prompt has {request.prompt_tokens} tokens; the context holds {self.limit}, the answer included.",
                "Shorten the prompt, or load the model with a larger --context and --kv.",
            )
        self.waiting.append(request)

    def find(self, number: int) -> Request | None:
        """The live request of that number."""
        return next((request for request in self.live if request.number == number), None)

    def remove(self, request: Request) -> None:
        """Forget a finished or cancelled request; what it computed stays in the cache."""
        if request.lease is None:
            self.waiting.remove(request)
        else:
            self.active.remove(request)
            self.memory.close(request.lease)
            request.lease = None

    def discard(self, request: Request) -> None:
        """Forget an active request whose numbers cannot be trusted, and what it alone left in the cache."""
        assert request.lease is not None
        self.active.remove(request)
        self.memory.discard(request.lease)
        request.lease = None

    def plan(self) -> list[Run]:
        """The runs of the next step: a token of every decoding request, then parts of prompts; empty when idle."""
        self._steps += 1
        self._admit()
        while True:
            runs = self._plan_decoding()
            runs += self._plan_reading(streaming=len(runs))
            if runs or not self.active:
                return runs
            self._preempt_youngest()  # readers wait for each other's pages

    def complete(self, runs: list[Run], seconds: float) -> None:
        """Note that a step has computed `runs`; call it before tokens are appended."""
        tokens = sum(run.count for run in runs)
        self.pace.observe(tokens, seconds)
        if tokens == len(runs):
            self._decode_seconds = seconds
        for run in runs:
            request = run.request
            assert request.lease is not None
            request.computed = run.start + run.count
            if request.generated == 0:
                request.read += run.count
            self.memory.keep(request.lease, request.tokens, request.computed)

    def check_limit(self, limit: int) -> None:
        """Raise DoesNotFitError if a live request is too long for a context of `limit` tokens."""
        longest = max((len(request.tokens) for request in self.live), default=0)
        if longest >= limit:
            raise DoesNotFitError(
                f"A live request has {longest} tokens, {longest + 1 - limit} too many for --kv {limit}.",
                f"Give --kv {pages_for(longest + 1) * PAGE_TOKENS} or more, or wait until it has finished.",
            )

    def _admit(self) -> None:
        """Let waiting requests in, oldest first, while all their tokens have room beside what others still need."""
        while self.waiting and len(self.active) < self.policy.max_active:
            request = self.waiting[0]
            promised = sum(max(0, pages_for(len(r.tokens)) - len(r.lease.pages)) for r in self.active if r.lease)
            situation = (request.number, self.memory.available, promised)
            if situation == self._refused:
                return  # looking a long prompt up in the tree at every step would cost more than it can bring
            lease = self.memory.open()
            cached = self.memory.reuse(lease, request.tokens)
            missing = pages_for(len(request.tokens)) - len(lease.pages)
            if self.active and missing > self.memory.available - promised:
                self.memory.close(lease)
                self._refused = situation
                return
            request.lease, request.computed = lease, cached
            self.waiting.pop(0)
            bisect.insort(self.active, request, key=lambda r: r.number)

    def _plan_decoding(self) -> list[Run]:
        runs = []
        for request in list(self.active):
            if request.lease is None or request.remaining > 1:
                continue  # preempted a moment ago, or reading
            while request.lease is not None and not self.memory.reserve(request.lease, len(request.tokens)):
                self._preempt_youngest()
            if request.lease is not None:
                runs.append(Run(request, request.computed, 1))
        return [run for run in runs if run.request.lease is not None]

    def _plan_reading(self, streaming: int) -> list[Run]:
        readers = [request for request in self.active if request.remaining > 1]
        if not readers:
            return []
        budget = self._reading_tokens(streaming)
        runs: list[Run] = []
        begun: set[tuple[int, tuple[int, ...]]] = set()
        for request in sorted(readers, key=lambda r: (r.served, r.number)):
            assert request.lease is not None
            request.computed = max(request.computed, self.memory.reuse(request.lease, request.tokens))
            page = request.tokens[request.computed : request.computed + PAGE_TOKENS]
            mark = (id(request.lease.node), tuple(page))
            if len(page) == PAGE_TOKENS and mark in begun:
                continue  # another request computes the same page in this step; it is free in the next one
            count = self._chunk(request, budget)
            if count == 0:
                continue
            begun.add(mark)
            request.served = self._steps
            runs.append(Run(request, request.computed, count))
            budget -= count
            if budget < PAGE_TOKENS:
                break
        return runs

    def _reading_tokens(self, streaming: int) -> int:
        """Prompt tokens for this step; at least a page, or nothing would ever be read."""
        policy = self.policy
        seconds = policy.alone_seconds
        if streaming:
            seconds = max(policy.streaming_seconds, policy.patience * self._decode_seconds)
        most = policy.max_step_tokens if self.pace.known else policy.first_step_tokens
        tokens = self.pace.tokens_within(seconds, min(most, policy.max_step_tokens)) - streaming
        return max(PAGE_TOKENS, tokens // PAGE_TOKENS * PAGE_TOKENS)

    def _chunk(self, request: Request, budget: int) -> int:
        """Tokens of `request` to compute now, with pages reserved; 0 if there is no room at present."""
        assert request.lease is not None
        goal = request.computed + min(request.remaining, budget)
        if goal < len(request.tokens):
            goal = goal // PAGE_TOKENS * PAGE_TOKENS  # whole pages can be shared at once
        goal = min(goal, request.lease.capacity + self.memory.available * PAGE_TOKENS)
        if goal <= request.computed or not self.memory.reserve(request.lease, goal):
            return 0
        return goal - request.computed

    def _preempt_youngest(self) -> None:
        """Put the youngest active request back to wait. It keeps its tokens, and the cache as much as it can."""
        assert len(self.active) > 1, "a request that is alone always fits"
        request = self.active.pop()
        assert request.lease is not None
        self.memory.close(request.lease)
        request.lease = None
        request.computed = 0
        self.preemptions += 1
        bisect.insort(self.waiting, request, key=lambda r: r.number)
