"""Saving and restoring between the steps of a worker: streams go on, failures are answers, nothing half stays."""

from __future__ import annotations

import os
from itertools import count
from pathlib import Path

import pytest
from fake_executor import ATTENTION, FakeExecutor, answer, fake_model

from engine.memory.budget import ContextNeeds
from engine.worker.engine import Engine
from engine.worker.protocol import (
    Cancel,
    ContextLoaded,
    ContextSaved,
    Done,
    Failed,
    Generate,
    GetStats,
    LoadContext,
    Message,
    Sampling,
    SaveContext,
    Stats,
    Tokens,
)
from engine.worker.sessions import SLICE_SECONDS

PROMPT = tuple(range(20, 120))


def slow_engine(kv_tokens: int = 1024, needs: ContextNeeds = ATTENTION, available: int = 1 << 30) -> Engine:
    """One whose clock says that every look at it came a whole slice after the last."""
    ticks = count()
    model = fake_model(kv_tokens, needs=needs, available=available)
    return Engine(model, clock=lambda: next(ticks) * SLICE_SECONDS)


def turn(engine: Engine) -> list[Message]:
    """What a worker does between two looks at its messages."""
    return [*engine.step(), *engine.chore()]


def run(engine: Engine) -> list[Message]:
    """Everything there is to do."""
    out: list[Message] = []
    while engine.busy:
        out += turn(engine)
    return out


def stats(engine: Engine) -> dict[str, float]:
    (message,) = engine.handle(GetStats(1))
    assert isinstance(message, Stats)
    return dict(message.values)


def computed(engine: Engine, tokens: tuple[int, ...] = PROMPT) -> Done:
    engine.handle(Generate(1, tokens, 4))
    (done,) = [message for message in run(engine) if isinstance(message, Done)]
    return done


def saved(path: Path) -> ContextSaved:
    engine = slow_engine()
    computed(engine)
    assert engine.handle(SaveContext(7, str(path), PROMPT)) == []
    (message,) = run(engine)
    assert isinstance(message, ContextSaved)
    return message


def test_a_context_goes_from_one_worker_to_another(tmp_path: Path) -> None:
    message = saved(tmp_path / "a")
    assert message == ContextSaved(7, 96, (tmp_path / "a").stat().st_size)
    other = slow_engine()
    other.handle(LoadContext(8, str(tmp_path / "a")))
    assert run(other) == [ContextLoaded(8, 96, 96)]
    done = computed(other, (*PROMPT, 1, 2, 3))
    assert done.cached_tokens == 96
    assert done.reuse is not None
    assert (done.reuse.position, done.reuse.why) == (96, "last")


def test_streams_go_on_while_contexts_are_saved_and_restored(tmp_path: Path) -> None:
    saved(tmp_path / "a")
    engine = slow_engine()
    computed(engine)
    engine.handle(Generate(2, (50, 51, 52), 40, sampling=Sampling(temperature=0)))
    engine.handle(SaveContext(7, str(tmp_path / "b"), PROMPT))
    engine.handle(LoadContext(8, str(tmp_path / "a")))
    said: list[int] = []
    between: list[int] = []
    answers: list[Message] = []
    while engine.busy:
        for message in turn(engine):
            if isinstance(message, Tokens):
                said += message.ids
            elif isinstance(message, ContextSaved | ContextLoaded):
                answers.append(message)
                between.append(len(said))
    assert [message.kind for message in answers] == ["context_saved", "context_loaded"]
    assert between[0] >= 6, "a step was taken after every block"
    assert between[1] - between[0] >= 6
    assert said == answer([50, 51, 52], 40)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


@pytest.mark.parametrize(("count", "words"), [(15, "shorter than the 16 tokens"), (16, "is in context memory")])
def test_what_there_is_nothing_to_save_of(tmp_path: Path, count: int, words: str) -> None:
    engine = slow_engine()
    engine.handle(SaveContext(7, str(tmp_path / "a"), PROMPT[:count]))
    (failed,) = run(engine)
    assert isinstance(failed, Failed)
    assert failed.error == "NotFoundError"
    assert words in failed.message
    assert os.listdir(tmp_path) == []


def test_as_much_is_restored_as_there_is_room_for(tmp_path: Path) -> None:
    saved(tmp_path / "a")
    engine = slow_engine(kv_tokens=64)
    engine.handle(LoadContext(8, str(tmp_path / "a")))
    assert run(engine) == [ContextLoaded(8, 64, 96)]
    done = computed(engine, PROMPT[:60])
    assert done.cached_tokens == 48


@pytest.mark.parametrize("needs", [ATTENTION, ContextNeeds(100, 100, reach=40), ContextNeeds(100, state_bytes=800)])
@pytest.mark.parametrize("streaming", [False, True])
def test_a_request_waits_where_only_what_is_being_saved_leaves_it_no_room(
    tmp_path: Path, needs: ContextNeeds, streaming: bool
) -> None:
    engine = slow_engine(kv_tokens=112, needs=needs, available=1 << 15)
    computed(engine)
    asked = Generate(2, (130, 131, 132) if streaming else tuple(range(130, 220)), 12, sampling=Sampling(temperature=0))
    if streaming:
        engine.handle(asked)
        while not any(isinstance(message, Tokens) for message in turn(engine)):
            pass
    engine.handle(SaveContext(7, str(tmp_path / "a"), PROMPT))
    assert engine.chore() == []
    if not streaming:
        engine.handle(asked)
    out = run(engine)
    assert [message.kind for message in out if isinstance(message, ContextSaved | Failed)] == ["context_saved"]
    (done,) = [message for message in out if isinstance(message, Done)]
    assert done.generated == 12
    engine.handle(LoadContext(8, str(tmp_path / "a")))
    engine.handle(Generate(3, tuple(range(130, 235)), 4, sampling=Sampling(temperature=0)))
    out = run(engine)
    assert isinstance(next(message for message in out if message.kind.startswith("context")), ContextLoaded)
    said = [token for message in out if isinstance(message, Tokens) for token in message.ids]
    assert said == answer(list(range(130, 235)), 4)


def test_a_request_waits_for_the_very_states_that_it_could_go_on_from(tmp_path: Path) -> None:
    needs, anchors = ContextNeeds(100, state_bytes=800), tuple((border, True) for border in range(16, 96, 16))
    source = slow_engine(needs=needs)
    source.handle(Generate(1, PROMPT, 4, anchors=anchors))
    run(source)
    source.handle(SaveContext(7, str(tmp_path / "a"), PROMPT))
    run(source)
    engine = slow_engine(kv_tokens=144, needs=needs, available=1 << 15)
    engine.handle(LoadContext(8, str(tmp_path / "a")))
    run(engine)
    engine.handle(SaveContext(9, str(tmp_path / "b"), PROMPT))
    assert engine.chore() == []
    (stats,) = engine.handle(GetStats(1))
    assert isinstance(stats, Stats)
    assert stats.values["states_held"] == stats.values["states"] > 0, "all states are being saved"
    engine.handle(Generate(2, (*PROMPT, 5, 6), 4, sampling=Sampling(temperature=0)))
    (done,) = [message for message in run(engine) if isinstance(message, Done)]
    assert done.cached_tokens == 96


def test_failures_are_answers_and_the_next_one_is_served(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    model = fake_model()
    engine = Engine(model)
    computed(engine)
    assert isinstance(model.executor, FakeExecutor)
    read = model.executor.read_block

    def broken(kind: str, block: int) -> None:
        raise RuntimeError("the bus fell off")

    model.executor.read_block = broken  # type: ignore[assignment, method-assign]
    engine.handle(SaveContext(1, str(tmp_path / "a"), PROMPT))
    engine.handle(SaveContext(2, str(tmp_path / "a"), (1, 2, 3)))
    engine.handle(LoadContext(3, str(tmp_path / "a")))
    failed = run(engine)
    assert [(m.ticket, m.error) for m in failed if isinstance(m, Failed)] == [
        (1, "FreetokenError"),
        (2, "NotFoundError"),
        (3, "NotFoundError"),
    ]
    assert "the bus fell off" in capfd.readouterr().err
    assert os.listdir(tmp_path) == []
    model.executor.read_block = read  # type: ignore[method-assign]
    engine.handle(SaveContext(4, str(tmp_path / "a"), PROMPT))
    assert isinstance(run(engine)[0], ContextSaved)


def test_a_worker_that_leaves_removes_what_is_half_written(tmp_path: Path) -> None:
    engine = slow_engine()
    computed(engine)
    engine.handle(SaveContext(1, str(tmp_path / "a"), PROMPT))
    turn(engine)
    assert os.listdir(tmp_path) == [".a.partial"]
    engine.close()
    assert os.listdir(tmp_path) == []
    assert not engine.busy


def test_a_job_that_nobody_waits_for_any_more_leaves_nothing(tmp_path: Path) -> None:
    saved(tmp_path / "a")
    whole = (tmp_path / "a").read_bytes()
    engine = slow_engine()
    computed(engine)
    before = stats(engine)
    engine.handle(SaveContext(7, str(tmp_path / "a"), PROMPT))
    engine.handle(SaveContext(8, str(tmp_path / "b"), PROMPT))
    assert turn(engine) == []
    assert sorted(os.listdir(tmp_path)) == [".a.partial", "a"]
    engine.handle(Cancel(8))
    engine.handle(Cancel(7))
    engine.handle(Cancel(7))
    assert not engine.busy
    assert stats(engine) == before
    assert os.listdir(tmp_path) == ["a"]
    assert (tmp_path / "a").read_bytes() == whole


def test_a_restore_that_nobody_waits_for_any_more_is_taken_out_again(tmp_path: Path) -> None:
    saved(tmp_path / "a")
    engine = slow_engine()
    engine.handle(LoadContext(7, str(tmp_path / "a")))
    engine.handle(LoadContext(8, str(tmp_path / "a")))
    assert turn(engine) == []
    assert stats(engine)["kv_tokens_held"] > 0
    engine.handle(Cancel(7))
    assert stats(engine)["kv_tokens_held"] == stats(engine)["kv_tokens_cached"] == 0
    assert run(engine) == [ContextLoaded(8, 96, 96)]
