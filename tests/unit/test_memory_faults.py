"""Mistakes put into context memory, each of which the comparison with the plain model must find."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from engine.memory import context, lookup, resizing
from engine.memory.blocks import BlockKind, ContextRoom
from engine.memory.checkpoints import Checkpoint, Checkpoints
from engine.memory.context import BlockStore, ContextMemory
from engine.memory.lease import Lease, Save
from engine.memory.lookup import ContextTraits, Found
from engine.memory.radix import Node, RadixTree
from engine.memory.retention import Rank
from engine.memory.windows import TreeWindows, first_seen
from tests.unit.context_machine import ContextMachine

Fault = Callable[[pytest.MonkeyPatch], None]


def eviction_ignores_pins(patch: pytest.MonkeyPatch) -> None:
    evict = RadixTree.evict

    def evict_any(self: RadixTree, count: int) -> list[Node]:
        leaves = [node for node in self.nodes() if not node.children]
        for leaf in leaves:
            if leaf.pins:
                leaf.pins, leaf.window_pins, leaf.window_tails = 0, 0, 0
                self._offer(leaf)
        return evict(self, count)

    patch.setattr(RadixTree, "evict", evict_any)


def saves_change_places(patch: pytest.MonkeyPatch) -> None:
    keep = ContextMemory.keep

    def keep_swapped(self: ContextMemory, lease: Lease, tokens: Sequence[int], computed: int) -> None:
        states = [save.state for save in lease.saves]
        lease.saves = [
            Save(save.border, state, save.rank, save.kept)
            for save, state in zip(lease.saves, reversed(states), strict=True)
        ]
        keep(self, lease, tokens, computed)

    patch.setattr(ContextMemory, "keep", keep_swapped)


def save_one_page_late(patch: pytest.MonkeyPatch) -> None:
    place = Checkpoints.place

    def place_on_parent(
        self: Checkpoints, node: Node, state: int, tail: tuple[Node, ...], rank: Rank, kept: bool
    ) -> Checkpoint:
        wrong = node.parent if node.parent is not None and node.parent.depth else node
        return place(self, wrong, state, tail, rank, kept)

    patch.setattr(Checkpoints, "place", place_on_parent)


def windows_are_given_up_a_page_early(patch: pytest.MonkeyPatch) -> None:
    def seen_late(position: int, reach: int) -> int:
        return min(position // 16, first_seen(position, reach) + 1)

    patch.setattr(context, "first_seen", seen_late)


def lookup_wants_a_window_page_less(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(lookup, "first_seen", lambda position, reach: first_seen(position, reach) + 1)


def lookup_forgets_states(patch: pytest.MonkeyPatch) -> None:
    look_up = lookup.look_up

    def without_states(tree: RadixTree, traits: ContextTraits, path: Sequence[Node], tokens: Sequence[int]) -> Found:
        return look_up(tree, ContextTraits(traits.reach, stateful=False), path, tokens)

    patch.setattr(context, "look_up", without_states)


def the_last_token_is_reused(patch: pytest.MonkeyPatch) -> None:
    look_up = lookup.look_up

    def too_far(tree: RadixTree, traits: ContextTraits, path: Sequence[Node], tokens: Sequence[int]) -> Found:
        return look_up(tree, traits, path, [*tokens, 9])

    patch.setattr(context, "look_up", too_far)


def states_are_not_copied(patch: pytest.MonkeyPatch) -> None:
    def load_nothing(self: ContextMemory, lease: Lease, checkpoint: Checkpoint) -> None:
        if lease.state < 0:
            lease.state = self.take_state()

    patch.setattr(ContextMemory, "_load", load_nothing)


def checkpoints_outlive_their_pages(patch: pytest.MonkeyPatch) -> None:
    def forget_pages(self: ContextMemory, nodes: Sequence[Node]) -> None:
        for node in nodes:
            self.pages.give([node.page])

    patch.setattr(ContextMemory, "forget", forget_pages)


def last_borders_pile_up(patch: pytest.MonkeyPatch) -> None:
    unpin = Checkpoints.unpin

    def unpin_kept(self: Checkpoints, checkpoint: Checkpoint) -> None:
        checkpoint.kept = True
        unpin(self, checkpoint)

    patch.setattr(Checkpoints, "unpin", unpin_kept)


def the_newest_checkpoint_goes_first(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Checkpoints, "drop_oldest", lambda self: self.drop(next(reversed(self._unpinned))))


def a_use_is_not_noted(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Checkpoints, "touch", lambda self, checkpoint: None)


def windows_of_checkpoints_are_loose(patch: pytest.MonkeyPatch) -> None:
    def settle(self: TreeWindows, node: Node) -> None:
        if node.window_pins == 0:
            self._loose[node] = None

    patch.setattr(TreeWindows, "_settle", settle)
    patch.setattr(TreeWindows, "hold", lambda self, nodes: None)
    patch.setattr(TreeWindows, "release", lambda self, nodes: None)


def equal_pages_are_not_given_back(patch: pytest.MonkeyPatch) -> None:
    insert = RadixTree.insert

    def insert_always(self: RadixTree, parent: Node, tokens: tuple[int, ...], page: int) -> tuple[Node, bool]:
        return insert(self, parent, tokens, page)[0], True

    patch.setattr(RadixTree, "insert", insert_always)


def a_shrink_copies_no_states(patch: pytest.MonkeyPatch) -> None:
    shrink = resizing.shrink

    class Stateless:
        def __init__(self, store: BlockStore) -> None:
            self.store = store

        def copy_block(self, kind: BlockKind, source: int, target: int) -> None:
            if kind != "state":
                self.store.copy_block(kind, source, target)

    def shrink_without(memory: ContextMemory, room: ContextRoom, store: BlockStore) -> None:
        shrink(memory, room, Stateless(store))

    patch.setattr("tests.unit.context_machine.shrink", shrink_without)


def failed_requests_leave_their_pages(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ContextMemory, "discard", ContextMemory.close)


def a_moved_window_keeps_its_old_number(patch: pytest.MonkeyPatch) -> None:
    rename = ContextMemory.rename

    def rename_others(memory: ContextMemory, kind: BlockKind, moves: dict[int, int]) -> None:
        rename(memory, kind, {} if kind == "window" else moves)

    patch.setattr(ContextMemory, "rename", rename_others)


FAULTS: Mapping[str, Fault] = {
    fault.__name__: fault
    for fault in (
        eviction_ignores_pins, saves_change_places, save_one_page_late, windows_are_given_up_a_page_early,
        lookup_wants_a_window_page_less, lookup_forgets_states, the_last_token_is_reused, states_are_not_copied,
        checkpoints_outlive_their_pages, last_borders_pile_up, the_newest_checkpoint_goes_first, a_use_is_not_noted,
        windows_of_checkpoints_are_loose, equal_pages_are_not_given_back, a_shrink_copies_no_states,
        failed_requests_leave_their_pages, a_moved_window_keeps_its_old_number,
    )
}  # fmt: skip


SLOW = ("a_use_is_not_noted",)
"""Mistakes that only a long search finds."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.long) if name in SLOW else name for name in FAULTS]
)
def test_the_comparison_finds_a_mistake(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    FAULTS[name](monkeypatch)
    hunting = settings(
        max_examples=3000,
        stateful_step_count=40,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )
    with pytest.raises(Exception) as caught:  # noqa: PT011 - an assertion of the comparison, or of memory itself
        run_state_machine_as_test(ContextMachine, settings=hunting)
    assert isinstance(caught.value, AssertionError | KeyError | IndexError), caught.value
