"""Of what context memory is made: blocks of three kinds, numbered from 0 each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

BlockKind = Literal["page", "window", "state"]
"""`page`: keys and values of `PAGE_TOKENS` positions in all layers that keep everything; `window`: the same in those
that reach back only so far; `state`: the recurrent states of one sequence."""


@dataclass(frozen=True)
class ContextRoom:
    """How many blocks of each kind there are."""

    pages: int = 0
    windows: int = 0
    states: int = 0

    def __post_init__(self) -> None:
        if min(self.pages, self.windows, self.states) < 0:
            raise ValueError(f"a room of {self} blocks")

    def count(self, kind: BlockKind) -> int:
        """Blocks of one kind."""
        return {"page": self.pages, "window": self.windows, "state": self.states}[kind]


NO_BLOCKS = ContextRoom()
