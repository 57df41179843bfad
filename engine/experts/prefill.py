"""Whole layers of experts through borrowed slots, for prompts: whether it pays, and what goes where. Pure decisions.

docs/experts.md, "Prefill", says why. The ring is divided into buffers, two unless an ablation asks for one: while the
records of one are read by products, the other is filled with what comes next. A layer whose records do not fit into a
buffer comes in parts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int32]

HERE = 0  # the part in which residents are used: a layer's first
ABSENT = -1  # in a table of slots

TOKENS_A_READING = 2.0
"""So many tokens of one expert the CPU multiplies in the time in which it reads its record; a split between link and
CPU that was balanced for decoding holds up to there."""
WORTH = 0.95  # streamed bytes are hidden behind products and those on demand are not: streaming may move a little more


class PrefillPolicy:
    """When whole layers are streamed, and through how many slots."""

    buffers = 2

    def streams(self, tokens: int, experts: int, top_k: int, fraction: float) -> bool:
        """Whether a step of `tokens` tokens should stream whole layers of `experts`.

        `fraction` of the misses is filled otherwise, and the CPU computes the others in the same time as long as an
        expert has few tokens. In units of the bytes that a layer would stream, the misses on demand are expected to
        cost `share` of the layer times that fraction, times how much longer the CPU's part takes by then.
        """
        if tokens < 1 or top_k < 1:
            return False
        share = expected_share(tokens, experts, top_k)
        tokens_an_expert = tokens * top_k / (experts * share)
        slower = max(1.0, tokens_an_expert / TOKENS_A_READING) if fraction < 1 else 1.0
        return share * fraction * slower >= WORTH

    def most_slots(self, experts: int) -> int:
        """Of the ring: a layer a buffer."""
        return self.buffers * experts

    def ring_slots(self, slots: int, empty: int, experts: int) -> int:
        """Slots of a cache of `slots`, `empty` of which hold nothing, that are lent; 0: too few.

        Half of a small cache stays, so that a prompt never drives all of a conversation's experts out.
        """
        count = min(self.most_slots(experts), slots, max(slots // 2, empty, self.buffers))
        return count - count % self.buffers


def expected_share(tokens: int, experts: int, top_k: int) -> float:
    """Of a layer's experts, how many tokens that choose independently and evenly are expected to choose."""
    return float(1.0 - (1.0 - top_k / experts) ** tokens)


@dataclass(frozen=True)
class Part:
    """Records of one layer that come at once: `experts[i]` into `slots[i]`, of one buffer of the ring or to stay."""

    buffer: int
    experts: Ints
    slots: Ints


@dataclass(frozen=True)
class StreamedLayer:
    """How a layer is computed: its parts in turn, the residents with the first.

    `places` is i32 [experts][2], as `place_pairs` reads it: the part of each expert, and its target then.
    """

    parts: tuple[Part, ...]
    residents: int
    places: Ints


def adopt(slot_of: Ints, free: Ints) -> Ints:
    """A place in the `free` slots for as many absent records as there is room for, the same share of each layer's.

    `slot_of` is [layers, experts], and so is what it becomes.
    """
    adopted = slot_of.copy()
    absent = [np.flatnonzero(slots == ABSENT) for slots in slot_of]
    upto = np.cumsum([0, *map(len, absent)])
    ends = min(len(free), int(upto[-1])) * upto // max(1, upto[-1])
    for slots, experts, begin, end in zip(adopted, absent, ends, ends[1:], strict=False):
        slots[experts[: end - begin]] = free[begin:end]
    return adopted


def stream_bank(slot_of: Ints, ring: Ints, buffers: int, turn: int, found: Ints | None = None) -> list[StreamedLayer]:
    """The layers of one bank, in the order in which they are run.

    `slot_of` [layers, experts] are the slots of what stays, ABSENT for what goes through the slots `ring`. Not all of
    it need be there yet: `found` are the slots of what is; what is not comes with the parts. `turn`: how many parts
    came before.
    """
    room = len(ring) // buffers
    layers = []
    for slots, here in zip(slot_of, slot_of if found is None else found, strict=True):
        passing, staying = (np.flatnonzero(s == ABSENT) for s in (slots, np.where(slots == ABSENT, 0, here)))
        assert room > 0 or not len(passing), f"a ring of {len(ring)} slots for {buffers} buffers"
        count = -(-len(passing) // room) if len(passing) else min(1, len(staying))
        parts = []
        for through, to_stay in zip(_split(passing, count), _split(staying, count), strict=True):
            buffer = turn % buffers
            borrowed = ring[buffer * room :][: len(through)]
            parts.append(Part(buffer, np.concatenate([through, to_stay]), np.concatenate([borrowed, slots[to_stay]])))
            turn += 1
        residents = len(slots) - len(passing) - len(staying)
        layers.append(StreamedLayer(tuple(parts), residents, _places(slots, parts)))
    return layers


def _split(experts: NDArray[np.intp], parts: int) -> list[Ints]:
    return np.array_split(experts.astype(np.int32), parts) if parts else []


def _places(slots: Ints, parts: Sequence[Part]) -> Ints:
    """A target is 2 slot for what was there, 2 slot + 1 for what is filled: native/cuda/cache_state.h."""
    places = np.empty((len(slots), 2), np.int32)
    places[:, 0], places[:, 1] = HERE, 2 * slots
    for number, part in enumerate(parts):
        places[part.experts, 0] = number
        places[part.experts, 1] = 2 * part.slots + 1
    return places
