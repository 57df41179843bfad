"""Fixtures: a store of models, fronts over it, and what the fake model must answer."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from engine.text.text import Text
from tests.ports import find_free_port
from tests.server.running_front import (
    IM_END,
    Expected,
    RunningFront,
    make_tokenizer,
    start_front,
    write_fake_models,
)
from tests.unit.fake_executor import answer


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("store")
    write_fake_models(folder)
    return folder


@pytest.fixture
def runtime() -> Iterator[Path]:
    """A folder with a path short enough for a Unix socket."""
    with tempfile.TemporaryDirectory(prefix="ft-") as folder:
        yield Path(folder)


@pytest.fixture(scope="module")
def front(store: Path) -> Iterator[RunningFront]:
    """One front for the tests of a module that leave it as they found it."""
    with tempfile.TemporaryDirectory(prefix="ft-") as folder:
        running = start_front(store, Path(folder))
        yield running
        running.stop()


@pytest.fixture
def fresh(front: RunningFront) -> RunningFront:
    """The shared front with nothing loaded."""
    for model in front.control("ps")["models"]:
        front.control("stop", model=model["name"])
    return front


@pytest.fixture
def own_front(store: Path, runtime: Path) -> Iterator[Callable[..., RunningFront]]:
    """Starts fronts for one test alone."""
    started: list[RunningFront] = []

    def start(**settings: Any) -> RunningFront:
        started.append(start_front(store, runtime, **settings))
        return started[-1]

    yield start
    for running in started:
        if running.process.poll() is None:
            running.stop()


@pytest.fixture
def free_port() -> int:
    return find_free_port()


@pytest.fixture(scope="session")
def text(store: Path) -> Text:
    return Text.load(store / "fake")


@pytest.fixture(scope="session")
def greedy(text: Text) -> Callable[..., Expected]:
    """What the fake model must answer to one user message, worked out without a server."""

    def work_out(message: str, max_tokens: int) -> Expected:
        prompt = f"<|im_start|>user\n{message}<|im_end|>\n<|im_start|>assistant\n"
        ids = make_tokenizer().encode(prompt).ids
        tokens = answer(ids, max_tokens)
        if IM_END in tokens:
            return Expected(ids, tokens[: tokens.index(IM_END)], "stop", text)
        return Expected(ids, tokens, "length", text)

    return work_out
