"""Steps on a device: of up to 32 tokens as graphs that are captured once a size, longer ones as the same launches."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise

import numpy as np

from engine.device.driver import Driver, Graph, Stream
from engine.program.device.buffers import DeviceBuffers
from engine.program.device.experts import DeviceExperts
from engine.program.device.mixers import DeviceMixers
from engine.program.device.operations import DeviceProgram
from engine.program.device.routing import DeviceRouting
from engine.program.device.step_data import StepData, StepLayout, StepMode
from engine.program.executor import Batch, Floats
from engine.program.ir import Program

BUCKETS = (1, 2, 4, 8, 16, 32)
"""Tokens that graphs are captured for; a step takes the smallest that holds it."""
CHUNK_ROWS = BUCKETS[-1]
"""Wanted rows that the head of a model treats at a time: so many logits have room."""


def most_tokens(max_tokens: int) -> int:
    """Tokens that an executor has room for when it is asked for `max_tokens`: the largest graph at least."""
    return max(max_tokens, BUCKETS[-1])


class StepRunner:
    """Runs checked batches of at least one token. Owns graphs and the host's room for logits, nothing else."""

    def __init__(
        self,
        driver: Driver,
        stream: Stream,
        program: Program,
        device: DeviceProgram,
        *,
        buffers: DeviceBuffers,
        data: StepData,
        mixers: DeviceMixers,
        experts: DeviceExperts,
        routing: DeviceRouting,
    ) -> None:
        self._driver = driver
        self._stream = stream
        self._device = device
        self._buffers = buffers
        self._data = data
        self._mixers = mixers
        self._experts = experts
        self._routing = routing
        self._layer_ends = program.layer_ends
        self._residual = program.residual
        self._output = buffers[program.output]
        self._logits = driver.host(4 * CHUNK_ROWS * self._output.width)
        self._graphs: dict[tuple[int, StepMode, tuple[bool, ...]], Graph] = {}

    def run(self, batch: Batch, logits: Floats) -> None:
        """A step whose `logits` [R, vocab] are filled in. FreetokenError where the CPU's share failed or hangs."""
        count = len(batch.tokens)
        bucket = next((size for size in BUCKETS if size >= count), 0)
        with self._under_way(batch, bucket or count) as (layout, mode):
            if bucket:
                self._graph(layout, mode).launch(self._stream)
                self._read_logits(logits)
            else:
                self._data.issue(self._stream, layout, mode)
                self._issue_range(layout, mode, 0, self._device.head)
                for chunk in range(-(-len(logits) // CHUNK_ROWS)):
                    rows = logits[chunk * CHUNK_ROWS : (chunk + 1) * CHUNK_ROWS]
                    self._issue_head(layout, mode, len(rows), chunk)
                    self._read_logits(rows)
                self._driver.synchronise(self._stream)
        self._routing.done(count)

    def trace(self, batch: Batch) -> list[Floats]:
        """The residual stream [T, hidden_size] after each layer."""
        states: list[Floats] = []
        with self._under_way(batch, len(batch.tokens)) as (layout, mode):
            self._data.issue(self._stream, layout, mode)
            for first, last in pairwise((0, *self._layer_ends)):
                self._issue_range(layout, mode, first, last)
                self._driver.synchronise(self._stream)
                states.append(self._buffers.read(self._residual, len(batch.tokens)))
        self._routing.done(len(batch.tokens))
        return states

    def free(self) -> None:
        """Give graphs and memory back."""
        self._graphs.clear()
        self._logits.free()

    @contextmanager
    def _under_way(self, batch: Batch, size: int) -> Iterator[tuple[StepLayout, StepMode]]:
        """A step whose data is ready to be copied."""
        mode = self._routing.mode
        layout = self._data.layout(size)
        self._experts.begin_step()
        try:
            try:
                self._experts.plan_step(_long(len(batch.tokens)), _long(batch.more))
                self._mixers.begin(batch, layout.tokens, self._data.write(layout, batch, self._routing.forced))
                yield layout, mode
            finally:
                self._experts.end_step()
            self._experts.step_done()
        except BaseException:
            self._experts.forget()
            raise

    def _graph(self, layout: StepLayout, mode: StepMode) -> Graph:
        key = (layout.tokens, mode, self._experts.shape)
        if key not in self._graphs:
            with self._driver.capture(self._stream) as graph:
                self._data.issue(self._stream, layout, mode)
                self._issue_range(layout, mode, 0, self._device.head)
                self._issue_head(layout, mode, layout.tokens, 0)
            self._graphs[key] = graph
        return self._graphs[key]

    def _issue_range(self, layout: StepLayout, mode: StepMode, first: int, last: int) -> None:
        self._device.issue(self._data.extent(layout, mode), first, last)

    def _issue_head(self, layout: StepLayout, mode: StepMode, rows: int, chunk: int) -> None:
        self._device.issue(self._data.extent(layout, mode, rows, chunk), self._device.head, len(self._device.issues))

    def _read_logits(self, logits: Floats) -> None:
        """Wait for a chunk of logits, and fill it in."""
        if len(logits):
            self._driver.copy(self._stream, self._logits.address, self._output.address, logits.nbytes)
        self._driver.synchronise(self._stream)
        logits[:] = self._logits.array[: logits.nbytes].view(np.float32).reshape(logits.shape)


def _long(tokens: int) -> int:
    """Tokens of a step that no graph is captured for; 0: it is captured."""
    return tokens if tokens > BUCKETS[-1] else 0
