"""Mixers of a device that has no kernels for them: the native operations, on rows that are copied to them and back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from engine import _native
from engine.device.driver import Driver, Stream
from engine.files.ftw.opening import Tensor
from engine.memory.blocks import BlockKind, ContextRoom
from engine.program.device.block_pools import room_bytes
from engine.program.device.buffers import DeviceBuffers
from engine.program.device.mixers import MIXERS
from engine.program.device.step_data import Extent
from engine.program.executor import Batch, Bytes
from engine.program.ir import Op, Program
from engine.program.native import block_bytes, no_room, run_native

NO_ROWS = np.zeros(0, np.int32)


class NativeMixers:
    """Fulfils `engine.program.device.mixers.DeviceMixers` on a driver that has `native`.

    Blocks lie in the host's memory; as much of the device's is taken for them, so that a device fills up as a real one
    does.
    """

    def __init__(
        self,
        driver: Driver,
        program: Program,
        dense: Mapping[str, Tensor],
        buffers: DeviceBuffers,
        *,
        kv_dtype: str,
        page_tokens: int,
        room: ContextRoom,
        max_tokens: int,
        threads: int | None = None,
        isa: str = "",
    ) -> None:
        self._driver = driver
        self._buffers = buffers
        own, self._places = _mixers_only(program)
        self._integers = {name for name, buffer in program.buffers.items() if buffer.dtype == "i32"}
        self._native = _native.Executor(
            own,
            dict(dense),
            (),
            threads=threads,
            isa=isa,
            kv_dtype=kv_dtype,
            page_tokens=page_tokens,
            max_tokens=max_tokens,
        )
        self._taken = driver.reserve(max(1, driver.memory()[0]))
        self._batch: Batch | None = None
        try:
            self.resize_context(room)
        except BaseException:
            self.free()
            raise

    @property
    def page_tokens(self) -> int:
        return self._native.page_tokens

    @property
    def room(self) -> ContextRoom:
        return ContextRoom(*self._native.room)

    @property
    def block_bytes(self) -> Mapping[BlockKind, int]:
        return block_bytes(self._native)

    def resize_context(self, room: ContextRoom) -> None:
        before, size = self._taken.mapped, room_bytes(room.with_bytes(self.block_bytes), self.block_bytes)
        if size > self._taken.size:
            raise no_room(room)
        self._taken.map(size)
        try:
            self._native.resize_context(room.pages, room.windows, room.states)
        except MemoryError:
            self._taken.map(before)
            raise no_room(room) from None

    def copy_block(self, kind: BlockKind, source: int, target: int) -> None:
        self._native.copy_block(kind, source, target)

    def read_block(self, kind: BlockKind, block: int) -> Bytes:
        return self._native.read_block(kind, block)

    def write_block(self, kind: BlockKind, block: int, data: Bytes) -> None:
        self._native.write_block(kind, block, data)

    def step_bytes(self, tokens: int) -> int:
        return 0

    def begin(self, batch: Batch, tokens: int, data: NDArray[np.uint8]) -> None:
        self._batch = batch

    def issue(self, stream: Stream, index: int, op: Op, extent: Extent) -> None:
        self._driver.native(stream, op.kind, partial(self._run, self._places[index], op))

    def free(self) -> None:
        self._taken.free()

    def _run(self, place: int, op: Op) -> None:
        batch = self._batch
        assert batch is not None, "a mixer without a batch"
        for name in filter(None, op.reads):
            rows = self._buffers.read(name, len(batch.tokens))
            self._native.write_buffer(name, rows.view(np.int32).astype(np.float32) if name in self._integers else rows)
        run_native(self._native, batch, NO_ROWS, place, place + 1)
        (out,) = op.writes
        rows = self._native.buffer(out)
        self._buffers.write(out, rows.astype(np.int32).view(np.float32) if out in self._integers else rows)


def _mixers_only(program: Program) -> tuple[Program, Mapping[int, int]]:
    """The mixers behind what says how many token ids there are, and their new numbers by the old ones."""
    embeds = [i for i, op in enumerate(program.ops) if op.kind == "embed"]
    kept = embeds + [i for i, op in enumerate(program.ops) if op.kind in MIXERS]
    return replace(program, ops=tuple(program.ops[i] for i in kept)), {old: new for new, old in enumerate(kept)}
