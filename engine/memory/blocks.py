"""Of what context memory is made: blocks of three kinds, numbered from 0 each."""

from __future__ import annotations

from collections.abc import Mapping
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

    def with_bytes(self, block_bytes: Mapping[BlockKind, int]) -> ContextRoom:
        """The blocks that take memory, which are all that an executor has.

        Where every layer has a reach, pages hold nothing: they say which positions are known, and of whom.
        """
        return ContextRoom(
            pages=self.pages if block_bytes["page"] else 0,
            windows=self.windows if block_bytes["window"] else 0,
            states=self.states if block_bytes["state"] else 0,
        )


NO_BLOCKS = ContextRoom()
