"""Context memory against a plain model of it, and the cases that are worth a name."""

from __future__ import annotations

import pytest
from hypothesis import settings

from engine.base.errors import DoesNotFitError
from engine.memory.blocks import BlockKind, ContextRoom
from engine.memory.context import ContextMemory
from engine.memory.lease import Lease
from engine.memory.lookup import ContextTraits, Reuse
from engine.memory.pages import PAGE_TOKENS
from engine.memory.pools import BlockPool
from engine.memory.resizing import shrink
from engine.memory.retention import Rank
from tests.unit.context_machine import ContextMachine

TestContextMachine = ContextMachine.TestCase
TestContextMachine.settings = settings(max_examples=150, stateful_step_count=30, deadline=None)

HYBRID = ContextTraits(0, stateful=True)


class NoCopies:
    def copy_block(self, kind: BlockKind, source: int, target: int) -> None:
        """Contents do not matter here."""


def memory_of(pages: int, windows: int = 0, states: int = 0, traits: ContextTraits | None = None) -> ContextMemory:
    return ContextMemory(ContextRoom(pages, windows, states), traits or ContextTraits(), NoCopies())


def compute(
    memory: ContextMemory, tokens: list[int], wanted: dict[int, Rank] | None = None, lease: Lease | None = None
) -> Reuse:
    """Have a request compute `tokens` and end; what it reused."""
    lease = lease or memory.open()
    reuse = memory.reuse(lease, tokens)
    assert memory.reserve(lease, len(tokens))
    memory.plan_saves(lease, reuse.position, len(tokens), wanted or {})
    memory.keep(lease, tokens, len(tokens))
    memory.close(lease)
    return reuse


def test_pool_hands_out_low_blocks_first_and_takes_them_back_once() -> None:
    pool = BlockPool("page", 4)
    assert pool.take(3) == [0, 1, 2]
    pool.give([1])
    assert pool.take(1) == [1]
    pool.give([0])
    with pytest.raises(AssertionError, match="page block 0"):
        pool.give([0])


def test_finished_prompt_and_answer_are_both_reused() -> None:
    memory, conversation = memory_of(8), list(range(40))
    assert compute(memory, conversation) == Reuse(0, 0, "new")
    assert memory.reuse(memory.open(), [*conversation, 7, 7]) == Reuse(32, 32, "last")
    assert memory.reuse(memory.open(), conversation[:32]).position == 16  # the last token is always computed


def test_two_requests_that_compute_the_same_page_end_up_sharing_it() -> None:
    memory, tokens = memory_of(4), [5] * 20
    one, two = memory.open(), memory.open()
    assert memory.reserve(one, 20)
    assert memory.reserve(two, 20)
    assert memory.pages.free == 0
    memory.keep(one, tokens, 20)
    memory.keep(two, tokens, 20)
    assert one.pages[0] == two.pages[0]
    assert one.pages[1] != two.pages[1]
    assert memory.pages.free == 1


def test_a_whole_old_conversation_goes_before_any_of_a_newer_one() -> None:
    memory = memory_of(8)
    old, new = [1] * 48, [2] * 48
    for tokens in (new, old, [*new, 2]):  # the newer one was there first, and was used again
        compute(memory, tokens)
    lease = memory.open()
    assert memory.reserve(lease, 4 * PAGE_TOKENS)  # two pages are free, so two of the old conversation's must go
    assert len(memory.tree.match(old, 3)) == 1
    assert memory.reserve(lease, 5 * PAGE_TOKENS)
    assert len(memory.tree.match(old, 3)) == 0
    assert len(memory.tree.match(new, 3)) == 3
    assert memory.reserve(lease, 6 * PAGE_TOKENS)
    assert len(memory.tree.match(new, 3)) == 2


def test_shrink_refuses_with_the_numbers_of_the_live_requests() -> None:
    memory = memory_of(4)
    lease = memory.open()
    assert memory.reserve(lease, 40)
    with pytest.raises(DoesNotFitError, match=r"hold 48 tokens.*32 more than --kv 16"):
        shrink(memory, ContextRoom(1), NoCopies())
    assert lease.pages == [0, 1, 2]


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ([1] * 100 + [2] * 50, Reuse(96, 100, "differs")),
        ([1] * 97, Reuse(96, 97, "last")),
        ([1] * 50 + [2] * 50, Reuse(32, 50, "state")),
        ([1] * 33 + [2] * 50, Reuse(32, 33, "differs")),
        ([1] * 9 + [2] * 50, Reuse(0, 9, "differs")),
        ([2] * 50, Reuse(0, 0, "new")),
    ],
)
def test_a_recurrent_model_goes_on_from_the_checkpoint_before_the_difference(
    prompt: list[int], expected: Reuse
) -> None:
    memory = memory_of(20, states=4, traits=HYBRID)
    compute(memory, [1] * 100 + [3] * 12, {32: Rank.OPENING, 96: Rank.END})
    assert memory.reuse(memory.open(), prompt) == expected


def test_the_end_of_a_request_and_a_cancelled_prompt_are_checkpoints_at_their_last_borders() -> None:
    memory = memory_of(20, states=4, traits=HYBRID)
    lease, tokens = memory.open(), list(range(200))
    memory.reuse(lease, tokens)
    for start, end in ((0, 64), (64, 70), (70, 71)):
        assert memory.reserve(lease, end)
        memory.plan_saves(lease, start, end, {})
        memory.keep(lease, tokens, end)
    memory.close(lease)
    assert memory.reuse(memory.open(), tokens) == Reuse(64, 64, "differs")


def test_what_made_way_is_told_from_what_was_never_there() -> None:
    memory = memory_of(8)
    compute(memory, [1] * 112)
    compute(memory, [2] * 64)
    assert memory.reuse(memory.open(), [1] * 112).why == "forgotten"
    assert memory.reuse(memory.open(), [3] * 112).why == "new"


def test_windows_behind_the_reach_make_way_and_a_checkpoint_keeps_its_own() -> None:
    memory = memory_of(40, windows=6, traits=ContextTraits(reach=32))
    lease, tokens = memory.open(), list(range(100, 500))
    for start in range(0, 400, 16):
        assert memory.reserve(lease, start + 16)
        memory.plan_saves(lease, start, start + 16, {160: Rank.OPENING} if start < 160 <= start + 16 else {})
        memory.keep(lease, tokens, start + 16)
    memory.close(lease)
    assert memory.reuse(memory.open(), [*tokens[:170], *[7] * 9]) == Reuse(160, 170, "differs")
    assert memory.reuse(memory.open(), [*tokens[:100], 7, 7]) == Reuse(0, 100, "window")
    assert memory.reuse(memory.open(), [*tokens, 7, 7]).position == 400


def test_the_checkpoint_that_was_not_used_for_longest_goes_first() -> None:
    memory = memory_of(40, states=5, traits=HYBRID)
    prompts = [[number] * 32 for number in range(4)]
    for prompt in prompts:
        compute(memory, prompt)
    lease = memory.open()
    assert memory.reuse(lease, [*prompts[0], 9]).position == 32
    memory.close(lease)
    compute(memory, [7] * 32)  # takes two states, one of which is its own while it runs
    found = [memory.look_up(memory.open(), [*prompt, 9]).reuse.position for prompt in prompts]
    assert found == [32, 0, 32, 32]


def test_a_lone_request_takes_the_state_of_the_checkpoint_where_there_is_no_other() -> None:
    memory = memory_of(8, states=1, traits=HYBRID)
    lease = memory.open()
    assert memory.reserve(lease, 32)
    memory.keep(lease, [1] * 32, 32)
    memory.close(lease)
    assert memory.available("state") == 1
    lease = memory.open()
    assert memory.reuse(lease, [1] * 40).position == 0  # there was no block for a checkpoint
    assert memory.reserve(lease, 40)
