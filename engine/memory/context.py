"""Context memory: blocks, tree and checkpoints together, as the requests of a worker use them.

Every block is free, or in the tree (a page, its window page, the state of its checkpoint), or held by exactly one
lease.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from engine.memory.blocks import BlockKind, ContextRoom
from engine.memory.checkpoints import Checkpoint
from engine.memory.context_blocks import ContextBlocks
from engine.memory.lease import Lease, Save
from engine.memory.lookup import ContextTraits, Found, Reuse, look_up
from engine.memory.pages import PAGE_TOKENS, page_border, pages_for
from engine.memory.radix import Node
from engine.memory.retention import Rank
from engine.memory.windows import first_seen

SAVES_SHARE = 0.75  # of what checkpoints may take: the most that one prompt saves


class BlockStore(Protocol):
    """Where the contents of blocks lie: the executor."""

    def copy_block(self, kind: BlockKind, source: int, target: int) -> None:
        """Copy one block onto another of its kind."""
        ...


class ContextMemory(ContextBlocks):
    """Gives blocks to requests and keeps what they computed for the next ones."""

    def __init__(self, room: ContextRoom, traits: ContextTraits, store: BlockStore) -> None:
        super().__init__(room, traits)
        self._store = store
        self.prefixes: set[object] = set()  # on their way to a file or back: they hold blocks beside the leases'
        self.leases: dict[Lease, None] = {}  # in order: what is done to all is done in the order in which they came

    @property
    def saves_budget(self) -> int:
        """Checkpoints that one prompt may have."""
        if self.traits.stateful:
            spare = self.states.capacity - 2 * max(1, len(self.leases))
        elif self.traits.reach:
            tail = pages_for(self.traits.reach)
            spare = (self.windows.capacity - max(1, len(self.leases)) * tail) // tail
        else:
            return 0
        return max(1, int(spare * SAVES_SHARE))

    def open(self) -> Lease:
        """A lease on nothing yet."""
        lease = Lease()
        self.leases[lease] = None
        return lease

    def look_up(self, lease: Lease, tokens: Sequence[int]) -> Found:
        """Where `reuse` would take the lease to. Changes nothing."""
        found = look_up(self.tree, self.traits, lease.path, tokens)
        if len(lease.pages) > lease.shared:
            found = Found(lease.path, replace(found.reuse, position=lease.shared * PAGE_TOKENS))
        return found

    def reuse(self, lease: Lease, tokens: Sequence[int]) -> Reuse:
        """Take up `tokens` as late as what is kept allows: extend the lease, copy the state there into its own.

        A lease with pages of its own is left as it is. The caller has looked at `has_state_for` first.
        """
        found = self.look_up(lease, tokens)
        if len(found.path) > lease.shared:
            self._extend(lease, found.path)
        return found.reuse

    def has_state_for(self, lease: Lease) -> bool:
        """Whether the lease has the state block that it needs, or could get one."""
        return not self.traits.stateful or lease.state >= 0 or self.available("state") > 0

    def reserve(self, lease: Lease, tokens: int) -> bool:
        """Make room for `tokens` positions and a state, forgetting what nobody holds if need be.

        Without room: False, and nothing changes.
        """
        missing = max(0, pages_for(tokens) - len(lease.pages))
        windows = missing if self.traits.reach else 0
        states = int(self.traits.stateful and lease.state < 0)
        if missing > self.available("page") or windows > self.available("window") or states > self.available("state"):
            return False
        lease.pages += self.take_pages(missing)
        lease.windows += self.take_windows(windows)
        if states:
            lease.state = self.take_state()
        return True

    def within_reach(self, lease: Lease) -> int:
        """The most positions that `reserve` could make room for now."""
        pages = self.available("page")
        if self.traits.reach:
            pages = min(pages, self.available("window"))
        return lease.capacity + pages * PAGE_TOKENS

    def plan_saves(self, lease: Lease, start: int, end: int, wanted: Mapping[int, Rank]) -> list[Save]:
        """The checkpoints that computing `start .. end` is to make: `wanted` ones as far as there is room, and the
        last border for itself, so that whoever ends or waits later loses less than a page.

        Called last before a step: the lease's last checkpoint may be overwritten by it. `keep` places them.
        """
        assert not lease.saves
        last = page_border(end)
        borders = sorted({border for border in wanted if start < border <= end})
        if last > start and lease.last is not None:
            self.checkpoints.unpin(lease.last)
            lease.last = None
        if self.traits.stateful and last > start:
            borders = [last, *(border for border in borders if border != last)]  # it comes first where room is short
        for border in borders:
            state = -1
            if self.traits.stateful:
                if self.available("state") == 0:
                    break
                state = self.take_state()
            lease.saves.append(Save(border, state, wanted.get(border, Rank.END), border in wanted))
        lease.saves.sort(key=lambda save: save.border)
        return lease.saves

    def keep(self, lease: Lease, tokens: Sequence[int], computed: int) -> None:
        """Put every page that is full after `computed` positions into the tree, and the saves of the step with it."""
        lease.computed = True
        for index in range(lease.shared, computed // PAGE_TOKENS):
            letters = tuple(tokens[index * PAGE_TOKENS : (index + 1) * PAGE_TOKENS])
            node, taken = self.tree.insert(
                lease.path[-1] if lease.path else self.tree.root, letters, lease.pages[index]
            )
            if not taken:  # another request computed the same page at the same time; equal tokens give equal bits
                self.pages.give([lease.pages[index]])
                lease.pages[index] = node.page
            if self.traits.reach:
                self._keep_window(lease, node)
            self._advance(lease, [node])
        for save in lease.saves:
            self._place(lease, save)
        lease.saves = []
        self._see_from(lease, first_seen(page_border(computed), self.traits.reach))

    def mark(self, lease: Lease, border: int, rank: Rank) -> None:
        """Keep the lease's last border for others, if `border` is it and it can be taken up there."""
        if lease.last is not None and lease.last.node.depth * PAGE_TOKENS == border:
            self.checkpoints.keep(lease.last, rank)
        elif self.traits.reach and not self.traits.stateful and border == lease.shared * PAGE_TOKENS > 0:
            self._place(lease, Save(border, -1, rank, kept=True))

    def close(self, lease: Lease) -> None:
        """Let go of everything. What `keep` put into the tree stays there until somebody needs the room, and the
        lease's last border is a checkpoint."""
        if lease.computed:
            self.mark(lease, lease.shared * PAGE_TOKENS, Rank.END)
        self._release(lease)

    def discard(self, lease: Lease) -> None:
        """Close the lease and forget its tokens as far back as no other request or prefix builds on them."""
        node = lease.path[-1] if lease.path else self.tree.root
        self._release(lease)
        self.forget(self.tree.prune(node))

    def let_go_of_last_borders(self) -> None:
        """Live requests do without the states at their last borders."""
        for lease in self.leases:
            if lease.last is not None:
                self.checkpoints.unpin(lease.last)
                lease.last = None

    def rename(self, kind: BlockKind, moves: Mapping[int, int]) -> None:
        super().rename(kind, moves)
        for lease in self.leases:
            lease.rename(kind, moves)

    def _extend(self, lease: Lease, path: list[Node]) -> None:
        """Take the lease to the end of `path`, where it can be taken up."""
        position, before = len(path) * PAGE_TOKENS, lease.shared
        new = path[before:]
        self._advance(lease, new)
        lease.pages += [node.page for node in new]
        if self.traits.reach:
            seen = first_seen(position, self.traits.reach)
            self.tree_windows.pin(path[max(before, seen) :])
            lease.windows += [node.window if node.depth > seen else -1 for node in new]
            self._see_from(lease, seen, before)
        checkpoint = path[-1].checkpoint
        if checkpoint is not None:
            self._touch(path, checkpoint)
            if self.traits.stateful:
                self._load(lease, checkpoint)

    def _load(self, lease: Lease, checkpoint: Checkpoint) -> None:
        """Copy the state of a checkpoint into the lease's own block."""
        if lease.state < 0:
            self.checkpoints.pin(checkpoint)
            room = self.available("state") > 0
            if room:
                lease.state = self.take_state()
            self.checkpoints.unpin(checkpoint)
            if not room:  # only the checkpoint itself can be had
                lease.state = self.checkpoints.surrender(checkpoint)
                return
        self._store.copy_block("state", checkpoint.state, lease.state)

    def _touch(self, path: Sequence[Node], checkpoint: Checkpoint) -> None:
        """Note the use of a checkpoint, and of the first opening edge before it: other conversations part there."""
        for node in path:
            if node.checkpoint is not None and node.checkpoint.rank is Rank.OPENING:
                self.checkpoints.touch(node.checkpoint)
                break
        self.checkpoints.touch(checkpoint)

    def _advance(self, lease: Lease, nodes: list[Node]) -> None:
        self.tree.pin(nodes[-1])
        if lease.path:
            self.tree.unpin(lease.path[-1])
        lease.path += nodes

    def _keep_window(self, lease: Lease, node: Node) -> None:
        """Hand the window page of a page that has just gone to the tree over to it."""
        own = lease.windows[node.depth - 1]
        if node.window < 0:
            self.tree_windows.put(node, own)
        elif node.window != own:
            self.windows.give([own])
            lease.windows[node.depth - 1] = node.window
        self.tree_windows.pin([node])

    def _place(self, lease: Lease, save: Save) -> None:
        """Make a save of the step a checkpoint of the tree."""
        depth = save.border // PAGE_TOKENS
        tail = lease.path[first_seen(save.border, self.traits.reach) : depth] if self.traits.reach else []
        node = lease.path[depth - 1]
        checkpoint = self.checkpoints.place(node, save.state, tuple(tail), save.rank, save.kept)
        if self.traits.stateful and depth == lease.shared:
            self.checkpoints.pin(checkpoint)
            lease.last = checkpoint

    def _see_from(self, lease: Lease, seen: int, pinned: int | None = None) -> None:
        """Give up the window pages before index `seen`. The first `pinned` of them (None: all) are pinned."""
        if not self.traits.reach or seen <= lease.seen:
            return
        self.tree_windows.unpin(lease.path[lease.seen : seen if pinned is None else min(seen, pinned)])
        lease.windows[lease.seen : seen] = [-1] * (seen - lease.seen)
        lease.seen = seen

    def _release(self, lease: Lease) -> None:
        del self.leases[lease]
        if lease.last is not None:
            self.checkpoints.unpin(lease.last)
        self.states.give(save.state for save in lease.saves if save.state >= 0)
        if lease.state >= 0:
            self.states.give([lease.state])
        if self.traits.reach:
            self.tree_windows.unpin(lease.path[lease.seen :])
            self.windows.give(lease.windows[lease.shared :])
        self.pages.give(lease.pages[lease.shared :])
        if lease.path:
            self.tree.unpin(lease.path[-1])
        lease.path, lease.pages, lease.windows, lease.saves = [], [], [], []
        lease.state, lease.last = -1, None
