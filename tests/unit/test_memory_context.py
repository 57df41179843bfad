"""Context memory against a plain model: sets of prefixes, a list of pages and what each of them holds."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from engine.base.errors import DoesNotFitError
from engine.memory.context import ContextMemory, Lease
from engine.memory.pages import PAGE_TOKENS, PagePool

Prefix = tuple[int, ...]

letters = st.integers(0, 2)
# Few distinct pages, so that prefixes meet, and a tail that ends within a page.
prompts = st.builds(
    lambda pages, tail: [letter for page in pages for letter in [page] * PAGE_TOKENS] + [9] * tail,
    st.lists(letters, max_size=5),
    st.integers(1, PAGE_TOKENS - 1),
)


@dataclass(eq=False)
class LiveRequest:
    lease: Lease
    tokens: list[int]
    computed: int = 0


class ContextMachine(RuleBasedStateMachine):
    """Requests come, compute, share, finish; the memory grows and shrinks. No page may ever hold the wrong tokens."""

    @initialize(capacity=st.integers(1, 12))
    def start(self, capacity: int) -> None:
        self.memory = ContextMemory(capacity)
        self.capacity = capacity
        self.live: list[LiveRequest] = []
        self.contents: dict[tuple[int, int], Prefix] = {}  # (page, slot) -> the tokens up to and with it
        self.known: dict[Prefix, int] = {}  # whole-page prefixes in the tree -> when they were last unpinned
        self.clock = 0

    @rule(tokens=prompts)
    def open(self, tokens: list[int]) -> None:
        request = LiveRequest(self.memory.open(), tokens)
        request.computed = self.memory.reuse(request.lease, tokens)
        limit = (len(tokens) - 1) // PAGE_TOKENS
        expected = 0
        while expected < limit and tuple(tokens[: (expected + 1) * PAGE_TOKENS]) in self.known:
            expected += 1
        assert request.computed == expected * PAGE_TOKENS
        self.live.append(request)

    @precondition(lambda self: self.live)
    @rule(data=st.data(), count=st.integers(1, 40), extra=st.lists(letters, max_size=20))
    def compute(self, data: st.DataObject, count: int, extra: list[int]) -> None:
        request = data.draw(st.sampled_from(self.live))
        request.tokens = request.tokens + extra
        goal = min(len(request.tokens), request.computed + count)
        missing = max(0, -(-goal // PAGE_TOKENS) - len(request.lease.pages))
        free = self.capacity - self.used()
        possible = missing <= free + len(self.unpinned())
        assert self.memory.reserve(request.lease, goal) == possible
        if not possible:
            return
        self.forget(missing - free)
        for position in range(request.computed, goal):
            place = (request.lease.pages[position // PAGE_TOKENS], position % PAGE_TOKENS)
            self.contents[place] = tuple(request.tokens[: position + 1])
        request.computed = goal
        self.memory.keep(request.lease, request.tokens, goal)
        for end in range(PAGE_TOKENS, goal + 1, PAGE_TOKENS):
            self.known.setdefault(tuple(request.tokens[:end]), 0)

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def catch_up(self, data: st.DataObject) -> None:
        request = data.draw(st.sampled_from(self.live))
        request.computed = max(request.computed, self.memory.reuse(request.lease, request.tokens))

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def close(self, data: st.DataObject) -> None:
        request = data.draw(st.sampled_from(self.live))
        before = self.unpinned()
        self.live.remove(request)
        self.memory.close(request.lease)
        self.clock += 1
        for prefix in self.unpinned() - before:
            self.known[prefix] = self.clock

    @rule(capacity=st.integers(1, 16))
    def resize(self, capacity: int) -> None:
        if capacity >= self.capacity:
            self.memory.grow(capacity)
        else:
            held = self.used() - len(self.unpinned())
            if held > capacity:
                with pytest.raises(DoesNotFitError, match=str(held * PAGE_TOKENS)):
                    self.memory.shrink(capacity, self.copy)
                return
            excess = self.used() - capacity
            self.memory.shrink(capacity, self.copy)
            self.forget(excess)
        self.capacity = capacity
        self.contents = {place: held for place, held in self.contents.items() if place[0] < capacity}

    def copy(self, source: int, target: int) -> None:
        for slot in range(PAGE_TOKENS):
            if (source, slot) in self.contents:
                self.contents[target, slot] = self.contents[source, slot]

    def used(self) -> int:
        return len(self.known) + sum(len(r.lease.pages) - r.lease.shared for r in self.live)

    def unpinned(self) -> set[Prefix]:
        held = {
            tuple(r.tokens[:end])
            for r in self.live
            for end in range(PAGE_TOKENS, r.lease.shared * PAGE_TOKENS + 1, PAGE_TOKENS)
        }
        return set(self.known) - held

    def forget(self, count: int) -> None:
        for _ in range(count):
            parents = {prefix[:-PAGE_TOKENS] for prefix in self.known}
            oldest = min(self.unpinned() - parents, key=lambda prefix: self.known[prefix])
            del self.known[oldest]

    @invariant()
    def pages_hold_what_requests_computed(self) -> None:
        for request in self.live:
            pages = request.lease.pages
            assert len(set(pages)) == len(pages)
            for position in range(request.computed):
                place = (pages[position // PAGE_TOKENS], position % PAGE_TOKENS)
                assert self.contents[place] == tuple(request.tokens[: position + 1])

    @invariant()
    def tree_is_the_plain_model(self) -> None:
        found: dict[Prefix, int] = {}
        stack: list[tuple[Prefix, object]] = [((), self.memory.tree.root)]
        while stack:
            prefix, node = stack.pop()
            for tokens, child in node.children.items():  # type: ignore[attr-defined]
                found[prefix + tokens] = child.page
                stack.append((prefix + tokens, child))
        assert set(found) == set(self.known)
        for prefix, page in found.items():
            assert self.contents[page, PAGE_TOKENS - 1] == prefix
        assert self.memory.tree.evictable == len(self.unpinned())

    @invariant()
    def every_page_has_one_owner(self) -> None:
        owned = [node.page for node in self.memory.tree.nodes()]
        owned += [page for r in self.live for page in r.lease.pages[r.lease.shared :]]
        assert len(set(owned)) == len(owned)
        assert all(page < self.capacity for page in owned)
        assert self.memory.pool.free == self.capacity - len(owned)


TestContextMachine = ContextMachine.TestCase
TestContextMachine.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


def test_pool_hands_out_low_pages_first_and_takes_them_back_once() -> None:
    pool = PagePool(4)
    first = pool.take(3)
    assert first == [0, 1, 2]
    pool.give([1])
    assert pool.take(1) == [1]
    pool.give([0])
    with pytest.raises(AssertionError, match="page 0"):
        pool.give([0])


def test_finished_prompt_and_answer_are_both_reused() -> None:
    memory = ContextMemory(8)
    conversation = list(range(40))
    lease = memory.open()
    assert memory.reserve(lease, 40)
    memory.keep(lease, conversation, 40)
    memory.close(lease)
    again = memory.open()
    assert memory.reuse(again, [*conversation, 7, 7]) == 32
    other = memory.open()
    assert memory.reuse(other, conversation[:32]) == 16  # the last token is always computed


def test_two_requests_that_compute_the_same_page_end_up_sharing_it() -> None:
    memory = ContextMemory(4)
    tokens = [5] * 20
    one, two = memory.open(), memory.open()
    assert memory.reserve(one, 20)
    assert memory.reserve(two, 20)
    assert memory.pool.free == 0
    memory.keep(one, tokens, 20)
    memory.keep(two, tokens, 20)
    assert one.pages[0] == two.pages[0]
    assert one.pages[1] != two.pages[1]
    assert memory.pool.free == 1


def test_a_whole_old_conversation_goes_before_any_of_a_newer_one() -> None:
    memory = ContextMemory(8)
    old, new = [1] * 49, [2] * 49
    for tokens in (new, old, new):  # the newer one was there first, and was used again
        lease = memory.open()
        start = memory.reuse(lease, tokens)
        assert memory.reserve(lease, 48)
        memory.keep(lease, tokens, max(start, 48))
        memory.close(lease)
    lease = memory.open()
    assert memory.reserve(lease, 4 * PAGE_TOKENS)  # two pages are free, so two of the old conversation's must go
    assert len(memory.tree.match(old, 3)) == 1
    assert memory.reserve(lease, 5 * PAGE_TOKENS)
    assert len(memory.tree.match(old, 3)) == 0
    assert len(memory.tree.match(new, 3)) == 3
    assert memory.reserve(lease, 6 * PAGE_TOKENS)
    assert len(memory.tree.match(new, 3)) == 2


def test_shrink_refuses_with_the_numbers_of_the_live_requests() -> None:
    memory = ContextMemory(4)
    lease = memory.open()
    assert memory.reserve(lease, 40)
    with pytest.raises(DoesNotFitError, match=r"hold 48 tokens.*32 more than --kv 16"):
        memory.shrink(1, lambda source, target: pytest.fail("nothing may be copied"))
    assert lease.pages == [0, 1, 2]
