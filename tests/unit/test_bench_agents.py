"""What the turns of workloads come to: medians, lines through them, and which turn is said to be off."""

from __future__ import annotations

import pytest

from tests.bench.agents.fits import DecodeFit, PrefillFit
from tests.bench.agents.report import Fitted, medians, table
from tests.bench.agents.rounds import Cold, Turn
from tests.bench.agents.servers import OURS, THEIRS
from tests.bench.agents.speaking import Heard
from tests.bench.agents.workloads import Answer

SPEEDS = (1.0, 2.0, 0.5)  # of the machine, round by round


def prefill_seconds(new: int, depth: int) -> float:
    return 0.01 + 2e-3 * new + 1e-7 * new * (depth + new / 2)


def turn(label: str, prompt: int, known: int, slow: float = 1.0, speed: float = 1.0, together: int = 1) -> Turn:
    """One of a server that is as fast as the fit says, but for `slow`."""
    first = slow * prefill_seconds(prompt - known, known) / speed
    per_token = slow * (0.005 + 1e-6 * (prompt + 50)) / speed
    heard = Heard(Answer(""), first, first + 99 * per_token, prompt, known // 16 * 16, known, 100)
    return Turn("W", label, together, OURS, heard, 0.01 / speed)


def cold(tokens: int, speed: float) -> Cold:
    return Cold(tokens, prefill_seconds(tokens, 0) / speed, 0.01 / speed)


COLD = [cold(tokens, speed) for tokens in (64, 128, 512, 2048, 8000) for speed in SPEEDS]


def test_lines_are_found_and_what_is_off_them() -> None:
    times = [(context, 0.005 + 1e-7 * context) for context in (500, 2000, 4000, 60_000)]
    assert DecodeFit.of(times).departure(4000, 1.2 * (0.005 + 4e-4)) == pytest.approx(0.2)
    prefill = PrefillFit.of([(n, prefill_seconds(n, 0)) for n in (64, 128, 512, 1024, 7000)])
    assert prefill.cost(700, 300) == pytest.approx(prefill_seconds(700, 300))


def test_a_machine_that_changes_its_speed_moves_no_turn_and_a_slow_turn_is_found() -> None:
    turns = [
        turn(f"turn {number}", 1000 + 500 * number, 800 + 500 * number, 1.3 if number == 3 else 1.0, speed)
        for speed in SPEEDS
        for number in range(9)
    ]
    fitted = Fitted(medians(turns, OURS), COLD, by_loop=True)
    excesses = {label: fitted.excess((workload, label)) for workload, label in fitted.ours}
    assert excesses.pop("turn 3") == pytest.approx(0.3)
    assert all(abs(each) < 1e-6 for each in excesses.values())
    departures = {key: abs(fitted.departure(key) or 0) for key in fitted.ours}
    assert max(departures, key=lambda key: departures[key]) == ("W", "turn 3")
    assert departures["W", "turn 3"] > 0.2
    said = table(turns, COLD)
    assert "furthest from that is W turn 3" in said
    assert "longest beyond that for its new tokens is W turn 3, +30.0% (asked: 10%); 1 of 9" in said
    assert THEIRS not in said.splitlines()[-1]


def test_agents_that_work_together_wait_for_all_that_is_new_to_them() -> None:
    together = [turn(f"agent {letter}, turn 1", 600, 100, together=3) for letter in "ABC"]
    alone = [turn(f"turn {number}", 1000 * number, 500 * number) for number in (1, 2, 3)]
    fitted = Fitted(medians([*alone, *together], OURS), COLD, by_loop=False)
    assert fitted.departure(("W", "agent A, turn 1")) is None
    assert fitted.excess(("W", "agent A, turn 1")) == pytest.approx(
        prefill_seconds(500, 100) / (3 * prefill_seconds(500, 100) - 0.02) - 1, rel=1e-3
    )
