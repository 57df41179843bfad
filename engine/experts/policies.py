"""Which experts lie in the slots: the policies that replay compares.

All layers share one pool of slots. Tokens come one at a time, and a token's layers in order; a layer of a token is a
plan, and the clock counts plans. A record is `layer * experts + id`. In a plan a routed record that lies in a slot is a
hit, the others are misses, of which q are filled.

`lru`, `lfu` and `clairvoyant` fill on demand, as the device's plan does: the q misses that were routed to most recently
before (ties: the lower record) take the q slots that are worth least and hold no expert of this plan, the i-th of them
the i-th slot in ascending order. What is worth least is what policies differ in; a slot that was never used is worth
nothing, and ties go to the slot that was used longer ago, then to the lower one. `static` and `prefill` keep a set a
layer and let a miss pass through without a slot.
"""

from __future__ import annotations

import heapq
import math
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from engine.base.errors import UsageError
from engine.base.nearest import did_you_mean

Rule = Callable[[int], int]
"""q for so many misses."""

HALF_LIFE = 32  # tokens after which a use counts half under `lfu`
SEED = 0  # of the random sets
NEVER = math.inf
_NEVER_USED = -math.inf
_HEAVY = 1e200  # scores are scaled down before a weight grows beyond what a float holds


@dataclass(frozen=True)
class Pool:
    """How many experts there are, and how many slots for them."""

    layers: int
    experts: int
    slots: int

    def share(self, layer: int) -> int:
        """Slots of a layer where each has a part of its own: as even as can be, and `slots` all together."""
        return self.slots * (layer + 1) // self.layers - self.slots * layer // self.layers


@dataclass(frozen=True)
class Step:
    """What a plan found and did."""

    misses: int
    fills: int
    evictions: int


class Policy(ABC):
    """Decides what lies in the slots. Called for every decode token, layer by layer."""

    needs_prompt = False  # whether tokens count only if their request's prompt is in the trace

    @abstractmethod
    def step(self, token: int, layer: int, ids: Sequence[int], rule: Rule) -> Step:
        """The plan of a layer: `ids` are routed to, and `rule` says how many misses are filled."""

    def prompt(self, counts: NDArray[np.int64]) -> None:  # noqa: B027 - most policies do nothing then
        """A request's prefill is over: how often it routed to each expert, int64 [layers, experts]."""


class OnDemand(Policy):
    """Fills what is missed, in place of what is worth least."""

    grows = True  # whether a routed record is never worth less than before, so that an old entry of the heap will do

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        records = pool.layers * pool.experts
        self._slot_of = [-1] * records
        self._owner = [-1] * pool.slots
        self._routed = [0] * records  # the plan that routed to a record last, 0 for none
        self._clock = 0
        self._worth: list[tuple[float, int, int]] = [(_NEVER_USED, 0, slot) for slot in range(pool.slots)]
        self._heap = list(self._worth)  # entries may be out of date; those in `_worth` count

    @abstractmethod
    def worth(self, record: int, token: int, layer: int) -> float:
        """What a record is worth from this plan on, which routed to it; slots of little worth are given up first."""

    def urgency(self, record: int, token: int, layer: int) -> tuple[float, int]:
        """Which misses are filled first where not all are: the smallest."""
        return -self._routed[record], record

    def step(self, token: int, layer: int, ids: Sequence[int], rule: Rule) -> Step:
        base, slot_of = layer * self._pool.experts, self._slot_of
        records = [base + expert for expert in ids]
        held = {slot_of[record] for record in records}
        held.discard(-1)
        missed = [record for record in records if slot_of[record] < 0]
        fills = min(rule(len(missed)), len(missed), len(self._owner) - len(held))
        evictions = self._fill(missed, fills, held, token, layer) if fills else 0
        self._clock += 1
        for record in records:
            self._routed[record] = self._clock
            worth, slot = self.worth(record, token, layer), slot_of[record]
            if slot >= 0:
                self._worth[slot] = (worth, self._clock, slot)
                if slot not in held or not self.grows:
                    heapq.heappush(self._heap, self._worth[slot])
        if len(self._heap) > 8 * len(self._owner) + 4096:
            self._rebuild()
        return Step(len(missed), fills, evictions)

    def _fill(self, missed: Sequence[int], fills: int, held: set[int], token: int, layer: int) -> int:
        """Put the `fills` most urgent of the missed records into slots; how many others that drove out."""
        filled = sorted(missed, key=lambda record: self.urgency(record, token, layer))[:fills]
        evictions = 0
        for record, slot in zip(filled, self._victims(fills, held), strict=True):
            if self._owner[slot] >= 0:
                self._slot_of[self._owner[slot]] = -1
                evictions += 1
            self._owner[slot], self._slot_of[record] = record, slot
        return evictions

    def _rebuild(self) -> None:
        self._heap = list(self._worth)
        heapq.heapify(self._heap)

    def _victims(self, count: int, held: set[int]) -> list[int]:
        """The `count` slots of least worth but for those held, in ascending order. They leave the heap."""
        victims: list[int] = []
        spared = []
        while len(victims) < count:
            entry = heapq.heappop(self._heap)
            slot = entry[2]
            if entry != self._worth[slot]:
                if self.grows:
                    heapq.heappush(self._heap, self._worth[slot])
            elif slot in held:
                spared.append(entry)
            elif slot not in victims:
                victims.append(slot)
        for entry in spared:
            heapq.heappush(self._heap, entry)
        return sorted(victims)


class LeastRecent(OnDemand):
    """Gives up what was routed to longest ago. What the device does."""

    def worth(self, record: int, token: int, layer: int) -> float:
        return self._clock


class LeastFrequent(OnDemand):
    """Gives up what was routed to least often, a use `HALF_LIFE` tokens ago counting half of one now.

    Uses count whether the record lies in a slot or not.
    """

    def __init__(self, pool: Pool, half_life: float = HALF_LIFE) -> None:
        super().__init__(pool)
        self._growth = math.log(2) / half_life
        self._began = 0  # the token at which a use weighs 1
        self._score = [0.0] * len(self._slot_of)

    def worth(self, record: int, token: int, layer: int) -> float:
        weight = math.exp((token - self._began) * self._growth)
        if weight > _HEAVY:
            self._scale(token, weight)
            weight = 1.0
        self._score[record] += weight
        return self._score[record]

    def _scale(self, token: int, weight: float) -> None:
        self._began = token
        self._score = [score / weight for score in self._score]
        self._worth = [(worth / weight, used, slot) for worth, used, slot in self._worth]
        self._rebuild()


class Clairvoyant(OnDemand):
    """Gives up what is routed to again last of all (Belady), and fills first what is routed to again soonest.

    No policy that fills on demand misses less while every miss is filled: the bound for predictors.
    """

    grows = False

    def __init__(self, pool: Pool, future: NDArray[np.int32]) -> None:
        super().__init__(pool)
        self._again = next_uses(future, pool.experts)

    def worth(self, record: int, token: int, layer: int) -> float:
        return -self._next(record, token, layer)

    def urgency(self, record: int, token: int, layer: int) -> tuple[float, int]:
        return self._next(record, token, layer), record

    def _next(self, record: int, token: int, layer: int) -> float:
        return self._again[token][layer][record % self._pool.experts]


def next_uses(future: NDArray[np.int32], experts: int) -> list[list[dict[int, float]]]:
    """For each token and layer: the plan (token * layers + layer) that routes to each expert again, or NEVER."""
    tokens, layers, _ = future.shape
    coming = np.full((layers, experts), NEVER)
    rows = np.arange(layers)[:, None]
    uses: list[list[dict[int, float]]] = []
    for token in range(tokens - 1, -1, -1):
        ids = future[token]
        again = coming[rows, ids]
        coming[rows, ids] = token * layers + rows
        uses.append([dict(zip(*pair, strict=True)) for pair in zip(ids.tolist(), again.tolist(), strict=True)])
    return uses[::-1]


class Static(Policy):
    """A random set a layer (seed 0), chosen once: what a split by layers and numbers alone can do."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        chance = random.Random(SEED)
        self._kept = [set(chance.sample(range(pool.experts), pool.share(layer))) for layer in range(pool.layers)]

    def step(self, token: int, layer: int, ids: Sequence[int], rule: Rule) -> Step:
        kept = self._kept[layer]
        misses = sum(expert not in kept for expert in ids)
        return Step(misses, min(rule(misses), misses), 0)


class PrefillRefresh(Static):
    """The set of each layer is chosen again after each prompt: the experts that it routed to most often.

    Ties, so all experts that the prompt did not route to, go to those that were in the set, then to the lower id. It
    begins with the sets of `static`. Tokens of requests whose prompts are not in the trace do not count.
    """

    needs_prompt = True

    def prompt(self, counts: NDArray[np.int64]) -> None:
        for layer, row in enumerate(counts):
            kept = self._kept[layer]
            order = sorted(range(self._pool.experts), key=lambda expert: (-row[expert], expert not in kept, expert))
            self._kept[layer] = set(order[: self._pool.share(layer)])


LRU, LFU, STATIC, PREFILL_REFRESH, CLAIRVOYANT = POLICIES = ("lru", "lfu", "static", "prefill", "clairvoyant")
ALL = "all"


def make_policy(name: str, pool: Pool, future: NDArray[np.int32]) -> Policy:
    """The policy called `name`; `future` is what the decode tokens will route to, int32 [tokens, layers, top_k]."""
    if name == CLAIRVOYANT:
        return Clairvoyant(pool, future)
    made: dict[str, Callable[[Pool], Policy]] = {
        LRU: LeastRecent,
        LFU: LeastFrequent,
        STATIC: Static,
        PREFILL_REFRESH: PrefillRefresh,
    }
    return made[name](pool)


def policies_named(name: str) -> tuple[str, ...]:
    """The policies that `name` asks for: one, several with commas between, or `all`. UsageError for an unknown one."""
    names = dict.fromkeys(part.strip() for part in name.split(","))
    for each in names:
        if each not in (*POLICIES, ALL):
            near = did_you_mean(each, [*POLICIES, ALL])
            raise UsageError(f"There is no policy {each!r}.", f"{near} There are {', '.join(POLICIES)}.".strip())
    return POLICIES if ALL in names else tuple(names)
