"""Scripted conversations of ten turns over HTTP: what a turn computes, and that it has the bits of a cold run."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import engine.front
from engine.text.text import Text
from tests.server.running_front import RunningFront, start_front
from tests.turns.scripts import SCRIPTS, TURNS
from tests.turns.served import MODELS, Talker, make_store
from tests.turns.talking import Turn, talk

PAGE = 16
NET = 1024  # tokens between checkpoints of the periodic net
WITHIN = dict.fromkeys(SCRIPTS, PAGE - 1) | {"sliding window": NET + PAGE - 1}


@pytest.fixture(scope="module")
def front(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningFront]:
    store = make_store(tmp_path_factory.mktemp("turns"), tuple(MODELS))
    with tempfile.TemporaryDirectory(prefix="ft-") as folder:
        script = Path(engine.front.__path__[0]) / "__main__.py"
        running = start_front(store, Path(folder), script=script)
        yield running
        assert running.stop() == 0


def talker(front: RunningFront, model: str) -> Talker:
    return Talker(front, model, Text.load(Path(front.config["store"]) / model))


def hold(talker: Talker, name: str) -> list[Turn]:
    """Carry out a script from a cold start."""
    talker.cold()
    turns = talk(name, talker.ask, talker.encode)
    assert len(turns) == TURNS
    for turn in turns:
        assert turn.reused <= turn.ideal, "more was reused than anybody computed"
        assert turn.excess <= WITHIN[name]
    return turns


def check_bits(talker: Talker, name: str, turns: list[Turn]) -> None:
    """The turns again, cold."""
    for turn in turns:
        talker.cold()
        _, answer, logprobs, reused = talker.ask(turn.messages, name == "thinking stripped")
        assert reused == 0
        assert (list(answer), list(logprobs)) == (list(turn.answer), list(turn.logprobs))


@pytest.mark.parametrize(
    ("model", "name"),
    [("delta-net", name) for name in SCRIPTS]
    + [
        (model, name)
        for model in MODELS
        if model != "delta-net"
        for name in ("thinking stripped", "old outputs replaced")
    ],
)
def test_a_turn_computes_what_is_new(front: RunningFront, model: str, name: str) -> None:
    asking = talker(front, model)
    turns = hold(asking, name)
    check_bits(asking, name, turns[-1:])
    reused = sum(turn.reused for turn in turns)
    if name == "first line changed":
        assert reused <= TURNS * PAGE
    else:
        assert reused > 0.3 * sum(len(turn.prompt) for turn in turns)


@pytest.mark.long
@pytest.mark.parametrize("name", SCRIPTS)
@pytest.mark.parametrize("model", MODELS)
def test_turns_have_the_bits_of_cold_runs(front: RunningFront, model: str, name: str) -> None:
    asking = talker(front, model)
    check_bits(asking, name, hold(asking, name)[1::3])
