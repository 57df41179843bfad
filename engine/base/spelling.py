"""How tokens spell a marker, and where they end within characters, for those who see token ids alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

LOST = -1  # the marker can no longer come


@dataclass(frozen=True)
class Spelling:
    """A marker of `length` bytes, wherever it stands, or only as the `first` thing but for space.

    `steps[token]` says how many of its bytes stand at the end after `token`, for each number 0 to `length` - 1 that
    stood there before; `length` once the marker is complete, and one more where `token` goes on behind it with more
    than space. After any other token none stand there.
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

    def complete(self, spelled: int) -> bool:
        """Whether the marker stands there, if it is `spelled` so far."""
        return spelled >= self.length

    def exceeding(self) -> tuple[tuple[int, ...], ...]:
        """For each number of bytes that may stand there: the tokens that complete the marker and go on behind it."""
        found: tuple[list[int], ...] = tuple([] for _ in range(self.length))
        for token, row in self.steps.items():
            if max(row) > self.length:
                for spelled, step in enumerate(row):
                    found[spelled].extend([token] * (step > self.length))
        return tuple(map(tuple, found))


@dataclass(frozen=True)
class CharacterEdges:
    """Where tokens end within characters of several bytes in UTF-8.

    `lacking[token]` is how many bytes the character lacks with whose beginning `token` ends; `filling[token]` of how
    many bytes of the middle of a character it consists, where of nothing else. All others end where a character does.
    """

    lacking: Mapping[int, int] = field(default_factory=dict)
    filling: Mapping[int, int] = field(default_factory=dict)

    def after(self, lacking: int, token: int) -> int:
        """How many bytes the last character lacks after `token`, if it was `lacking` so many before."""
        if token in self.filling:
            return max(0, lacking - self.filling[token])
        return self.lacking.get(token, 0)

    def completing(self, lacking: int) -> tuple[int, ...]:
        """The tokens that go on with a character which is `lacking` so many bytes, and hold nothing else."""
        return tuple(token for token, count in self.filling.items() if count <= lacking)
