"""Attention of a device that has no kernel for it: the native operation, on rows that are copied to it and back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from engine import _native
from engine.base.errors import NoRoomError
from engine.device.driver import Driver, Stream
from engine.files.ftw.opening import Tensor
from engine.program.device.buffers import DeviceBuffers
from engine.program.device.step_data import Extent
from engine.program.executor import Batch
from engine.program.ir import Op, Program

NO_ROWS = np.zeros(0, np.int32)


class NativeAttention:
    """Fulfils `engine.program.device.attention.DeviceAttention` on a driver that has `native`.

    Keys and values lie in the host's memory; as much of the device's is taken for them, so that a device fills up as a
    real one does.
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
        kv_pages: int,
        max_tokens: int,
        threads: int | None = None,
        isa: str = "",
    ) -> None:
        self._driver = driver
        self._buffers = buffers
        own, self._places = _attention_only(program)
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
            self.resize(kv_pages)
        except BaseException:
            self.free()
            raise

    @property
    def page_tokens(self) -> int:
        return self._native.page_tokens

    @property
    def kv_pages(self) -> int:
        return self._native.kv_pages

    @property
    def page_bytes(self) -> int:
        return self._native.page_bytes

    def resize(self, pages: int) -> None:
        before, size = self._taken.mapped, pages * self.page_bytes
        if size > self._taken.size:
            raise _no_room(pages)
        self._taken.map(size)
        try:
            self._native.resize_kv(pages)
        except MemoryError:
            self._taken.map(before)
            raise _no_room(pages) from None

    def copy_page(self, source: int, target: int) -> None:
        self._native.copy_page(source, target)

    def step_bytes(self, tokens: int) -> int:
        return 0

    def begin(self, batch: Batch, data: NDArray[np.uint8]) -> None:
        self._batch = batch

    def issue(self, stream: Stream, index: int, op: Op, extent: Extent) -> None:
        self._driver.native(stream, "attention", partial(self._attend, self._places[index], op))

    def free(self) -> None:
        self._taken.free()

    def _attend(self, place: int, op: Op) -> None:
        batch = self._batch
        assert batch is not None, "attention without a batch"
        for name in filter(None, op.reads):
            self._native.write_buffer(name, self._buffers.read(name, len(batch.tokens)))
        parts = (batch.tokens, batch.positions, batch.seq_starts, batch.page_tables, NO_ROWS)
        self._native.step(*parts, place, place + 1)
        (out,) = op.writes
        self._buffers.write(out, self._native.buffer(out))


def _attention_only(program: Program) -> tuple[Program, Mapping[int, int]]:
    """The attention operations behind what says how many token ids there are, and their new numbers by the old ones."""
    kept = [i for kind in ("embed", "attention") for i, op in enumerate(program.ops) if op.kind == kind]
    return replace(program, ops=tuple(program.ops[i] for i in kept)), {old: new for new, old in enumerate(kept)}


def _no_room(pages: int) -> NoRoomError:
    return NoRoomError(f"There is no memory for {pages} pages of context.", "Ask for a smaller context or budget.")
