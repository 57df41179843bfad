"""What an interface makes of the pieces of an answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from engine.front.answers import Piece, Tally
from engine.front.dialects import Dialect, Json


class Shape(Protocol):
    """One kind of answer on one interface."""

    dialect: Dialect

    def opening(self, index: int) -> Sequence[Json]:
        """The first events of choice `index`."""
        ...

    def events(self, piece: Piece) -> Sequence[Json]:
        """The events for a piece."""
        ...

    def closing(self, tally: Tally) -> Sequence[Json]:
        """The last events, with counts."""
        ...

    def whole(self, pieces: Sequence[Piece], tally: Tally) -> Json:
        """The unstreamed answer made of all `pieces`."""
        ...
