"""Random lives of an expert cache: steps, resizes, splits and running over, held to the model after each."""

from __future__ import annotations

import random

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from engine.device.sim import SimDriver
from tests.unit.cache_rig import CacheRig, Geometry, random_split, random_tokens

SEEDS = st.integers(0, 2**32 - 1)


def random_geometry(rng: random.Random) -> Geometry:
    experts = rng.choice([1, 2, 3, 8, 8, 16, 40])
    layers = rng.randint(1, 3)
    top_k = rng.randint(1, min(experts, 4))
    records = layers * experts
    return Geometry(
        layers=layers,
        experts=experts,
        slots=rng.choice([0, 1, top_k, rng.randint(0, records), records]),
        top_k=top_k,
        max_tokens=rng.choice([1, 2, 8]),
        fillable=rng.choice([None, None, rng.randint(0, records)]),
        threads=rng.choice([32, 32, 64]),
    )


def random_step(rng: random.Random, rig: CacheRig) -> None:
    geometry = rig.geometry
    bucket = rng.randint(1, geometry.max_tokens)
    tokens = random_tokens(rng, geometry.experts, geometry.top_k, rng.choice([bucket, rng.randint(0, bucket)]))
    rig.step(tokens, bucket, rng.randrange(geometry.layers))


class CacheLife(RuleBasedStateMachine):
    @initialize(seed=SEEDS)
    def begin(self, seed: int) -> None:
        rng = random.Random(seed)
        self.rig = CacheRig(random_geometry(rng), random_split(rng), seed=seed)

    @rule(seed=SEEDS)
    def step(self, seed: int) -> None:
        random_step(random.Random(seed), self.rig)

    @rule(seed=SEEDS, steps=st.integers(2, 12))
    def steps(self, seed: int, steps: int) -> None:
        rng = random.Random(seed)
        for _ in range(steps):
            random_step(rng, self.rig)

    @rule(share=st.floats(0, 1))
    def resize(self, share: float) -> None:
        self.rig.resize(round(share * self.rig.geometry.records))

    @rule(seed=SEEDS)
    def split(self, seed: int) -> None:
        self.rig.set_split(random_split(random.Random(seed)))

    @rule()
    def clear(self) -> None:
        self.rig.cache.clear()
        self.rig.model.held.clear()
        self.rig.model.slot_stamp.clear()

    @precondition(lambda self: self.rig.model.clock < 1 << 20)
    @rule()
    def run_over(self) -> None:
        """A billion plans pass, then the host tends the cache."""
        self.rig.age((1 << 30) + 1)
        assert self.rig.cache.tend()
        self.rig.model.halve()
        assert not self.rig.cache.tend()

    @invariant()
    def agrees(self) -> None:
        if hasattr(self, "rig"):
            self.rig.compare()


TestCacheLife = CacheLife.TestCase
TestCacheLife.settings = settings(
    max_examples=150, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
)


def live(rng: random.Random, steps: int, lengths: tuple[int, int]) -> dict[str, int]:
    """So many steps in lives of random caches, with all that may happen between two steps; what they counted."""
    counted = {"hits": 0, "fills": 0, "cpu": 0, "resizes": 0, "reloads": 0}
    driver = SimDriver(memory=256 << 20, seed=rng.randrange(1 << 30), granularity=4096)
    while steps > 0:
        length = min(steps, rng.randint(*lengths))
        steps -= length
        rig = CacheRig(random_geometry(rng), random_split(rng), driver=driver)
        for _ in range(length):
            chance = rng.random()
            if chance < 0.02:
                rig.resize(rng.randint(0, rig.geometry.records))
                counted["resizes"] += 1
            elif chance < 0.04:
                rig.set_split(random_split(rng))
            random_step(rng, rig)
            rig.compare()
        totals = rig.cache.read_totals()
        counted["hits"] += totals.hits
        counted["fills"] += totals.fills
        counted["cpu"] += totals.cpu
        counted["reloads"] += max(0, totals.fills - rig.geometry.records)
        rig.free()
    return counted


def test_thousands_of_random_steps() -> None:
    counted = live(random.Random(2), 4_000, (50, 400))
    assert all(counted.values()), counted


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_many_thousands_of_random_steps() -> None:
    """For the millions: python -m tests.bench.cache_steps 2000000"""
    counted = live(random.Random(3), 60_000, (500, 20_000))
    assert all(count > 1000 for count in counted.values()), counted
