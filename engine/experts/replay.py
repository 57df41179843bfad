"""Replays a routing trace through a policy: misses, and on a virtual machine what they would cost."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from engine.base.errors import FreetokenError, UsageError
from engine.base.units import ExpertRoom
from engine.experts.contention import VirtualMachine, calibrate
from engine.experts.policies import Policy, Pool, make_policy
from engine.experts.split import Split
from engine.experts.trace import Trace, TraceHeader

NEAREST, CARRY, DEFAULT, FILL = RULES = ("nearest", "carry", "default", "fill")
"""The first rule, the second, what is the default (each where it is better), and every miss filled."""


@dataclass(frozen=True)
class Outcome:
    """What the tokens that count found. `seconds` is what all their misses took, 0 where no machine was given."""

    tokens: int
    layers: int
    top_k: int
    layer_misses: tuple[int, ...]
    steps_by_misses: tuple[int, ...]  # layers of tokens by the number of their misses, 0 to top_k
    fills: int
    evictions: int
    seconds: float = 0.0

    @property
    def misses(self) -> int:
        return sum(self.layer_misses)

    @property
    def miss_rate(self) -> float:
        """Misses over experts read."""
        return self.misses / (self.tokens * self.layers * self.top_k)

    @property
    def misses_by_layer(self) -> tuple[float, ...]:
        """Mean misses of each layer in a token."""
        return tuple(misses / self.tokens for misses in self.layer_misses)

    @property
    def misses_per_layer(self) -> float:
        """Mean misses of a layer in a token: the m that a split divides."""
        return self.misses / (self.tokens * self.layers)

    @property
    def m_shares(self) -> tuple[float, ...]:
        """Share of a token's layers that have 0, 1, .. top_k misses."""
        return tuple(steps / (self.tokens * self.layers) for steps in self.steps_by_misses)

    @property
    def seconds_per_token(self) -> float:
        """What a token's misses take, its layers one after the other; the rest of a step is not in it."""
        return self.seconds / self.tokens


class Clock:
    """A virtual machine's time for a layer's misses, kept once it is known."""

    def __init__(self, machine: VirtualMachine, record_bytes: int) -> None:
        self._machine = machine
        self._bytes = record_bytes
        self._known: dict[tuple[int, int], float] = {}

    def seconds(self, misses: int, fills: int) -> float:
        """Time until both branches have ended."""
        key = (misses, fills)
        if key not in self._known:
            self._known[key] = self._machine.seconds(misses, fills, self._bytes)
        return self._known[key]


def slots_of(room: ExpertRoom, header: TraceHeader, record_bytes: int) -> int:
    """The slots that `room` gives, a share of the pool rounded down. UsageError where a token's experts do not fit.

    `record_bytes` is what a size is counted in; 0 where it is not known.
    """
    pool = header.pool
    if room.share:
        slots = int(Fraction(room.exact.rstrip("%")) * pool / 100)
    elif room.bytes and not record_bytes:
        raise UsageError("A size in bytes needs the size of an expert.", "Give --record SIZE, or --experts PCT%.")
    else:
        slots = room.bytes // record_bytes if room.bytes else room.slots
    if slots > pool:
        raise UsageError(
            f"{slots} slots are more than the {pool} experts of the trace.", f"The most is --experts {pool}."
        )
    if slots < header.top_k:
        raise UsageError(
            f"{slots} slots are fewer than the {header.top_k} experts of one token in one layer.",
            f"The least is --experts {header.top_k}, of {pool}.",
        )
    return slots


def rules_for(machine: VirtualMachine, record_bytes: int) -> dict[str, Split]:
    """The splits to compare on `machine`, made from what a probe would find there."""
    timing = calibrate(machine, record_bytes)
    return {
        NEAREST: Split.timed(timing.fraction, timing),
        CARRY: Split.carry(timing.fraction),
        DEFAULT: Split.usual(timing),
        FILL: Split.all_fill(),
    }


def replay(
    trace: Trace,
    policy: str,
    slots: int,
    warmup: int = 0,
    split: Split | None = None,
    clock: Clock | None = None,
) -> Outcome:
    """Run the decode tokens of `trace` through `policy` with so many slots, all empty at first.

    The first `warmup` decode tokens are replayed and not counted. Without `split` every miss is filled. Errors:
    FreetokenError where no token is left to count, with what is missing.
    """
    decode = trace.experts[trace.decode]
    header = trace.header
    check_length(trace, warmup)
    chosen = make_policy(policy, Pool(header.moe_layers, header.experts, slots), decode)
    counter = _Counter(header, clock)
    divide = _Divide(Split.all_fill() if split is None else split)
    prompts = _Prompts(trace)
    token = 0
    for place, (is_decode, rows) in enumerate(zip(trace.decode.tolist(), trace.experts, strict=True)):
        if not is_decode:
            prompts.add(place)
            continue
        counted = prompts.begin(place, chosen) and token >= warmup
        for layer, ids in enumerate(rows.tolist()):
            step = chosen.step(token, layer, ids, divide)
            if counted:
                counter.add(layer, step.misses, step.fills, step.evictions)
        counter.tokens += counted
        token += 1
    if counter.tokens == 0:
        raise FreetokenError(
            f"No token that counts belongs to a request whose prompt is in the trace, which {policy} needs.",
            "Leave that policy out, or lower --warmup.",
        )
    return counter.outcome()


def check_length(trace: Trace, warmup: int) -> None:
    """FreetokenError for a trace without decode tokens, UsageError for a warm-up that leaves none to count."""
    tokens = int(trace.decode.sum())
    if tokens == 0:
        raise FreetokenError("The trace has no decode tokens.", "Record some: freetoken bench MODEL --trace FILE")
    if warmup >= tokens:
        raise UsageError(
            f"A warm-up of {warmup} tokens leaves none of the trace's {tokens} decode tokens to count.",
            f"The most is --warmup {tokens - 1}.",
        )


class _Divide:
    """The split as a rule that remembers its carry."""

    def __init__(self, split: Split) -> None:
        self._split = split
        self._carry = 0

    def __call__(self, misses: int) -> int:
        fills, self._carry = self._split.fills(misses, self._carry)
        return fills


class _Prompts:
    """Gathers what each request's prefill routed to, until its first decode token asks for it."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._pending: dict[int, NDArray[np.int64]] = {}
        self._seen: set[int] = set()
        self._layers = np.arange(trace.header.moe_layers)[:, None]

    def add(self, place: int) -> None:
        """A prefill token."""
        request = int(self._trace.request[place])
        if request not in self._pending:
            header = self._trace.header
            self._pending[request] = np.zeros((header.moe_layers, header.experts), np.int64)
        self._pending[request][self._layers, self._trace.experts[place]] += 1

    def begin(self, place: int, policy: Policy) -> bool:
        """A decode token: tell the policy of a prompt that has just ended; whether the token can count."""
        request = int(self._trace.request[place])
        counts = self._pending.pop(request, None)
        if counts is not None:
            self._seen.add(request)
            policy.prompt(counts)
        return request in self._seen or not policy.needs_prompt


class _Counter:
    def __init__(self, header: TraceHeader, clock: Clock | None) -> None:
        self._header = header
        self._clock = clock
        self.tokens = 0
        self._layer_misses = [0] * header.moe_layers
        self._pairs: defaultdict[tuple[int, int], int] = defaultdict(int)
        self._evictions = 0

    def add(self, layer: int, misses: int, fills: int, evictions: int) -> None:
        self._layer_misses[layer] += misses
        self._pairs[misses, fills] += 1
        self._evictions += evictions

    def outcome(self) -> Outcome:
        by_misses = [0] * (self._header.top_k + 1)
        for (misses, _), count in self._pairs.items():
            by_misses[misses] += count
        clock = self._clock
        return Outcome(
            self.tokens,
            self._header.moe_layers,
            self._header.top_k,
            tuple(self._layer_misses),
            tuple(by_misses),
            sum(fills * count for (_, fills), count in self._pairs.items()),
            self._evictions,
            sum(clock.seconds(*pair) * count for pair, count in self._pairs.items()) if clock else 0.0,
        )
