"""Where an answer is: within one of the passages that markers open and close, or outside. Token ids only."""

from __future__ import annotations

from collections.abc import Sequence

from engine.base.spelling import Spelling


class Place:
    """The place behind the last token."""

    def __init__(self, opens: Sequence[Spelling], closes: Sequence[Spelling], begun: bool = False) -> None:
        """A passage goes from one of `opens` to one of `closes`; with `begun` the answer begins in one."""
        self._opens = opens
        self._closes = closes
        self._inside = begun
        self._spelled: list[tuple[Spelling, int]] = []  # the markers that lead on, and how much of each stands there
        self._enter(begun)

    @property
    def inside(self) -> bool:
        """Whether it is in a passage."""
        return self._inside

    @property
    def in_marker(self) -> bool:
        """Whether some of the marker stands there that leads in or out."""
        return any(spelled > 0 for _, spelled in self._spelled)

    def take(self, token: int) -> None:
        """Go on behind `token`."""
        self._spelled = [(marker, marker.after(spelled, token)) for marker, spelled in self._spelled]
        if any(marker.complete(spelled) for marker, spelled in self._spelled):
            self._enter(not self._inside)

    def leave(self) -> None:
        """Go outside without a marker."""
        self._enter(inside=False)

    def _enter(self, inside: bool) -> None:
        self._inside = inside
        self._spelled = [(marker, 0) for marker in (self._closes if inside else self._opens)]
