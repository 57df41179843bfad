"""How long work says how far it has come."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[int, int], None]
"""Called with what is done and what there is in all, in bytes or in steps."""


def silent(done: int, total: int) -> None:
    """The progress of a caller that wants none."""
