"""The probe's plan: which points it measures, what it divides by what, and when it stops."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from engine.base.errors import UsageError
from engine.base.profile import Machine, Profile
from engine.measure import probe as probe_module
from engine.measure.probe import CANONICAL_SHAPES, ExpertShape, probe, shapes_of, thread_counts

MACHINE = Machine("Example CPU", 4, 16, "avx2", "0.1.0")


class FakeMeter:
    """Each call takes a tenth of a second on the test's clock; bandwidth grows with threads up to three."""

    def __init__(self) -> None:
        self.now = 0.0
        self.calls: list[tuple[Any, int]] = []

    def monotonic(self) -> float:
        return self.now

    def read_bandwidth(self, threads: int) -> float:
        return self._call("read", threads, 10.0 * min(threads, 3))

    def expert_bandwidth(self, shape: ExpertShape, threads: int) -> float:
        return self._call(shape, threads, 24.0)

    def record_bytes(self, shape: ExpertShape) -> int:
        return 4096 * len(shape.codec)

    def _call(self, what: Any, threads: int, rate: float) -> float:
        self.now += 0.1
        self.calls.append((what, threads))
        return rate


@pytest.fixture
def meter(monkeypatch: pytest.MonkeyPatch) -> FakeMeter:
    meter = FakeMeter()
    monkeypatch.setattr(probe_module, "time", meter)
    return meter


def run(meter: FakeMeter, **options: Any) -> Profile:
    return probe(meter, MACHINE, "2026-01-02T03:04:05Z", **options)


@pytest.mark.parametrize(
    ("cores", "counts"),
    [(1, (1,)), (2, (1, 2)), (3, (1, 2, 3)), (8, (1, 2, 4, 8)), (96, (1, 2, 4, 8, 16, 32, 64, 96))],
)
def test_the_curve_has_the_powers_of_two_and_all_cores(cores: int, counts: tuple[int, ...]) -> None:
    assert thread_counts(cores) == counts


def test_no_cores_are_refused() -> None:
    with pytest.raises(UsageError, match="threads"):
        thread_counts(0)


def test_an_expert_loop_stands_between_two_read_loops_with_as_many_threads(meter: FakeMeter) -> None:
    shapes = (ExpertShape("q4_0", 64, 32), ExpertShape("q8_0", 64, 32))
    profile = run(meter, threads=4, shapes=shapes, seconds=0.1)
    places = [place for place, (what, _) in enumerate(meter.calls) if what != "read"]
    assert len(places) == 2 * 3
    for place in places:
        assert meter.calls[place - 1] == meter.calls[place + 1] == ("read", 4)
    for expert in profile.experts:
        assert expert.rate.median == 24.0
        assert expert.share.median == pytest.approx(24 / 30)
        assert expert.record_bytes == 4096 * 4
        assert expert.threads == 4


def test_the_curve_and_what_is_not_measured(meter: FakeMeter) -> None:
    profile = run(meter, threads=4, seconds=0.1)
    assert [(read.threads, read.rate.median) for read in profile.reads] == [(1, 10.0), (2, 20.0), (4, 30.0)]
    assert [expert.codec for expert in profile.experts] == [shape.codec for shape in CANONICAL_SHAPES]
    assert profile.link is None
    assert Profile.from_json(profile.to_json()) == profile


def test_it_stops_in_time_but_not_before_three_rounds(meter: FakeMeter) -> None:
    heard: list[tuple[int, int]] = []
    profile = run(meter, threads=1, shapes=(), seconds=2.05, progress=lambda *told: heard.append(told))
    assert profile.reads[0].rate.samples == 20
    assert meter.now <= 2.05
    assert heard == sorted(heard)
    assert (heard[0], heard[-1]) == ((0, 100), (93, 100))
    assert run(meter, threads=1, shapes=(), seconds=0.01).reads[0].rate.samples == 3


def test_a_model_brings_its_own_shapes() -> None:
    def bank(codec: str, width: int) -> Any:
        down = SimpleNamespace(name="down", shape=SimpleNamespace(codec=codec, rows=64, cols=width))
        gate_up = SimpleNamespace(name="gate_up", shape=SimpleNamespace(codec="f32", rows=width, cols=64))
        return SimpleNamespace(fields=(gate_up, down))

    model: Any = SimpleNamespace(banks=(bank("q4_0", 32), bank("q4_0", 32), bank("q8_0", 96)))
    assert shapes_of(model) == (ExpertShape("q4_0", 64, 32), ExpertShape("q8_0", 64, 96))
