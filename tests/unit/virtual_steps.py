"""Decode steps on a virtual machine, for tests of the closed loop: misses are drawn, times come from the model."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from engine.experts.balance import Balancer
from engine.experts.contention import VirtualMachine
from engine.experts.split import FIXED_ONE, Split

RECORD = 1769472  # an expert of 3 x 2048 x 512 weights at 4.5 bits
LAYERS = 40
TOP_K = 8
DENSE_SECONDS = 4e-3  # what a step takes besides its misses

Misses = Callable[[random.Random], int]


def up_to(most: int) -> Misses:
    """As many misses a layer as a die of `most` + 1 sides says."""
    return lambda chance: chance.randrange(most + 1)


def of_rate(rate: float) -> Misses:
    """Each of a layer's experts is missing with probability `rate`."""
    return lambda chance: sum(chance.random() < rate for _ in range(TOP_K))


@dataclass
class Bought:
    """Misses that become fewer the more is filled: the miss rate creeps from `none` filled toward `all` filled."""

    none: float
    all: float
    tokens: float = 64.0
    rate: float = field(init=False)

    def __post_init__(self) -> None:
        self.rate = self.none

    def draw(self, chance: random.Random) -> int:
        return of_rate(self.rate)(chance)

    def learn(self, fills: int, misses: int) -> None:
        share = fills / misses if misses else 1.0
        self.rate += (self.none + (self.all - self.none) * share - self.rate) / self.tokens


@dataclass
class Drive:
    """Steps of one token, run one after the other with whatever split the balancer has put in force."""

    machine: VirtualMachine
    balancer: Balancer
    misses: Misses
    seed: int = 0
    noise: float = 0.0
    bought: Bought | None = None
    changes: list[tuple[int, Split]] = field(default_factory=list)
    tokens: int = 0
    seconds: float = 0.0

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)
        self.carry = 0
        self._known: dict[tuple[VirtualMachine, int, int], tuple[float, float]] = {}

    def run(self, tokens: int) -> float:
        """Run so many tokens; their tokens a second."""
        began = self.seconds
        for _ in range(tokens):
            self.step()
        return tokens / (self.seconds - began)

    def step(self) -> None:
        counts, totals, layers = [], [0.0, 0.0], 0.0
        for _ in range(LAYERS):
            misses = self.bought.draw(self.chance) if self.bought else self.misses(self.chance)
            fills, self.carry = self.balancer.split.fills(misses, self.carry)
            times = self._times(misses, fills)
            counts.append((max(TOP_K, misses), max(TOP_K - misses, 0), misses, fills, misses - fills))
            for branch in (0, 1):
                totals[branch] += times[branch]
            layers += max(times)
        if self.bought:
            self.bought.learn(sum(row[3] for row in counts), sum(row[2] for row in counts))
        jitter = [self.chance.lognormvariate(0.0, self.noise) for _ in range(3)]
        seconds = (layers + DENSE_SECONDS) * jitter[2]
        self.tokens += 1
        self.seconds += seconds
        new = self.balancer.observe(counts, totals[0] * jitter[0], totals[1] * jitter[1], seconds, 1)
        if new is not None:
            self.changes.append((self.tokens, new))

    def _times(self, misses: int, fills: int) -> tuple[float, float]:
        key = (self.machine, misses, fills)
        if key not in self._known:
            self._known[key] = self.machine.times(misses, fills, RECORD)
        return self._known[key]


def excess(machine: VirtualMachine, split: Split, misses: int) -> float:
    """How much longer a layer takes than with the best of all q: 0.05 is 5 %.

    The mean over all carries where a remainder is carried.
    """
    times = [machine.seconds(misses, q, RECORD) for q in range(misses + 1)]
    if not split.carries(misses):
        return times[split.fills(misses)[0]] / min(times) - 1
    low, rest = divmod(misses * split.fixed, FIXED_ONE)
    above = rest / FIXED_ONE
    return ((1 - above) * times[low] + above * times[min(low + 1, misses)]) / min(times) - 1
