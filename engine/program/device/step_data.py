"""What a step needs to know of its batch, in one block that goes to the device in one copy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from engine import _native
from engine.device.driver import Driver, Stream
from engine.files.codecs import align
from engine.program.executor import Batch, Ints
from engine.program.ir import RopeTable

ALIGNED_BYTES = 64


@dataclass(frozen=True)
class StepLayout:
    """Where everything lies in the block of a step of up to `tokens` tokens, in bytes from its beginning.

    Wanted rows come in chunks of `chunk_rows`: word 0 of `counts` is the number of live tokens, word 1 + c that of
    live rows of chunk c.
    """

    tokens: int
    chunks: int
    counts: int
    token_ids: int
    positions: int
    selected: int
    angles: tuple[tuple[int, int], ...]  # of each rope table its cosines and its sines
    forced: int  # expert ids of each MoE layer, where routing is forced
    mixers: int
    size: int


@dataclass(frozen=True)
class StepMode:
    """What besides its size decides which launches a step has.

    `record` is the address of i32 [MoE layers][layer_bytes / 4] for the experts that are chosen, 0: none.
    """

    is_forced: bool = False
    record: int = 0
    layer_bytes: int = 0


@dataclass(frozen=True)
class Extent:
    """How much the launches of an operation are issued for: the grid's rows, and where the device counts live ones."""

    layout: StepLayout
    base: int  # device address of the block
    rows: int  # at most so many wanted rows of the chunk
    chunk: int
    chunk_rows: int
    mode: StepMode

    def grid_rows(self, per_row: bool) -> int:
        """Rows of a launch over a buffer of tokens or of wanted rows."""
        return self.rows if per_row else self.layout.tokens

    def live(self, per_row: bool) -> int:
        """Address of the number of rows that are there."""
        return self.base + self.layout.counts + (4 * (1 + self.chunk) if per_row else 0)

    @property
    def token_ids(self) -> int:
        return self.base + self.layout.token_ids

    @property
    def selected(self) -> int:
        """Token indices of the chunk's rows."""
        return self.base + self.layout.selected + 4 * self.chunk * self.chunk_rows

    def angles(self, table: int) -> tuple[int, int]:
        """Addresses of a rope table's cosines and sines, [tokens][pairs]."""
        cosine, sine = self.layout.angles[table]
        return self.base + cosine, self.base + sine

    def forced_ids(self, layer: int, top_k: int) -> int:
        """Address of the expert ids that a MoE layer is to take; 0: it chooses."""
        return self.base + self.layout.forced + 4 * layer * self.layout.tokens * top_k if self.mode.is_forced else 0

    def record(self, layer: int) -> int:
        """Address for the expert ids of a MoE layer; 0: they are not kept."""
        return self.mode.record + layer * self.mode.layer_bytes if self.mode.record else 0

    @property
    def mixers(self) -> int:
        """What belongs to attention and recurrences."""
        return self.base + self.layout.mixers


def step_layout(
    tokens: int, pairs: Sequence[int], chunk_rows: int, routed: tuple[int, int], mixer_bytes: int
) -> StepLayout:
    """The layout of a block for up to `tokens` tokens; `pairs` are the frequencies of each rope table."""
    end = 0

    def place(values: int) -> int:
        nonlocal end
        begin = end
        end += align(4 * values, ALIGNED_BYTES)
        return begin

    chunks = -(-tokens // chunk_rows)
    layers, top_k = routed
    return StepLayout(
        tokens=tokens,
        chunks=chunks,
        counts=place(1 + chunks),
        token_ids=place(tokens),
        positions=place(tokens),
        selected=place(tokens),
        angles=tuple((place(tokens * count), place(tokens * count)) for count in pairs),
        mixers=place(-(-mixer_bytes // 4)),
        forced=place(layers * tokens * top_k),  # the last: what is not wanted is not copied
        size=end,
    )


class StepData:
    """The block of the step under way, here and on the device.

    `mixer_bytes(tokens)` are bytes that the mixers want in it; `routed` is (MoE layers, top_k) for forced ids.
    """

    def __init__(
        self,
        driver: Driver,
        ropes: tuple[RopeTable, ...],
        *,
        max_tokens: int,
        chunk_rows: int,
        routed: tuple[int, int],
        mixer_bytes: Callable[[int], int],
    ) -> None:
        self._driver = driver
        self._ropes = tuple(
            (
                np.asarray(table.inv_freq, np.float32),
                table.scale,
                (table.growth, table.growth_every, table.growth_ahead),
                table.every,
            )
            for table in ropes
        )
        self._pairs = [len(frequencies) for frequencies, _, _, _ in self._ropes]
        self._chunk_rows = chunk_rows
        self._routed = routed
        self._mixer_bytes = mixer_bytes
        size = self.layout(max_tokens).size
        self._host = driver.host(size)
        self._device = driver.allocate(size)

    def layout(self, tokens: int) -> StepLayout:
        """The layout of a block for up to `tokens` tokens, all of whose logits may be wanted."""
        return step_layout(tokens, self._pairs, self._chunk_rows, self._routed, self._mixer_bytes(tokens))

    def extent(self, layout: StepLayout, mode: StepMode, rows: int = 0, chunk: int = 0) -> Extent:
        """The extent of launches for `rows` rows of a chunk."""
        return Extent(layout, self._device.address, rows, chunk, self._chunk_rows, mode)

    def write(self, layout: StepLayout, batch: Batch, forced: Ints | None) -> NDArray[np.uint8]:
        """Put a batch into the block; returns the mixers' part. The device must be done with the last step."""
        count, wanted = len(batch.tokens), len(batch.rows)
        counts = self._ints(layout.counts, 1 + layout.chunks)
        counts[0] = count
        first = np.arange(layout.chunks, dtype=np.int32) * self._chunk_rows
        counts[1:] = np.clip(wanted - first, 0, self._chunk_rows)
        self._ints(layout.token_ids, count)[:] = batch.tokens
        self._ints(layout.positions, count)[:] = batch.positions
        self._ints(layout.selected, wanted)[:] = batch.rows
        for (frequencies, scale, growth, every), places in zip(self._ropes, layout.angles, strict=True):
            shape = count, len(frequencies)
            cosine, sine = (self._values(place, count * len(frequencies)).reshape(shape) for place in places)
            positions = batch.positions - batch.positions % every
            _native.rope_angles(frequencies, scale, growth, positions, cosine, sine)
        if forced is not None:
            layers, top_k = self._routed
            ids = self._ints(layout.forced, layers * layout.tokens * top_k).reshape(layers, layout.tokens, top_k)
            ids[:, :count] = forced
        return self._host.array[layout.mixers : layout.forced]

    def issue(self, stream: Stream, layout: StepLayout, mode: StepMode) -> None:
        """Copy the block to the device."""
        size = layout.size if mode.is_forced else layout.forced
        self._driver.copy(stream, self._device.address, self._host.address, size)

    def free(self) -> None:
        """Give the memory back."""
        self._device.free()
        self._host.free()

    def _ints(self, offset: int, count: int) -> Ints:
        return self._host.array[offset : offset + 4 * count].view(np.int32)

    def _values(self, offset: int, count: int) -> NDArray[np.float32]:
        return self._host.array[offset : offset + 4 * count].view(np.float32)
