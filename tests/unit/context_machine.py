"""Requests come, compute, share and finish while context memory grows and shrinks, beside the plain model of it.

Blocks hold what they were computed from: a slot of a page or of a window page the tokens up to it, a state all tokens
before it. So a wrong block, or one that was given up or overwritten too early, shows as wrong tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from engine.base.errors import DoesNotFitError
from engine.memory.blocks import BlockKind, ContextRoom
from engine.memory.context import ContextMemory
from engine.memory.lease import Lease
from engine.memory.lookup import ContextTraits
from engine.memory.pages import PAGE_TOKENS
from engine.memory.resizing import grow, shrink
from engine.memory.retention import Rank
from tests.unit.context_model import Holder, PlainMemory, Prefix

letters = st.integers(0, 2)
# Few distinct pages, so that prefixes meet, and a tail that ends within a page, or often with one.
prompts = st.builds(
    lambda pages, tail: [letter for page in pages for letter in [page] * PAGE_TOKENS] + [9] * tail,
    st.lists(letters, max_size=5),
    st.one_of(st.just(PAGE_TOKENS), st.integers(1, PAGE_TOKENS)),
)
borders = st.integers(1, 8).map(lambda page: page * PAGE_TOKENS)
rooms = st.tuples(st.integers(1, 14), st.integers(4, 14), st.integers(1, 9))


@dataclass
class SpellingStore:
    """Blocks that spell what they were computed from."""

    slots: dict[tuple[BlockKind, int, int], Prefix] = field(default_factory=dict)  # (kind, block, slot)
    states: dict[int, Prefix] = field(default_factory=dict)

    def copy_block(self, kind: BlockKind, source: int, target: int) -> None:
        if kind == "state":
            self.states[target] = self.states.get(source, (-1,))
            return
        for slot in range(PAGE_TOKENS):
            self.slots[kind, target, slot] = self.slots.get((kind, source, slot), (-1,))

    def lose(self, room: ContextRoom) -> None:
        """Forget the blocks that a smaller room does not have."""
        self.slots = {place: held for place, held in self.slots.items() if place[1] < room.count(place[0])}
        self.states = {block: held for block, held in self.states.items() if block < room.states}


@dataclass(eq=False)
class Live:
    """A request in both worlds."""

    lease: Lease
    holder: Holder
    computed: int = 0


class ContextMachine(RuleBasedStateMachine):
    """`traits` are drawn at first."""

    @initialize(room=rooms, reach=st.sampled_from([0, 0, 1, 16, 17, 33, 40]), stateful=st.booleans())
    def start(self, room: tuple[int, int, int], reach: int, stateful: bool) -> None:
        self.store = SpellingStore()
        self.traits = ContextTraits(reach, stateful)
        self.memory = ContextMemory(ContextRoom(*room), self.traits, self.store)
        self.model = PlainMemory(*room, reach, stateful)
        self.live: list[Live] = []

    @precondition(lambda self: self.model.available("state") or not self.traits.stateful)
    @rule(tokens=prompts)
    def open(self, tokens: list[int]) -> None:
        live = Live(self.memory.open(), Holder(tokens))
        self.model.holders.append(live.holder)
        self.live.append(live)
        self.take_up(live)

    @precondition(lambda self: self.live)
    @rule(data=st.data(), extra=st.lists(letters, max_size=20))
    def catch_up(self, data: st.DataObject, extra: list[int]) -> None:
        live = data.draw(st.sampled_from(self.live))
        live.holder.tokens = live.holder.tokens + extra
        if live.holder.has_state or not self.traits.stateful or self.model.available("state"):
            self.take_up(live)

    def take_up(self, live: Live) -> None:
        end, known = self.model.resumable(live.holder)
        stays = live.holder.own or end <= live.holder.shared
        reuse = self.memory.reuse(live.lease, live.holder.tokens)
        assert reuse.position == (live.holder.shared if stays else end)
        assert reuse.known >= known
        self.model.reuse(live.holder)
        live.computed = max(live.computed, reuse.position)

    @precondition(lambda self: self.live)
    @rule(
        data=st.data(),
        counts=st.lists(st.integers(1, 50), min_size=1, max_size=2),
        extra=st.lists(letters, max_size=20),
        wanted=st.dictionaries(
            st.integers(1, 8).map(lambda page: page * PAGE_TOKENS), st.sampled_from(Rank), max_size=3
        ),
    )
    def step(self, data: st.DataObject, counts: list[int], extra: list[int], wanted: dict[int, Rank]) -> None:
        """Up to two requests compute at once."""
        chosen = data.draw(st.lists(st.sampled_from(self.live), min_size=1, max_size=len(counts), unique_by=id))
        runs: list[tuple[Live, int]] = []
        for live, count in zip(chosen, counts, strict=False):
            live.holder.tokens = live.holder.tokens + extra
            goal = min(len(live.holder.tokens), live.computed + count)
            room = self.memory.reserve(live.lease, goal)
            assert room == self.model.reserve(live.holder, goal)
            if room:
                runs.append((live, goal))
        for live, goal in runs:
            self.memory.plan_saves(live.lease, live.computed, goal, wanted)
            self.model.plan_saves(live.holder, live.computed, goal, list(wanted))
            assert [(save.border, save.kept) for save in live.lease.saves] == sorted(live.holder.saves)
        self.every_block_has_one_owner()
        for live, goal in runs:
            self.compute(live, goal)
        opening = {border for border, rank in wanted.items() if rank is Rank.OPENING}
        for live, goal in runs:
            live.computed = goal
            self.memory.keep(live.lease, live.holder.tokens, goal)
            self.model.keep(live.holder, goal, opening)

    def compute(self, live: Live, goal: int) -> None:
        """What an executor does: everything that is read must be what it should be."""
        tokens, lease = live.holder.tokens, live.lease
        self.check_contents(live)
        for position in range(live.computed, goal):
            index, slot = divmod(position, PAGE_TOKENS)
            self.store.slots["page", lease.pages[index], slot] = tuple(tokens[: position + 1])
            if self.traits.reach:
                self.store.slots["window", lease.windows[index], slot] = tuple(tokens[: position + 1])
        for save in lease.saves:
            if save.state >= 0:
                self.store.states[save.state] = tuple(tokens[: save.border])
        if self.traits.stateful:
            self.store.states[lease.state] = tuple(tokens[:goal])

    def check_contents(self, live: Live) -> None:
        tokens, lease = live.holder.tokens, live.lease
        for position in range(live.computed):
            index, slot = divmod(position, PAGE_TOKENS)
            assert self.store.slots["page", lease.pages[index], slot] == tuple(tokens[: position + 1])
            if position > live.computed - self.traits.reach:
                assert self.store.slots["window", lease.windows[index], slot] == tuple(tokens[: position + 1])
        if self.traits.stateful and live.computed:
            assert self.store.states[lease.state] == tuple(tokens[: live.computed])

    @precondition(lambda self: self.live)
    @rule(data=st.data(), rank=st.sampled_from(Rank))
    def mark(self, data: st.DataObject, rank: Rank) -> None:
        live = data.draw(st.sampled_from(self.live))
        if not live.holder.shared:
            return
        self.memory.mark(live.lease, live.holder.shared, rank)
        prefix = live.holder.prefix(live.holder.shared)
        if live.holder.last is not None or (self.traits.reach and not self.traits.stateful):
            self.model.place(prefix, True)
            if rank is Rank.OPENING:
                self.model.opening.add(prefix)

    @precondition(lambda self: self.live)
    @rule(data=st.data(), fails=st.booleans())
    def end(self, data: st.DataObject, fails: bool) -> None:
        live = data.draw(st.sampled_from(self.live))
        self.live.remove(live)
        (self.memory.discard if fails else self.memory.close)(live.lease)
        (self.model.discard if fails else self.model.close)(live.holder)

    @rule(room=rooms)
    def resize(self, room: tuple[int, int, int]) -> None:
        before = self.memory.room
        if not self.model.resize(*room):
            with pytest.raises(DoesNotFitError):
                shrink(self.memory, ContextRoom(*room), self.store)
            assert self.memory.room == before
            return
        shrink(self.memory, ContextRoom(*room), self.store)
        self.store.lose(self.memory.room)
        grow(self.memory, ContextRoom(*room))

    @invariant()
    def everybody_has_what_they_computed(self) -> None:
        for live in self.live:
            self.check_contents(live)

    @invariant()
    def tree_is_the_plain_model(self) -> None:
        spelt: dict[Prefix, object] = {}
        windows, marks = set(), {}
        stack: list[tuple[Prefix, object]] = [((), self.memory.tree.root)]
        while stack:
            prefix, parent = stack.pop()
            for tokens, node in parent.children.items():  # type: ignore[attr-defined]
                path = prefix + tokens
                spelt[path] = node
                stack.append((path, node))
                assert self.store.slots["page", node.page, PAGE_TOKENS - 1] == path
                if node.window >= 0:
                    windows.add(path)
                    assert self.store.slots["window", node.window, PAGE_TOKENS - 1] == path
                if node.checkpoint is not None:
                    marks[path] = node.checkpoint
                    if self.traits.stateful:
                        assert self.store.states[node.checkpoint.state] == path
        assert set(spelt) == set(self.model.tree)
        assert windows == self.model.windows
        assert {p: (m.kept, m.pins) for p, m in marks.items()} == {
            p: (m.kept, m.pins) for p, m in self.model.marks.items()
        }

    @invariant()
    def counts_are_the_plain_models(self) -> None:
        for kind in ("page", "window", "state"):
            assert self.memory.available(kind) == self.model.available(kind), kind
            assert self.memory.held(kind) == self.model.held(kind), kind

    @invariant()
    def every_block_has_one_owner(self) -> None:
        memory = self.memory
        nodes = list(memory.tree.nodes())
        leases = [live.lease for live in self.live]
        pages = [node.page for node in nodes] + [page for lease in leases for page in lease.pages[lease.shared :]]
        assert sorted(pages + memory.pages._free) == list(range(memory.pages.capacity))
        windows = [node.window for node in nodes if node.window >= 0]
        windows += [window for lease in leases for window in lease.windows[lease.shared :]]
        assert sorted(windows + memory.windows._free) == list(range(memory.windows.capacity))
        states = [node.checkpoint.state for node in nodes if node.checkpoint is not None]
        states += [save.state for lease in leases for save in lease.saves] + [lease.state for lease in leases]
        assert sorted([s for s in states if s >= 0] + memory.states._free) == list(range(memory.states.capacity))
