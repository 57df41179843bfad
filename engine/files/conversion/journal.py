"""The lines of a conversion's journal: the hash of an item, and what requantising it lost if it was requantised."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator

from engine.files.conversion.converted import Loss

HASH_CHARS = 32
_LINE = re.compile(r"[0-9a-f]{32}( \[.*\])?", re.ASCII)


def journal_line(digest: str, loss: Loss | None) -> str:
    """The line of an item with that hash."""
    return f"{digest} {json.dumps(loss.to_json())}" if loss else digest


def is_journal_line(line: str) -> bool:
    """Whether `journal_line` can have written it."""
    if not _LINE.fullmatch(line):
        return False
    try:
        list(read_losses([line]))
    except ValueError:
        return False
    return True


def read_losses(lines: Iterable[str]) -> Iterator[Loss]:
    """What the requantised items of a journal lost. Raises ValueError for a line that nobody wrote."""
    for line in lines:
        if len(line) > HASH_CHARS:
            yield Loss.from_json(json.loads(line[HASH_CHARS:]))
