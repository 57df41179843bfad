"""Whole layers of experts on their way through a ring of borrowed slots, ahead of the products that read them.

    main   ...  place  hits  (filled 1)  fills of part 1  |read 1|  ...  (filled 2)  fills of part 2  |read 2| ...
    link   fill 1   fill 2            (read 1)  fill 3                         (read 2)  fill 4

The host decides all of it at the safe point before a prompt's first step and writes it down in one block, which goes to
the device in one copy. The slots stay lent, and the block in force, as long as the steps of a prompt follow each other;
so the first parts of the next step are under way while the host prepares it. Slots that hold nothing are filled in the
first step, for good; the steps after it find residents in them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from engine.device.driver import Driver, Event, Stream
from engine.experts.bank_on_device import BankOnDevice
from engine.experts.cache_tables import COUNT_WORDS
from engine.experts.prefill import PrefillPolicy, StreamedLayer, adopt, stream_bank
from engine.experts.slot_products import PairRows

FILLS_WORD = 3  # kCountFills of native/cuda/cache_state.h
PLACE_THREADS = 256


@dataclass(frozen=True)
class PartLaunch:
    """One part of a layer on the device: addresses of its list, and of the counts that say how long that is."""

    bank: int
    buffer: int
    slots: NDArray[np.int32]
    records: NDArray[np.int32]
    fills: int
    counts: int


@dataclass(frozen=True)
class LayerLaunch:
    """A layer on the device: the address of its table, its experts, and its parts as numbers in the turn."""

    places: int
    experts: int
    has_residents: bool
    first: int
    parts: int


@dataclass(frozen=True)
class Turn:
    """All layers once, in their order, beginning with one buffer or the other of each bank's ring."""

    parts: tuple[PartLaunch, ...]
    layers: dict[int, LayerLaunch]


@dataclass
class _Buffer:
    """Of a ring: who reads it last, and whether what lies in it is still to be read."""

    read: Event | None = None
    is_taken: bool = False


class _Block:
    """Words that go to the device in one copy."""

    def __init__(self, address: int) -> None:
        self._address = address
        self._parts: list[NDArray[np.int32]] = []
        self._words = 0

    def place(self, values: NDArray[np.int32]) -> int:
        """The address that the values will have."""
        address = self._address + 4 * self._words
        self._parts.append(values.reshape(-1))
        self._words += values.size
        return address

    @property
    def words(self) -> NDArray[np.int32]:
        return np.concatenate(self._parts)


class PrefillStream:
    """Streams the layers of the banks that can be streamed; those of others are none of its business."""

    def __init__(
        self,
        driver: Driver,
        banks: Sequence[BankOnDevice],
        *,
        main: Stream,
        link: Stream,
        top_k: int,
        policy: PrefillPolicy,
    ) -> None:
        """Raises NoRoomError."""
        self._driver = driver
        self._banks = tuple(banks)
        self._main, self._link = main, link
        self._top_k = top_k
        self._policy = policy
        self._place = driver.kernel("place_pairs")
        words = sum(_most_words(bank, policy.buffers) for bank in banks)
        self._memory = driver.allocate(4 * words) if words else None
        self._plans: dict[int, list[list[StreamedLayer]]] = {}  # of each bank that is lent from, a list a turn
        self.turns: tuple[Turn, ...] = ()
        self._buffers: dict[tuple[int, int], _Buffer] = {}
        self._held: dict[int, dict[int, int]] = {}  # bank: slot: record
        self._coming: deque[tuple[int, int]] = deque()  # step since the slots were lent, and part: to be filled
        self._filled: dict[tuple[int, int], Event] = {}
        self._step = 0
        self._ahead = False
        self.streamed_records = self.streamed_bytes = 0

    @property
    def size(self) -> int:
        """Bytes of the device."""
        return self._memory.size if self._memory is not None else 0

    @property
    def is_open(self) -> bool:
        """Whether slots are lent."""
        return bool(self.turns)

    # --- around steps

    def begin_step(self, tokens: int, more: int) -> bool:
        """Before a step of `tokens` tokens, which one of `more` may follow. Whether it streams."""
        if not any(self._is_worth(bank, tokens) for bank in self._banks):
            self.settle()
            return False
        if self.is_open:
            self._step += 1
        elif not self._lend(tokens):
            return False
        self._ahead = any(self._is_worth(bank, more) for bank in self._banks)
        if self._ahead:
            self._expect(self._step + 1)
        self._fill_ahead()
        return True

    def end_step(self) -> None:
        """When the main stream is done with a step that streamed."""
        for number, turns in self._plans.items():
            layers = turns[self._turn_number(self._step)]
            self._banks[number].cache.count(
                np.array([layer.residents for layer in layers], np.int32),
                np.array([sum(len(part.experts) for part in layer.parts) for layer in layers], np.int32),
            )
        if not self._ahead:
            self.settle()

    def settle(self) -> None:
        """Give the ring back with what it holds, once nothing is on its way into it any more."""
        if not self.is_open:
            return
        self._driver.synchronise(self._link)
        for number, held in self._held.items():
            slot_of = {record: slot for slot, record in held.items()}  # a record may lie there twice
            slots, records = (np.fromiter(values, np.int32) for values in (slot_of.values(), slot_of))
            self._banks[number].cache.take_back(slots, records)
        self._close()

    def forget(self) -> None:
        """After a step that failed: nobody knows what the ring holds, and its cache is cleared."""
        self._close()
        self._driver.synchronise(self._link)

    def free(self) -> None:
        """Give the memory back."""
        if self._memory is not None:
            self._memory.free()

    # --- layers

    def layer(self, layer: int) -> LayerLaunch | None:
        """How to launch a layer of the step under way; None where it is not streamed."""
        return self._turn.layers.get(layer) if self.is_open else None

    def place(self, layer: LayerLaunch, part: int, pairs: PairRows) -> None:
        """Write the targets of the pairs whose expert is in a part, and of no others."""
        grid = (-(-pairs.count // PLACE_THREADS), 1, 1)
        args = (layer.places, layer.experts, part, pairs.ids, pairs.rows, pairs.bucket, self._top_k, pairs.target)
        self._driver.launch(self._main, self._place, grid, PLACE_THREADS, args)

    def wait(self, layer: LayerLaunch, part: int) -> None:
        """What comes next on the main stream reads a part."""
        self._driver.wait_event(self._main, self._filled.pop((self._step, layer.first + part)))

    def read(self, layer: LayerLaunch, part: int) -> None:
        """What was issued to the main stream is all that reads a part; what comes next may be filled over it."""
        launch = self._turn.parts[layer.first + part]
        buffer = self._buffers[launch.bank, launch.buffer]
        buffer.read, buffer.is_taken = self._driver.record(self._main), False
        self._fill_ahead()

    def _turn_number(self, step: int) -> int:
        """The first step's, which fills empty slots too, and then the others in turn."""
        return 0 if step == 0 else 1 + (step - 1) % self._policy.buffers

    @property
    def _turn(self) -> Turn:
        return self.turns[self._turn_number(self._step)]

    def _expect(self, step: int) -> None:
        """The parts of a step are going to be wanted."""
        self._coming.extend((step, part) for part in range(len(self.turns[self._turn_number(step)].parts)))

    def _fill_ahead(self) -> None:
        """Issue fills in the order in which they are needed, up to one whose buffer is still to be read."""
        while self._coming:
            step, number = self._coming[0]
            part = self.turns[self._turn_number(step)].parts[number]
            buffer = self._buffers[part.bank, part.buffer]
            if buffer.is_taken:
                return
            if buffer.read is not None:
                self._driver.wait_event(self._link, buffer.read)
            bank = self._banks[part.bank]
            bank.cache.launch_fill_list(self._link, bank.shards, bank.records_per_shard, part.fills, part.counts)
            self._filled[self._coming.popleft()] = self._driver.record(self._link)
            buffer.is_taken = True
            self._held[part.bank].update(zip(part.slots.tolist(), part.records.tolist(), strict=True))
            self.streamed_records += len(part.records)
            self.streamed_bytes += len(part.records) * bank.bank.record_bytes

    # --- plans

    def _is_worth(self, bank: BankOnDevice, tokens: int) -> bool:
        cache = bank.cache
        return cache.slots > 0 and self._policy.streams(tokens, cache.experts, self._top_k, cache.split.fraction)

    def _lend(self, tokens: int) -> bool:
        """Plan a prompt. False, and nothing is lent, where there are too few slots or nothing to stream."""
        plans = {}
        for number, bank in enumerate(self._banks):
            turns = self._plan(bank) if self._is_worth(bank, tokens) else []
            if turns:
                plans[number] = turns
        if not plans:
            return False
        self._plans = plans
        assert self._memory is not None, "banks that can be lent from have room for their lists"
        block = _Block(self._memory.address)
        self.turns = tuple(self._write(block, turn) for turn in range(1 + self._policy.buffers))
        self._driver.upload(self._memory.address, block.words)
        self._buffers = {(bank, buffer): _Buffer() for bank in plans for buffer in range(self._policy.buffers)}
        self._held = {bank: {} for bank in plans}
        self._step = 0
        self._expect(0)
        return True

    def _plan(self, bank: BankOnDevice) -> list[list[StreamedLayer]]:
        """A bank's layers by turn; none where it has too few slots, lies partly out of reach or is there already."""
        cache, buffers = bank.cache, self._policy.buffers
        if cache.slots == 0 or cache.fillable < cache.records:
            return []
        snapshot = cache.snapshot()
        held = int(np.count_nonzero(snapshot.owner != -1))
        empty = cache.slots - held
        count = self._policy.ring_slots(cache.slots, empty, cache.experts)
        if count == 0 or held == cache.records:
            return []
        lent = cache.lend(max(count, empty))
        ring, free = lent[:count], lent[count:]
        found = cache.tables.read("slot_of").reshape(cache.layers, cache.experts)
        slot_of = adopt(found, free)
        first = stream_bank(slot_of, ring, buffers, 0, found)
        done, every = _parts(first), _parts(stream_bank(slot_of, ring, buffers, 0))
        return [first, *(stream_bank(slot_of, ring, buffers, done + turn * every) for turn in range(buffers))]

    def _write(self, block: _Block, turn: int) -> Turn:
        parts: list[PartLaunch] = []
        layers: dict[int, LayerLaunch] = {}
        planned = [
            (layer, number, place, self._plans[number][turn][place])
            for number in self._plans
            for place, layer in enumerate(self._banks[number].bank.layers)
        ]
        for layer, number, place, plan in sorted(planned, key=lambda entry: entry[0]):
            experts = self._banks[number].cache.experts
            launch = LayerLaunch(block.place(plan.places), experts, plan.residents > 0, len(parts), len(plan.parts))
            layers[layer] = launch
            for part in plan.parts:
                records = place * experts + part.experts
                counts = np.zeros(COUNT_WORDS, np.int32)
                counts[FILLS_WORD] = len(records)
                lists = block.place(np.stack([records, part.slots], axis=1)), block.place(counts)
                parts.append(PartLaunch(number, part.buffer, part.slots, records, *lists))
        return Turn(tuple(parts), layers)

    def _close(self) -> None:
        self._plans, self.turns, self._held = {}, (), {}
        self._buffers.clear()
        self._coming.clear()
        self._filled.clear()


def _parts(layers: Sequence[StreamedLayer]) -> int:
    return sum(len(layer.parts) for layer in layers)


def _most_words(bank: BankOnDevice, buffers: int) -> int:
    """A table, lists of all experts, and a part for each of them, of every layer and turn."""
    return (1 + buffers) * bank.cache.records * (2 + 2 + COUNT_WORDS)
