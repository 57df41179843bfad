"""Why no more of a prompt was reused: a sentence for every code, and the right prompt's among several."""

from __future__ import annotations

from typing import get_args

import pytest

from engine.front.jobs import Job
from engine.front.reuse import sentence
from engine.front.tally import Tally
from engine.memory.lookup import Reuse, ReuseReason
from engine.worker.protocol import Sampling


@pytest.mark.parametrize("why", get_args(ReuseReason))
def test_every_code_has_a_sentence(why: ReuseReason) -> None:
    text = sentence(Reuse(48, 70, why), 90)
    assert text != why
    assert len(text.split()) > 5
    assert not text.endswith(".")


def test_sentences_tell_the_numbers() -> None:
    assert "its last 5 are" in sentence(Reuse(48, 48, "last"), 53)
    assert "none before its last token" in sentence(Reuse(0, 0, "last"), 12)
    assert "its first 70 was" in sentence(Reuse(64, 70, "differs"), 90)
    assert "pages of 16 are reused whole" in sentence(Reuse(0, 9, "differs"), 90)
    assert "pages" not in sentence(Reuse(64, 64, "differs"), 90)
    assert sentence(Reuse(32, 80, "state"), 90).count("80") == sentence(Reuse(32, 80, "state"), 90).count("32") == 1


def test_the_prompt_of_which_most_was_computed_is_told() -> None:
    tally = Tally()
    assert "reuse" not in tally.statistics()
    jobs = [
        Job(index, tuple(range(count)), 5, (), (), Sampling(choice=choice))
        for index, (count, choice) in enumerate([(40, 0), (90, 0), (60, 0), (500, 1)])
    ]
    for job, position in zip(jobs, (0, 64, 0, 0), strict=True):
        tally.add_reuse(job, Reuse(position, position, "differs" if position else "new"))
    tally.add_reuse(jobs[0], None)
    statistics = tally.statistics()
    assert (statistics["reuse_why"], statistics["known_tokens"]) == ("new", 0)
    assert tally.reuse_prompt == 60
