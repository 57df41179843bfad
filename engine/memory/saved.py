"""A prefix on its way out of context memory to a file, or back: which blocks, in which order.

What is saved is a path of the tree up to where it can be taken up again, page by page. A page has its page block; its
window page where a checkpoint that is saved needs it; and the state of the checkpoint at its end, if that is saved.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from engine.memory.blocks import BlockKind
from engine.memory.context import ContextMemory
from engine.memory.holding import Hold, Write
from engine.memory.pages import PAGE_TOKENS

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
        path = memory.tree.match(tokens, len(tokens) // PAGE_TOKENS)
        checkpoints = [node.checkpoint for node in path if node.checkpoint is not None][-MOST_CHECKPOINTS:]
        if memory.traits.stateful or memory.traits.reach:  # behind the last checkpoint nobody can go on
            path = path[: checkpoints[-1].node.depth] if checkpoints else []
        windows = list(dict.fromkeys(node for checkpoint in checkpoints for node in checkpoint.tail))
        self._held = Hold(memory, path, windows, checkpoints)
        self.tokens = tuple(tokens[: len(path) * PAGE_TOKENS])
        """Those of whole pages that are held."""

    @property
    def pages(self) -> tuple[SavedPage, ...]:
        """What there is of each page."""
        windows, ends = set(self._held.windows), {checkpoint.node for checkpoint in self._held.checkpoints}
        return tuple(SavedPage(node in windows, node in ends) for node in self._held.path)

    def block(self, page: int, kind: BlockKind) -> int:
        """The number that a block of page `page` has now."""
        node = self._held.path[page]
        if kind == "page":
            return node.page
        if kind == "window":
            return node.window
        assert node.checkpoint is not None
        return node.checkpoint.state

    def release(self) -> None:
        """Let go of it."""
        self._held.let_go()


class RestoredPrefix:
    """A prefix that is put into context memory page by page. What is there already stays as it is.

    `write(kind, block)` fills a block; `release` ends it in any case.
    """

    def __init__(self, memory: ContextMemory, tokens: Sequence[int], pages: Sequence[SavedPage]) -> None:
        self._memory = memory
        self._tokens = tokens
        self._pages = pages
        self._held = Hold(memory)

    @property
    def restored(self) -> int:
        """Tokens that are in context memory."""
        return len(self._held.path) * PAGE_TOKENS

    @property
    def complete(self) -> bool:
        """Whether every page is."""
        return len(self._held.path) == len(self._pages)

    def add(self, write: Write) -> bool:
        """Put the next page there with what lies beside it. Without room for it: False, and nothing changes."""
        memory, saved = self._memory, self._pages[len(self._held.path)]
        if not all(memory.available(kind) for kind in saved.kinds(memory.traits.stateful)):
            return False
        letters = tuple(self._tokens[self.restored : self.restored + PAGE_TOKENS])
        node = self._held.put_page(letters, write)
        if saved.window:
            self._held.put_window(node, write)
        if saved.checkpoint:
            self._held.put_checkpoint(node, write)
        return True

    def release(self) -> None:
        """Leave what is there to whoever wants it."""
        self._held.let_go()

    def discard(self) -> None:
        """Take out again what is there, as far back as nobody else builds on it."""
        self._held.let_go(forget=True)
