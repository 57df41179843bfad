"""A prefix on its way out of context memory to a file, or back: which blocks, in which order.

What is saved is a path of the tree up to where it can be taken up again, page by page. A page has its page block; its
window page where a checkpoint that is saved needs it; and the state of the checkpoint at its end, if that is saved.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from engine.memory.blocks import BlockKind
from engine.memory.checkpoints import Checkpoint
from engine.memory.context import ContextMemory
from engine.memory.pages import PAGE_TOKENS
from engine.memory.radix import Node
from engine.memory.retention import Rank
from engine.memory.windows import first_seen

MOST_CHECKPOINTS = 8  # that are saved: the deepest, since conversations are mostly gone on with near their ends


@dataclass(frozen=True)
class SavedPage:
    """What is saved of one page beside its page block."""

    window: bool = False
    checkpoint: bool = False

    def kinds(self, stateful: bool) -> Iterator[BlockKind]:
        """Its blocks, in order; `stateful` models have a state at a checkpoint."""
        yield "page"
        if self.window:
            yield "window"
        if self.checkpoint and stateful:
            yield "state"


class HeldPrefix:
    """What is known of some tokens, kept from being forgotten until `release`. Blocks may move meanwhile."""

    def __init__(self, memory: ContextMemory, tokens: Sequence[int]) -> None:
        self._memory = memory
        path = memory.tree.match(tokens, len(tokens) // PAGE_TOKENS)
        checkpoints = [node.checkpoint for node in path if node.checkpoint is not None]
        self._checkpoints: list[Checkpoint] = checkpoints[-MOST_CHECKPOINTS:]
        if memory.traits.stateful or memory.traits.reach:  # behind the last checkpoint nobody can go on
            path = path[: self._checkpoints[-1].node.depth] if self._checkpoints else []
        self._path = path
        self._windows = list(dict.fromkeys(node for checkpoint in self._checkpoints for node in checkpoint.tail))
        if path:
            memory.tree.pin(path[-1])
        for checkpoint in self._checkpoints:
            memory.checkpoints.pin(checkpoint)
        memory.tree_windows.pin(self._windows)
        memory.prefixes.add(self)
        self.tokens = tuple(tokens[: len(path) * PAGE_TOKENS])
        """Those of whole pages that are held."""

    @property
    def pages(self) -> tuple[SavedPage, ...]:
        """What there is of each page."""
        windows, ends = set(self._windows), {checkpoint.node for checkpoint in self._checkpoints}
        return tuple(SavedPage(node in windows, node in ends) for node in self._path)

    def block(self, page: int, kind: BlockKind) -> int:
        """The number that a block of page `page` has now."""
        node = self._path[page]
        if kind == "page":
            return node.page
        if kind == "window":
            return node.window
        assert node.checkpoint is not None
        return node.checkpoint.state

    def release(self) -> None:
        """Let go of it."""
        self._memory.prefixes.discard(self)
        self._memory.tree_windows.unpin(self._windows)
        for checkpoint in self._checkpoints:
            self._memory.checkpoints.unpin(checkpoint)
        if self._path:
            self._memory.tree.unpin(self._path[-1])
        self._path, self._checkpoints, self._windows = [], [], []


class RestoredPrefix:
    """A prefix that is put into context memory page by page. What is there already stays as it is.

    `write(kind, block)` fills a block; `release` ends it in any case.
    """

    def __init__(self, memory: ContextMemory, tokens: Sequence[int], pages: Sequence[SavedPage]) -> None:
        self._memory = memory
        self._tokens = tokens
        self._pages = pages
        self._path: list[Node] = []
        self._windows: list[Node] = []
        memory.prefixes.add(self)

    @property
    def restored(self) -> int:
        """Tokens that are in context memory."""
        return len(self._path) * PAGE_TOKENS

    @property
    def complete(self) -> bool:
        """Whether every page is."""
        return len(self._path) == len(self._pages)

    def add(self, write: Callable[[BlockKind, int], None]) -> bool:
        """Put the next page there with what lies beside it. Without room for it: False, and nothing changes."""
        memory, saved = self._memory, self._pages[len(self._path)]
        if not all(memory.available(kind) for kind in saved.kinds(memory.traits.stateful)):
            return False
        parent = self._path[-1] if self._path else memory.tree.root
        start = len(self._path) * PAGE_TOKENS
        letters = tuple(self._tokens[start : start + PAGE_TOKENS])
        node = parent.children.get(letters)
        if node is None:
            (page,) = memory.take_pages(1)
            _filled(write, "page", page, memory.pages.give)
            node, _ = memory.tree.insert(parent, letters, page)
        memory.tree.pin(node)
        if self._path:
            memory.tree.unpin(parent)
        self._path.append(node)
        if saved.window:
            self._add_window(node, write)
        if saved.checkpoint:
            self._add_checkpoint(node, write)
        return True

    def _add_window(self, node: Node, write: Callable[[BlockKind, int], None]) -> None:
        memory = self._memory
        if node.window < 0:
            (window,) = memory.take_windows(1)
            _filled(write, "window", window, memory.windows.give)
            memory.tree_windows.put(node, window)
        memory.tree_windows.pin([node])
        self._windows.append(node)

    def _add_checkpoint(self, node: Node, write: Callable[[BlockKind, int], None]) -> None:
        memory, reach = self._memory, self._memory.traits.reach
        tail = self._path[first_seen(node.depth * PAGE_TOKENS, reach) :] if reach else []
        if node.checkpoint is not None or any(page.window < 0 for page in tail):
            return
        state = -1
        if memory.traits.stateful:
            state = memory.take_state()
            _filled(write, "state", state, memory.states.give)
        memory.checkpoints.place(node, state, tuple(tail), Rank.END, kept=True)

    def release(self) -> None:
        """Leave what is there to whoever wants it."""
        self._memory.prefixes.discard(self)
        self._memory.tree_windows.unpin(self._windows)
        if self._path:
            self._memory.tree.unpin(self._path[-1])
        self._windows, self._path = [], []

    def discard(self) -> None:
        """Take out again what is there, as far back as nobody else builds on it."""
        memory, node = self._memory, self._path[-1] if self._path else self._memory.tree.root
        self.release()
        memory.forget(memory.tree.prune(node))


def _filled(
    write: Callable[[BlockKind, int], None], kind: BlockKind, block: int, give: Callable[[Iterable[int]], None]
) -> None:
    """Write a block that was just taken, and give it back if that fails."""
    try:
        write(kind, block)
    except BaseException:
        give([block])
        raise
