"""One request on its way through the worker."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from engine.memory.context import Lease
from engine.worker.protocol import Sampling


@dataclass(eq=False)
class Request:
    """A prompt, what was generated so far, and how much of both is in the cache.

    `computed` positions are in the cache; `tokens` are known. One token is always still to be computed: the one whose
    logits give the next. With more than one, the request is reading (its prompt, or everything again after a
    preemption); with one it is decoding. Times come from the worker's monotonic clock.
    """

    number: int
    prompt_tokens: int
    tokens: list[int]
    max_tokens: int
    stop_ids: frozenset[int]
    sampling: Sampling
    arrived: float
    lease: Lease | None = None  # None: waiting
    computed: int = 0
    read: int = 0  # prompt tokens that were computed for this request, those after a preemption again
    started: float | None = None  # its first step
    first_token: float | None = None
    read_bytes_before: int = 0  # weights that the worker had read by then
    expert_counts_before: Mapping[str, float] = field(default_factory=dict)  # the worker's of then
    served: int = 0  # number of the step in which its prompt was read last

    @property
    def generated(self) -> int:
        return len(self.tokens) - self.prompt_tokens

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens that were found in the cache so far."""
        return max(0, min(self.computed, self.prompt_tokens) - self.read)

    @property
    def remaining(self) -> int:
        """Tokens to compute before the next one can be chosen."""
        return len(self.tokens) - self.computed

    def append(self, token: int, limit: int) -> str | None:
        """Add the chosen token; the finish reason if it is the last one. `limit` bounds prompt and answer together."""
        self.tokens.append(token)
        if token in self.stop_ids:
            return "stop"
        if self.generated >= self.max_tokens or len(self.tokens) >= limit:
            return "length"
        return None
