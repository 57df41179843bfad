"""Prefixes go to files and back while requests run and context memory changes size: nobody fails, nothing is lost."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.base.errors import ContextFullError, DoesNotFitError
from engine.memory.blocks import BlockKind, ContextRoom
from engine.memory.context import ContextMemory
from engine.memory.lookup import ContextTraits
from engine.memory.pages import PAGE_TOKENS
from engine.memory.resizing import grow, shrink
from engine.memory.saved import HeldPrefix, RestoredPrefix, SavedPage
from engine.worker.protocol import Sampling
from engine.worker.requests import Request
from engine.worker.scheduler import Policy, Scheduler

TRAITS = [ContextTraits(), ContextTraits(stateful=True), ContextTraits(reach=40), ContextTraits(40, stateful=True)]
STEPS = Policy(first_step_tokens=16, max_step_tokens=32)
ENDED = 3  # tokens of an answer


class NoCopies:
    """Blocks without contents."""

    def copy_block(self, kind: BlockKind, source: int, target: int) -> None:
        assert source != target


class Worker:
    """What a worker does between messages, one prefix at a time on its way to a file or back."""

    def __init__(self, traits: ContextTraits, room: ContextRoom) -> None:
        self.memory = ContextMemory(room, traits, NoCopies())
        self.scheduler = Scheduler(self.memory, 200, STEPS)
        self.saving: HeldPrefix | None = None
        self.restoring: RestoredPrefix | None = None
        self._numbers: Iterator[int] = iter(range(1_000_000))

    def ask(self, tokens: list[int]) -> None:
        anchors = [(place, True) for place in range(PAGE_TOKENS, len(tokens), PAGE_TOKENS)]
        request = Request(next(self._numbers), len(tokens), list(tokens), ENDED, frozenset(), Sampling(), anchors)
        with suppress(ContextFullError):
            self.scheduler.submit(request)

    def step(self) -> None:
        runs = self.scheduler.plan()
        if not runs:
            return
        self.scheduler.complete(runs, 0.01)
        for request in [run.request for run in runs if run.completes]:
            if request.append(7, self.scheduler.limit) is not None:
                self.scheduler.remove(request)

    def save(self, tokens: list[int]) -> None:
        if self.saving is None and self.restoring is None:
            self.saving = HeldPrefix(self.memory, tokens)

    def restore(self, tokens: list[int]) -> None:
        if self.saving is None and self.restoring is None:
            saved = SavedPage(self.memory.traits.reach > 0, self.memory.traits.stateful or self.memory.traits.reach > 0)
            self.restoring = RestoredPrefix(self.memory, tokens, [saved] * (len(tokens) // PAGE_TOKENS))

    def chore(self, ends: bool) -> None:
        """A part of what is saved or restored, or its end."""
        if self.saving is not None and ends:
            self.saving.release()
            self.saving = None
        if self.restoring is not None:
            there = self.restoring.complete or not self.restoring.add(lambda kind, block: None)
            if there or ends:
                self.restoring.release()
                self.restoring = None

    def resize(self, room: ContextRoom) -> None:
        with suppress(DoesNotFitError):
            longest = max((len(request.tokens) for request in self.scheduler.live), default=0)
            if longest < room.pages * PAGE_TOKENS:
                shrink(self.memory, room, NoCopies())
                grow(self.memory, room)


def rooms(pages: int, states: int) -> st.SearchStrategy[ContextRoom]:
    """At least so many; window pages as many as pages, so that a request that is alone always fits."""
    return st.builds(lambda n, m: ContextRoom(n, n, m), st.integers(pages, 16), st.integers(states, 9))


@settings(max_examples=200, deadline=None)
@pytest.mark.parametrize("traits", TRAITS)
@given(data=st.data())
def test_whatever_comes_together_ends_with_nothing_held(traits: ContextTraits, data: st.DataObject) -> None:
    worker = Worker(traits, data.draw(rooms(6, 4)))
    prompts = st.builds(
        lambda letter, length, tail: [letter] * length + tail,
        st.integers(1, 2),
        st.integers(1, 90),
        st.lists(st.integers(1, 3), max_size=3),
    )
    for _ in range(data.draw(st.integers(1, 40))):
        match data.draw(st.sampled_from(["ask", "step", "step", "save", "restore", "chore", "end", "resize"])):
            case "ask":
                worker.ask(data.draw(prompts))
            case "step":
                worker.step()
            case "save":
                live = [request.tokens for request in worker.scheduler.live]
                worker.save(data.draw(st.sampled_from(live)) if live else data.draw(prompts))
            case "restore":
                worker.restore(data.draw(prompts))
            case "chore":
                worker.chore(ends=False)
            case "end":
                worker.chore(ends=True)
            case _:
                worker.resize(data.draw(rooms(2, 1)))
    worker.chore(ends=True)
    for _ in range(2000):
        if not worker.scheduler.live:
            break
        worker.step()
    assert not worker.scheduler.live, "somebody waits for ever"
    memory = worker.memory
    assert not memory.prefixes
    assert [memory.held(kind) for kind in ("page", "window", "state")] == [0, 0, 0]
