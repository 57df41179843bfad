"""How tokens spell a marker, for those who see token ids alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

LOST = -1  # the marker can no longer come


@dataclass(frozen=True)
class Spelling:
    """A marker of `length` bytes, wherever it stands, or only as the `first` thing but for space.

    `steps[token]` says how many of its bytes stand at the end after `token`, for each number 0 to `length` - 1 that
    stood there before; `length` once the marker is complete. After any other token none stand there.
    """

    length: int
    steps: Mapping[int, tuple[int, ...]]
    first: bool = False

    def after(self, spelled: int, token: int) -> int:
        """How many bytes of the marker stand at the end after `token`, if it was `spelled` before."""
        steps = self.steps.get(token)
        if spelled == LOST or steps is None:
            return LOST if self.first else 0
        return steps[spelled]
