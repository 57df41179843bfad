"""Which few cases hold, together, every operation and every axis that any case has: computed, never listed."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from functools import cache

import pytest

from engine.program.lowering.lower import lower
from engine.spec.families import spec_from_config
from engine.spec.schema import Spec

from .cases import CASES
from .sabotage import AXES, has_axis
from .tiny import config_of

Traits = frozenset[Hashable]


@cache
def specs() -> Mapping[str, Spec]:
    """The spec of every case by its name, out of its config.json alone."""
    return {case.name: spec_from_config(config_of(case)) for case in CASES}


def traits(spec: Spec) -> Traits:
    """What a model puts to the test: axes, and operations with the settings that make another computation of them."""
    axes = {axis for axis in AXES if has_axis(axis, spec)}
    operations = {
        (op.kind, name, value if isinstance(value, str) else bool(value))
        for op in lower(spec).ops
        for name, value in (*op.attrs.items(), ("", ""))
    }
    return frozenset(axes | operations)


@cache
def sample() -> frozenset[str]:
    """Cases for the default tests: what no case has, the others do not have either."""
    return covering(traits)


def covering(wanted: Callable[[Spec], Traits]) -> frozenset[str]:
    """Few cases that have all the traits that `wanted` finds in any case.

    Greedy: each time the case with the most that is still missing (the first of equals), then without those that later
    ones made needless.
    """
    having = {name: wanted(spec) for name, spec in specs().items()}
    missing, chosen = frozenset().union(*having.values()), list[str]()
    while missing:
        chosen.append(max(having, key=lambda name: len(having[name] & missing)))
        missing -= having[chosen[-1]]
    for name in tuple(chosen):
        others = frozenset[Hashable]().union(*(having[other] for other in chosen if other != name))
        if having[name] <= others:
            chosen.remove(name)
    return frozenset(chosen)


def first_with(axis: str) -> str:
    """The first case of the sample that has the axis, the same in every process; "" where no case has it."""
    return next((name for name in sorted(sample()) if has_axis(axis, specs()[name])), "")


EVERY_CASE = [pytest.param(case.name, marks=() if case.name in sample() else pytest.mark.long) for case in CASES]
"""For tests of every case, of which those outside the sample are long."""
