"""What `freetoken replay` does beyond showing: every policy, every rule, and the document of it all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from engine.base.errors import FreetokenError
from engine.base.progress import Progress
from engine.experts.contention import VirtualMachine
from engine.experts.policies import PREFILL_REFRESH
from engine.experts.replay import CARRY, NEAREST, Clock, Outcome, replay, rules_for
from engine.experts.trace import Trace

PERCENTS = (5, 10, 15, 20, 25, 30, 37, 45, 55, 70)
"""Capacities of a plot, in percent of the pool."""


@dataclass
class Replayed:
    """Outcomes by policy, with every miss filled, and by policy and rule where there is a machine."""

    machine: VirtualMachine | None
    record_bytes: int
    fraction: float = 0.0
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    rules: dict[str, dict[str, Outcome]] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)

    def document(self) -> dict[str, Any]:
        """With stable keys."""
        document: dict[str, Any] = {
            "policies": {name: self._policy(name, outcome) for name, outcome in self.outcomes.items()},
            "skipped": self.skipped,
        }
        if self.machine is not None:
            document["machine"] = {
                "name": self.machine.name,
                "link_gbps": self.machine.link,
                "host_gbps": self.machine.host,
                "record_bytes": self.record_bytes,
                "fraction": self.fraction,
                "predicted": True,
            }
        return document

    def _policy(self, name: str, outcome: Outcome) -> dict[str, Any]:
        found = {
            "miss_rate": outcome.miss_rate,
            "tokens": outcome.tokens,
            "misses_per_layer": outcome.misses_per_layer,
            "misses_by_layer": outcome.misses_by_layer,
            "m_shares": outcome.m_shares,
            "evictions_per_token": outcome.evictions / outcome.tokens,
        }
        if self.machine is None:
            return found
        rules = self.rules[name]
        better = min((NEAREST, CARRY), key=lambda rule: rules[rule].seconds)
        return {**found, "rules": {rule: _rule(each) for rule, each in rules.items()}, "better_rule": better}


def _rule(outcome: Outcome) -> dict[str, float]:
    return {
        "miss_rate": outcome.miss_rate,
        "misses_per_layer": outcome.misses_per_layer,
        "fills_per_token": outcome.fills / outcome.tokens,
        "cpu_per_token": (outcome.misses - outcome.fills) / outcome.tokens,
        "seconds_per_token": outcome.seconds_per_token,
    }


def replay_policies(
    trace: Trace,
    names: Sequence[str],
    slots: int,
    warmup: int,
    machine: VirtualMachine | None,
    record_bytes: int,
    progress: Progress,
) -> Replayed:
    """Replay `trace` through each policy; among several, one that it has no prompts for is left out and noted."""
    done = Replayed(machine, record_bytes)
    splits = {} if machine is None else rules_for(machine, record_bytes)
    clock = None if machine is None else Clock(machine, record_bytes)
    done.fraction = splits[CARRY].fraction if splits else 0.0
    runs = len(names) * (1 + len(splits))
    for place, name in enumerate(names):
        progress(place * runs // len(names), runs)
        try:
            done.outcomes[name] = replay(trace, name, slots, warmup)
        except FreetokenError as error:
            if name != PREFILL_REFRESH or len(names) == 1:
                raise
            done.skipped[name] = error.message
            continue
        done.rules[name] = {rule: replay(trace, name, slots, warmup, split, clock) for rule, split in splits.items()}
    progress(runs, runs)
    return done


def sweep_policies(
    trace: Trace, names: Sequence[str], percents: Sequence[int], warmup: int, progress: Progress
) -> dict[str, list[tuple[int, float]]]:
    """Miss rates over capacities in percent of the pool; capacities too small for a token's experts are left out."""
    sizes = [(percent, trace.header.pool * percent // 100) for percent in percents]
    fitting = [(percent, slots) for percent, slots in sizes if slots >= trace.header.top_k]
    curves: dict[str, list[tuple[int, float]]] = {name: [] for name in names}
    for place, (percent, slots) in enumerate(fitting):
        progress(place, len(fitting))
        for name in names:
            try:
                curves[name].append((percent, replay(trace, name, slots, warmup).miss_rate))
            except FreetokenError:
                if name != PREFILL_REFRESH or len(names) == 1:
                    raise
    progress(len(fitting), len(fitting))
    return {name: points for name, points in curves.items() if points}
