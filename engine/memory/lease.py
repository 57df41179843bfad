"""What a request holds of context memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from engine.memory.blocks import BlockKind
from engine.memory.checkpoints import Checkpoint
from engine.memory.pages import PAGE_TOKENS
from engine.memory.radix import Node
from engine.memory.retention import Rank


@dataclass(frozen=True)
class Save:
    """A checkpoint that the coming step makes: the state after `border` tokens goes to block `state` (-1: none)."""

    border: int
    state: int
    rank: Rank
    kept: bool  # False: only as the sequence's last border


@dataclass(eq=False)
class Lease:
    """The blocks one request holds. Pages and window pages are in order of position.

    The first `shared` of `pages` belong to the tree, the others are the request's alone; so are those of `windows`,
    where -1 is one that its tokens do not see any more. All may be rewritten by every call to `ContextMemory`, so they
    are read anew for every step.
    """

    path: list[Node] = field(default_factory=list)
    pages: list[int] = field(default_factory=list)
    windows: list[int] = field(default_factory=list)
    state: int = -1  # -1: none yet
    seen: int = 0  # index of the first window page that it holds
    last: Checkpoint | None = None  # at its last page border
    saves: list[Save] = field(default_factory=list)  # of the step under way
    computed: bool = False  # whether it computed anything

    @property
    def shared(self) -> int:
        """Pages that belong to the tree."""
        return len(self.path)

    @property
    def capacity(self) -> int:
        """Positions there is room for."""
        return len(self.pages) * PAGE_TOKENS

    @property
    def window_count(self) -> int:
        """Window pages it holds."""
        return max(0, len(self.windows) - self.seen)

    def rename(self, kind: BlockKind, moves: Mapping[int, int]) -> None:
        """Write the new numbers of moved blocks."""
        if kind == "page":
            self.pages = [moves.get(page, page) for page in self.pages]
        elif kind == "window":
            self.windows = [moves.get(window, window) for window in self.windows]
        else:
            self.state = moves.get(self.state, self.state)
