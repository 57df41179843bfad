"""What a conversion takes of the disk while its source comes and goes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from engine.files.conversion.plan import Plan


@dataclass(frozen=True)
class Cost:
    """What a pull takes, in bytes: `fetch` is still to come over the network, `disk` stays.

    `room` is the most that what was fetched and what was converted take together at any time; `had` is what an earlier
    run brought and kept of the files that come over the network.
    """

    fetch: int
    disk: int
    room: int
    had: int = 0


def room_needed(plan: Plan, fetched: Sequence[int]) -> int:
    """The most bytes that the output so far and the source files in use take at any time.

    `fetched` are the bytes that each source file takes of the disk, 0 for one that lies there anyway. A file comes
    before the first item that reads it and goes after the last, as `engine.files.conversion.stream.stream` has it.
    """
    left = Counter(number for item in plan.items for number in item.reads)
    written = most = len(plan.dense_header)
    here: set[int] = set()
    for item in plan.items:
        here.update(item.reads)
        written += item.size
        most = max(most, written + sum(fetched[number] for number in here))
        left.subtract(item.reads)
        here = {number for number in here if left[number]}
    return most
