"""One request on its way through the worker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from engine.memory.lease import Lease
from engine.memory.lookup import Reuse
from engine.memory.retention import NET_TOKENS, Anchor, Rank, borders_of_edge, borders_to_save
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
    anchors: list[Anchor] = field(default_factory=list)  # in prompt and answer, ascending
    anchor_ids: Mapping[int, bool] = field(default_factory=dict)
    anchor_runs: Sequence[tuple[tuple[int, ...], bool]] = ()
    lease: Lease | None = None  # None: waiting
    reuse: Reuse | None = None  # what was found when its prompt was taken up
    worth_saving: dict[int, Rank] = field(default_factory=dict)  # page borders that are to become checkpoints
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

    def take_up(self, found: Reuse) -> None:
        """Note that what lies before `found.position` is in the cache."""
        self.computed = found.position
        if self.generated == 0 and (self.reuse is None or found.position > self.reuse.position):
            self.reuse = found

    def plan_saves(self, budget: int) -> None:
        """Choose the borders of all known tokens that are worth a checkpoint, at most `budget`."""
        self.worth_saving = dict(borders_to_save(self.anchors, self.computed, len(self.tokens), budget))

    def edge_at_end(self) -> tuple[bool | None, int]:
        """Whether the last generated tokens open (True) or close (False) something, None: neither; and how many do."""
        if self.tokens[-1] in self.anchor_ids:
            return self.anchor_ids[self.tokens[-1]], 1
        for run, opens in self.anchor_runs:
            if len(run) <= self.generated and tuple(self.tokens[-len(run) :]) == run:
                return opens, len(run)
        return None, 1

    def edges_at_end(self, opens: bool | None, length: int = 1) -> Mapping[int, Rank]:
        """Borders worth a checkpoint around the last `length` tokens, which open (True) or close (False) something."""
        borders: dict[int, Rank] = {}
        if len(self.tokens) % NET_TOKENS == 0:
            borders[len(self.tokens)] = Rank.NET
        if opens is not None:
            anchor = (len(self.tokens) - length * int(opens), opens)
            self.anchors.append(anchor)
            borders.update(dict.fromkeys(borders_of_edge(anchor), Rank.OPENING if opens else Rank.CLOSING))
        return borders

    def append(self, token: int, limit: int) -> str | None:
        """Add the chosen token; the finish reason if it is the last one. `limit` bounds prompt and answer together."""
        self.tokens.append(token)
        if token in self.stop_ids:
            return "stop"
        if self.generated >= self.max_tokens or len(self.tokens) >= limit:
            return "length"
        return None
