"""Which tokens the next step computes. Pure decisions: no arrays, no clock, no input or output."""

from __future__ import annotations

import bisect
import math
from dataclasses import dataclass

from engine.base.errors import ContextFullError, DoesNotFitError
from engine.memory.blocks import ContextRoom
from engine.memory.context import ContextMemory
from engine.memory.lease import Lease
from engine.memory.pages import PAGE_TOKENS, common_tokens, page_border, pages_for
from engine.memory.retention import Rank
from engine.memory.windows import window_pages
from engine.worker.pace import Pace
from engine.worker.requests import Request


@dataclass(frozen=True)
class Policy:
    """What a step may cost.

    While answers are streaming, a step that also reads a prompt should take `streaming_seconds`, or `patience` times
    the steps without one if that is more: below it a slow machine would hardly read; but no stream waits
    `longest_wait` seconds longer than for a step without one. Without streams a prompt is read in steps of
    `alone_seconds`, so that a cancellation is heard. No step has more than `max_step_tokens`, nor, while answers are
    streaming, more than `streaming_tokens`.
    """

    max_active: int = 32
    max_step_tokens: int = 512
    first_step_tokens: int = 128  # before anything is known of this machine
    streaming_seconds: float = 0.15
    patience: float = 3.0
    longest_wait: float = 0.25
    alone_seconds: float = 1.0
    streaming_tokens: int = 512


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

    Requests are admitted in the order they came, as long as there are blocks of every kind for them. When context
    memory runs out, old prefixes are forgotten first, then the youngest request is put back to wait; the oldest one
    always goes on, so every request is finished some day. Only what is being saved or restored can be in its way,
    and for that it waits.
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
        self._refused: tuple[int, ContextRoom, ContextRoom] | None = None  # who did not fit, and the blocks there were

    @property
    def limit(self) -> int:
        """The most tokens a prompt and its answer may have; the last of them is never computed."""
        return min(self.context, self.memory.room.pages * PAGE_TOKENS)

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
        bisect.insort(self.waiting, request, key=lambda r: r.number)

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
                break
            if not self._preempt_youngest():  # readers wait for each other's pages
                break
        for run in runs:  # last of all: what nobody needs in this step may be overwritten in it
            assert run.request.lease is not None
            self.memory.plan_saves(run.request.lease, run.start, run.start + run.count, run.request.worth_saving)
        return runs

    def reading_next(self, runs: list[Run]) -> int:
        """Prompt tokens that the step after that of `runs` is going to read, as far as anybody knows now."""
        unread = sum(run.request.remaining - run.count for run in runs if not run.completes)
        return min(unread, self._most_tokens(any(run.request.generated for run in runs)))

    def _most_tokens(self, streaming: bool) -> int:
        most = self.policy.max_step_tokens
        return min(most, self.policy.streaming_tokens) if streaming else most

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

    def note_edges(self, request: Request, opens: bool | None, length: int = 1) -> None:
        """Keep what is worth keeping around the token that a request has just been given.

        `opens` says whether it, or the last `length` tokens, open or close something, None: neither.
        """
        if request.lease is None or not self.memory.saves_budget:
            return
        for border, rank in request.edges_at_end(opens, length).items():
            if border > request.computed:
                request.worth_saving[border] = rank
            else:
                self.memory.mark(request.lease, border, rank)

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
            there, promised = self._available(), self._promised()
            situation = (request.number, there, promised)
            if situation == self._refused:
                return  # looking a long prompt up in the tree at every step would cost more than it can bring
            lease = self.memory.open()
            if self.memory.has_state_for(lease):
                request.take_up(self.memory.reuse(lease, request.tokens))
            if self.active and not _fits(self._needs(request, lease), self._available(), promised):
                self.memory.close(lease)
                self._refused = situation
                return
            request.lease = lease
            if self.memory.saves_budget:
                request.plan_saves(self.memory.saves_budget)
                self._share(request)
            self.waiting.pop(0)
            bisect.insort(self.active, request, key=lambda r: r.number)

    def _available(self) -> ContextRoom:
        memory = self.memory
        return ContextRoom(*(memory.available(kind) for kind in ("page", "window", "state")))

    def _promised(self) -> ContextRoom:
        """What the active requests still need, for all tokens that are known of them."""
        needs = [self._needs(request, request.lease) for request in self.active if request.lease is not None]
        return ContextRoom(
            sum(need.pages for need in needs), sum(need.windows for need in needs), sum(need.states for need in needs)
        )

    def _needs(self, request: Request, lease: Lease) -> ContextRoom:
        tokens, traits = len(request.tokens), self.memory.traits
        windows = window_pages(tokens, traits.reach, PAGE_TOKENS)
        return ContextRoom(
            max(0, pages_for(tokens) - len(lease.pages)),
            max(0, windows - lease.window_count),
            int(traits.stateful and lease.state < 0),
        )

    def _share(self, request: Request) -> None:
        """Have those who read a prompt that begins like this one's save what is needed where they part."""
        for other in self.active:
            common = page_border(common_tokens(request.tokens, other.tokens))
            if other.remaining > 1 and common > max(other.computed, request.computed):
                other.worth_saving.setdefault(common, Rank.OPENING)

    def _plan_decoding(self) -> list[Run]:
        runs = []
        for request in list(self.active):
            if request.lease is None or request.remaining > 1:
                continue  # preempted a moment ago, or reading
            while request.lease is not None:
                if self.memory.reserve(request.lease, len(request.tokens)):
                    runs.append(Run(request, request.computed, 1))
                    break
                if not self._preempt_youngest():
                    break
        return [run for run in runs if run.request.lease is not None]

    def _plan_reading(self, streaming: int) -> list[Run]:
        readers = [request for request in self.active if request.remaining > 1]
        if not readers:
            return []
        budget = self._reading_tokens(streaming)
        runs: list[Run] = []
        begun: set[tuple[int, int, tuple[int, ...]]] = set()
        for request in sorted(readers, key=lambda r: (r.served, r.number)):
            assert request.lease is not None
            if not self.memory.has_state_for(request.lease):
                continue
            found = self.memory.look_up(request.lease, request.tokens)
            start = max(request.computed, found.reuse.position)
            page = request.tokens[start : start + PAGE_TOKENS]
            mark = (id(found.path[-1]) if found.path else 0, start, tuple(page))
            if len(page) == PAGE_TOKENS and mark in begun:
                continue  # another request computes the same page in this step; it is free in the next one
            if start > request.computed:
                request.take_up(self.memory.reuse(request.lease, request.tokens))
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
        seconds, limit = policy.alone_seconds, self._most_tokens(streaming > 0)
        if streaming:
            patient = min(policy.patience * self._decode_seconds, policy.longest_wait + self._decode_seconds)
            seconds = max(policy.streaming_seconds, patient)
        if not self.pace.known and seconds < math.inf:
            limit = min(limit, policy.first_step_tokens)
        tokens = self.pace.tokens_within(seconds, limit) - streaming
        return max(PAGE_TOKENS, tokens // PAGE_TOKENS * PAGE_TOKENS)

    def _chunk(self, request: Request, budget: int) -> int:
        """Tokens of `request` to compute now, with pages reserved; 0 if there is no room at present."""
        assert request.lease is not None
        goal = request.computed + min(request.remaining, budget)
        if goal < len(request.tokens):
            goal = goal // PAGE_TOKENS * PAGE_TOKENS  # whole pages can be shared at once
        goal = min(goal, self.memory.within_reach(request.lease))
        if goal <= request.computed or not self.memory.reserve(request.lease, goal):
            return 0
        return goal - request.computed

    def _preempt_youngest(self) -> bool:
        """Put the youngest active request back to wait. It keeps its tokens, and the cache as much as it can.

        False where the only one has to wait for a prefix that is being saved or restored.
        """
        if len(self.active) == 1:
            assert self.memory.prefixes, "a request that is alone always fits"
            return False
        request = self.active.pop()
        assert request.lease is not None
        self.memory.close(request.lease)
        request.lease = None
        request.computed = 0
        self.preemptions += 1
        bisect.insort(self.waiting, request, key=lambda r: r.number)
        return True


def _fits(need: ContextRoom, available: ContextRoom, promised: ContextRoom) -> bool:
    return (
        need.pages <= available.pages - promised.pages
        and need.windows <= available.windows - promised.windows
        and need.states <= available.states - promised.states
    )
