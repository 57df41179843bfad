"""Parts of prompts that were encoded before: a conversation grows at its end, and only the new end is encoded."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from threading import Lock

from engine.memory.retention import Anchor
from engine.text.anchors import among_tokens

Ids = Sequence[int]
Spans = Sequence[tuple[int, int]]

MOST_CHARACTERS = 4 * 2**20  # of all parts that are kept for a model
_KEEPING = 256  # characters that it costs to keep a part, whatever its length


@dataclass(frozen=True)
class EncodedParts:
    """A text in parts that do not touch each other's tokens, and the ids of each."""

    parts: Sequence[str]
    ids_of: Sequence[array[int]]
    spans_of: Callable[[str], Spans]
    """Of a part: of each token the first character and the one past its last. Slow."""

    @property
    def ids(self) -> list[int]:
        """The ids of the whole text."""
        whole: list[int] = []
        for ids in self.ids_of:
            whole.extend(ids)
        return whole

    def edges(self, places: Sequence[Anchor]) -> list[Anchor]:
        """Edges at characters of the text as edges between its tokens, see `among_tokens`."""
        characters = [0, *accumulate(map(len, self.parts))]
        tokens = [0, *accumulate(map(len, self.ids_of))]
        within: dict[int, list[Anchor]] = {}
        for place, opens in places:
            index = min(bisect_right(characters, place), len(self.parts)) - 1
            within.setdefault(index, []).append((place - characters[index], opens))
        found = []
        for index, relative in within.items():
            spans = self.spans_of(self.parts[index])
            found += [(tokens[index] + edge, opens) for edge, opens in among_tokens(relative, spans)]
        return found


class PartCache:
    """The ids of parts, the most recently used ones. Thread-safe."""

    def __init__(self, encode: Callable[[Sequence[str]], Sequence[Ids]], most: int = MOST_CHARACTERS) -> None:
        """`encode` gives the ids of several parts; so many parts are kept that they cost `most`."""
        self._encode = encode
        self._most = most
        self._kept: OrderedDict[str, array[int]] = OrderedDict()
        self._characters = 0
        self._lock = Lock()

    def ids_of(self, parts: Sequence[str]) -> list[array[int]]:
        """The ids of each part."""
        known: dict[str, array[int]] = {}
        with self._lock:
            for part in parts:
                if part in self._kept:
                    self._kept.move_to_end(part)
                    known[part] = self._kept[part]
        new = [part for part in dict.fromkeys(parts) if part not in known]
        if new:
            known |= {part: array("I", ids) for part, ids in zip(new, self._encode(new), strict=True)}
            self._keep({part: known[part] for part in new})
        return [known[part] for part in parts]

    def _keep(self, new: dict[str, array[int]]) -> None:
        with self._lock:
            for part, ids in new.items():
                if part not in self._kept:  # somebody else may have been as quick
                    self._kept[part] = ids
                    self._characters += _KEEPING + len(part)
            while self._characters > self._most:
                gone, _ = self._kept.popitem(last=False)
                self._characters -= _KEEPING + len(gone)
