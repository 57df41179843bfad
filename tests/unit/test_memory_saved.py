"""A prefix held for saving stays; a restored one is what was saved, takes no block twice and leaves none behind."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.base.errors import DoesNotFitError
from engine.memory.blocks import BlockKind, ContextRoom
from engine.memory.context import ContextMemory
from engine.memory.lookup import ContextTraits
from engine.memory.pages import PAGE_TOKENS
from engine.memory.resizing import shrink
from engine.memory.retention import Rank
from engine.memory.saved import MOST_CHECKPOINTS, HeldPrefix, RestoredPrefix, SavedPage

TRAITS = [ContextTraits(), ContextTraits(stateful=True), ContextTraits(reach=40), ContextTraits(40, stateful=True)]
LARGE = ContextRoom(64, 64, 24)
Contents = dict[tuple[BlockKind, int], object]


class Memory:
    """Context memory over blocks whose contents are the prefixes that were computed into them."""

    def __init__(self, traits: ContextTraits, room: ContextRoom = LARGE) -> None:
        self.contents: Contents = {}
        self.memory = ContextMemory(room, traits, self)

    def copy_block(self, kind: BlockKind, source: int, target: int) -> None:
        self.contents[kind, target] = self.contents[kind, source]

    def compute(self, tokens: Sequence[int], wanted: Mapping[int, Rank] | None = None, step: int = 48) -> int:
        """Serve a request for `tokens`; how many were reused."""
        memory = self.memory
        lease = memory.open()
        start = reused = memory.reuse(lease, tokens).position
        self.check(lease.pages, lease.windows, lease.state, tokens, start)
        while start < len(tokens):
            end = min(len(tokens), start + step)
            if not memory.reserve(lease, end):
                memory.discard(lease)
                return reused
            saves = memory.plan_saves(lease, start, end, wanted or {})
            for index in range(start // PAGE_TOKENS, -(-end // PAGE_TOKENS)):
                prefix = tuple(tokens[: min(end, (index + 1) * PAGE_TOKENS)])
                self.contents["page", lease.pages[index]] = ("page", prefix)
                if memory.traits.reach:
                    self.contents["window", lease.windows[index]] = ("window", prefix)
            if memory.traits.stateful:
                self.contents["state", lease.state] = ("state", tuple(tokens[:end]))
                for save in saves:
                    self.contents["state", save.state] = ("state", tuple(tokens[: save.border]))
            memory.keep(lease, tokens, end)
            start = end
        memory.close(lease)
        return reused

    def check(self, pages: list[int], windows: list[int], state: int, tokens: Sequence[int], position: int) -> None:
        """What a request takes up is what was computed for its tokens."""
        for index in range(position // PAGE_TOKENS):
            prefix = tuple(tokens[: (index + 1) * PAGE_TOKENS])
            assert self.contents["page", pages[index]] == ("page", prefix)
            if self.memory.traits.reach and windows[index] >= 0:
                assert self.contents["window", windows[index]] == ("window", prefix)
        if self.memory.traits.stateful and position:
            assert self.contents["state", state] == ("state", tuple(tokens[:position]))

    def save(self, tokens: Sequence[int]) -> tuple[tuple[int, ...], tuple[SavedPage, ...], list[object]]:
        """Tokens, pages and contents of blocks, as a file would have them."""
        held = HeldPrefix(self.memory, tokens)
        pages = held.pages
        stateful = self.memory.traits.stateful
        blocks = [
            self.contents[kind, held.block(index, kind)]
            for index, page in enumerate(pages)
            for kind in page.kinds(stateful)
        ]
        held.release()
        return held.tokens, pages, blocks

    def restore(
        self, tokens: Sequence[int], pages: Sequence[SavedPage], blocks: list[object], fail_at: int = -1
    ) -> int:
        """Tokens that were restored. `fail_at`: writing that block of the file fails."""
        restored = RestoredPrefix(self.memory, tokens, pages)
        number = 0
        try:
            for page in pages:
                kinds = list(page.kinds(self.memory.traits.stateful))
                content = dict(zip(kinds, blocks[number : number + len(kinds)], strict=True))
                if not restored.add(self._writer(content, number <= fail_at < number + len(kinds))):
                    break
                number += len(kinds)
            return restored.restored
        except OSError:
            restored.discard()
            return 0
        finally:
            restored.release()

    def _writer(self, content: dict[BlockKind, object], fails: bool) -> Callable[[BlockKind, int], None]:
        last = list(content)[-1]

        def write(kind: BlockKind, block: int) -> None:
            if fails and kind == last:
                raise OSError
            self.contents[kind, block] = content[kind]

        return write

    def check_blocks(self) -> None:
        """Without live requests every block is free or in the tree once, and nothing is pinned."""
        memory = self.memory
        nodes = list(memory.tree.nodes())
        kept = {
            "page": [node.page for node in nodes],
            "window": [node.window for node in nodes if node.window >= 0],
            "state": [node.checkpoint.state for node in nodes if node.checkpoint and node.checkpoint.state >= 0],
        }
        for pool in (memory.pages, memory.windows, memory.states):
            assert len(set(kept[pool.kind])) == len(kept[pool.kind])
            assert pool.free == pool.capacity - len(kept[pool.kind])
            assert memory.held(pool.kind) == 0
        assert memory.tree.evictable == len(nodes)


def tokens_of(pages: int, seed: int = 0, more: int = 0) -> list[int]:
    return [(seed * 1000 + index) % 5003 for index in range(pages * PAGE_TOKENS + more)]


@pytest.mark.parametrize("traits", TRAITS)
def test_what_was_saved_is_reused_elsewhere(traits: ContextTraits) -> None:
    tokens = tokens_of(9, more=5)
    source, target = Memory(traits), Memory(traits)
    source.compute(tokens, {32: Rank.OPENING, 80: Rank.CLOSING})
    saved, pages, blocks = source.save(tokens)
    assert len(saved) == 9 * PAGE_TOKENS
    assert target.restore(saved, pages, blocks) == len(saved)
    target.check_blocks()
    assert target.compute([*tokens, 7, 7, 7]) == len(saved)
    if traits.stateful or traits.reach:
        assert target.compute([*tokens[:90], *[9] * 40]) == 80, "an earlier checkpoint is there as well"
    source.check_blocks()
    target.check_blocks()


@pytest.mark.parametrize("traits", TRAITS)
def test_held_blocks_outlive_whatever_comes_meanwhile(traits: ContextTraits) -> None:
    tokens = tokens_of(6)
    memory = Memory(traits, ContextRoom(16, 16, 5))
    memory.compute([*tokens, 1])
    held = HeldPrefix(memory.memory, tokens)
    pages = held.pages
    before = [
        (memory.contents[kind, held.block(index, kind)])
        for index, page in enumerate(pages)
        for kind in page.kinds(traits.stateful)
    ]
    for seed in range(1, 6):
        memory.compute(tokens_of(7, seed))
    after = [
        (memory.contents[kind, held.block(index, kind)])
        for index, page in enumerate(pages)
        for kind in page.kinds(traits.stateful)
    ]
    assert after == before
    assert len(held.tokens) == 6 * PAGE_TOKENS
    held.release()
    memory.check_blocks()


def test_a_shrink_that_would_take_a_held_state_changes_nothing() -> None:
    memory = Memory(ContextTraits(stateful=True), ContextRoom(16, 0, 5))
    lease = memory.memory.open()
    tokens = tokens_of(2, more=3)
    assert memory.memory.reserve(lease, len(tokens))
    memory.memory.plan_saves(lease, 0, len(tokens), {})
    memory.memory.keep(lease, tokens, len(tokens))
    memory.memory.mark(lease, 32, Rank.OPENING)
    held = HeldPrefix(memory.memory, tokens)
    with pytest.raises(DoesNotFitError, match="2 recurrent states are in use, 1 more"):
        shrink(memory.memory, ContextRoom(16, 0, 1), memory)
    assert lease.last is not None
    held.release()
    memory.contents["state", lease.state] = "own"
    shrink(memory.memory, ContextRoom(16, 0, 1), memory)  # the request can do without its last border
    assert (memory.memory.room.states, memory.contents["state", lease.state]) == (1, "own")


def test_a_prefix_that_nobody_knows_is_empty() -> None:
    for traits in TRAITS:
        memory = Memory(traits)
        assert memory.save(tokens_of(3)) == ((), (), [])
        memory.compute(tokens_of(3, more=3))
        assert memory.save(tokens_of(3, seed=2)) == ((), (), [])
        assert memory.save([])[0] == ()
        memory.check_blocks()


def test_where_nobody_could_go_on_nothing_is_saved() -> None:
    memory = Memory(ContextTraits(stateful=True))
    memory.compute(tokens_of(8, more=1), {64: Rank.OPENING})
    memory.memory.checkpoints.drop(
        next(node.checkpoint for node in memory.memory.tree.nodes() if node.depth == 8 and node.checkpoint)
    )
    saved, pages, _ = memory.save(tokens_of(8))
    assert len(saved) == 64
    assert [page.checkpoint for page in pages] == [False, False, False, True]


def test_the_deepest_checkpoints_are_saved() -> None:
    memory = Memory(ContextTraits(stateful=True))
    memory.compute(tokens_of(14, more=1), dict.fromkeys(range(16, 224, 16), Rank.OPENING))
    _, pages, _ = memory.save(tokens_of(14))
    assert [page.checkpoint for page in pages] == [False] * (14 - MOST_CHECKPOINTS) + [True] * MOST_CHECKPOINTS


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_restoring_into_any_memory(data: st.DataObject) -> None:
    """However full it is, however much of it is there, and wherever the file turns out to be damaged."""
    traits = data.draw(st.sampled_from(TRAITS))
    tokens = tokens_of(data.draw(st.integers(1, 10)), more=data.draw(st.integers(1, 15)))
    wanted = dict.fromkeys(data.draw(st.sets(st.integers(1, 10).map(lambda page: page * 16))), Rank.OPENING)
    source = Memory(traits)
    source.compute(tokens, wanted, step=data.draw(st.sampled_from([16, 48, 400])))
    saved, pages, blocks = source.save(tokens)
    room = ContextRoom(data.draw(st.integers(1, 14)), data.draw(st.integers(0, 14)), data.draw(st.integers(0, 6)))
    target = Memory(traits, room)
    for seed in data.draw(st.lists(st.integers(1, 3), max_size=3)):
        target.compute(tokens_of(3, seed))
    target.compute(tokens[: data.draw(st.integers(1, len(tokens)))], wanted)
    fail_at = data.draw(st.integers(-1, len(blocks)))
    live = target.memory.open()
    reserved = target.memory.reserve(live, 16 * data.draw(st.integers(0, 3)))
    count = target.restore(saved, pages, blocks, fail_at)
    assert count % PAGE_TOKENS == 0
    if reserved:
        assert target.memory.held("page") == len(live.pages)
    target.memory.close(live)
    target.check_blocks()
    target.compute([*tokens, 1, 2, 3])  # checks what it takes up
    target.check_blocks()
