"""What a turn of an edited conversation computes, beside what it would have to: all but what was ever computed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from engine.memory.blocks import ContextRoom
from engine.memory.context import ContextMemory
from engine.memory.lookup import ContextTraits
from engine.memory.pages import PAGE_TOKENS, common_tokens
from engine.memory.retention import NET_TOKENS, Anchor, Rank, borders_to_save
from engine.worker import requests
from engine.worker.protocol import Sampling
from engine.worker.requests import Request
from engine.worker.scheduler import Run, Scheduler
from tests.unit.context_machine import SpellingStore
from tests.unit.edited_talks import GENERATED, SCRIPTS, Ask, Script, Writer

PAGES = 4096
ROOMS = [ContextRoom(PAGES, states=24), ContextRoom(PAGES, states=32), ContextRoom(PAGES, windows=200)]
BOTH = ContextRoom(PAGES, windows=300, states=32)
WITHIN = dict.fromkeys(SCRIPTS, PAGE_TOKENS - 1) | {"window slid": NET_TOKENS + PAGE_TOKENS - 1}


@dataclass
class Simulation:
    """A scheduler over context memory whose states spell what they were computed from."""

    room: ContextRoom
    store: SpellingStore = field(default_factory=SpellingStore)
    ever: list[list[int]] = field(default_factory=list)  # what was ever computed
    requests: int = 0

    def __post_init__(self) -> None:
        self.traits = ContextTraits(128 if self.room.windows else 0, stateful=self.room.states > 0)
        memory = ContextMemory(self.room, self.traits, self.store)
        self.scheduler = Scheduler(memory, PAGES * PAGE_TOKENS)

    def turn(self, ask: Ask) -> tuple[int, int]:
        """Answer a request alone: tokens of its prompt that were computed, and the ideal."""
        self.requests += 1
        request = Request(
            number=self.requests, prompt_tokens=len(ask.prompt), tokens=list(ask.prompt), max_tokens=10**6,
            stop_ids=frozenset(), sampling=Sampling(), anchors=ask.anchors, anchor_ids=GENERATED,
        )  # fmt: skip
        known = max((common_tokens(ask.prompt, tokens) for tokens in self.ever), default=0)
        self.scheduler.submit(request)
        answer = list(ask.answer)
        while True:
            (run,) = self.scheduler.plan()
            self.compute(run)
            self.scheduler.complete([run], 0.01)
            if not run.completes:
                continue
            request.append(answer.pop(0), PAGES * PAGE_TOKENS)
            self.scheduler.note_edges(request, GENERATED.get(request.tokens[-1]))
            if not answer:
                break
        self.ever.append(request.tokens[: request.computed])
        self.scheduler.remove(request)
        assert self.scheduler.memory.held("state") == self.scheduler.memory.held("page") == 0
        return request.read, len(ask.prompt) - min(known, len(ask.prompt) - 1)

    def compute(self, run: Run) -> None:
        tokens, lease = run.request.tokens, run.request.lease
        assert lease is not None
        if not self.traits.stateful:
            return
        if run.start:
            assert self.store.states[lease.state] == tuple(tokens[: run.start])
        for save in lease.saves:
            self.store.states[save.state] = tuple(tokens[: save.border])
        self.store.states[lease.state] = tuple(tokens[: run.start + run.count])


def excesses(simulation: Simulation, script: Script) -> list[int]:
    """Tokens a turn computes beyond the ideal."""
    turns = [simulation.turn(ask) for ask in script]
    assert all(computed >= ideal for computed, ideal in turns), "more was reused than anybody computed"
    return [computed - ideal for computed, ideal in turns]


def worst(name: str, room: ContextRoom, seeds: int = 6) -> int:
    """The largest excess of a script, for several lengths of messages and both kinds of templates."""
    return max(
        max(excesses(Simulation(room), SCRIPTS[name](Writer(seed, thinks_in_prompt=thinks, header=seed % 4))))
        for seed in range(seeds)
        for thinks in (False, True)
    )


@pytest.mark.parametrize("name", SCRIPTS)
@pytest.mark.parametrize("room", [*ROOMS, BOTH], ids=str)
def test_a_turn_computes_what_is_new(name: str, room: ContextRoom) -> None:
    assert worst(name, room) <= WITHIN[name]


Choose = Callable[[list[Anchor], int, int, int], dict[int, Rank]]


def without(*ranks: Rank) -> Choose:
    """Retention that has never heard of some reasons."""

    def choose(anchors: list[Anchor], start: int, tokens: int, budget: int) -> dict[int, Rank]:
        chosen = borders_to_save(anchors, start, tokens, budget)
        return {border: rank for border, rank in chosen.items() if rank not in ranks}

    return choose


@pytest.mark.parametrize(
    ("name", "choose"),
    [
        ("outputs replaced", without(Rank.OPENING)),
        ("observations kept", without(Rank.OPENING)),
        ("window slid", without(Rank.NET, Rank.OPENING, Rank.CLOSING)),
    ],
)
def test_the_scripts_tell_good_retention_from_bad(name: str, choose: Choose, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "borders_to_save", choose)
    assert worst(name, ROOMS[0]) > WITHIN[name]


@pytest.mark.parametrize("name", ["thinking stripped", "outputs replaced", "append only"])
def test_edges_and_ends_of_answers_count_too(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if name == "append only":
        monkeypatch.setattr(ContextMemory, "close", ContextMemory.discard)
    else:
        monkeypatch.setattr(Scheduler, "note_edges", lambda *_: None)
        monkeypatch.setattr(requests, "borders_to_save", without(Rank.OPENING, Rank.END))
    assert worst(name, ROOMS[0]) > WITHIN[name]
