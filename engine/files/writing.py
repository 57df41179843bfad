"""Writing all of something, however little the system takes at a time."""

from __future__ import annotations

import os


def write_all(descriptor: int, data: bytes | memoryview, offset: int | None = None) -> None:
    """Writes all of `data` at byte `offset`, or where the file stands. Raises OSError."""
    view = memoryview(data)
    done = 0
    while done < len(view):
        rest = view[done:]
        done += os.write(descriptor, rest) if offset is None else os.pwrite(descriptor, rest, offset + done)
