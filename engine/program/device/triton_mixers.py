"""Everything of a CUDA device that keeps context memory: kernels over blocks that grow and shrink in place."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack

import numpy as np
from numpy.typing import NDArray

from engine.device.driver import Driver, Memory, Stream
from engine.files.ftw.opening import Tensor
from engine.memory.blocks import BlockKind, ContextRoom
from engine.program.device.block_pools import BlockPools
from engine.program.device.buffers import DeviceBuffers
from engine.program.device.mixer_data import MixerLayout, write_batch
from engine.program.device.mixers import MIXERS
from engine.program.device.paged_attention import ATTENTION, PagedAttention
from engine.program.device.paged_caches import VALUE_BYTES, PagedCaches, page_layers
from engine.program.device.paged_kernels import PAGE_TOKENS
from engine.program.device.selections import Choice, Selections
from engine.program.device.step_data import Extent
from engine.program.device.triton_launch import KernelLoader, TritonLauncher
from engine.program.device.triton_recurrences import RecurrentWeights, TritonRecurrences, state_offsets
from engine.program.executor import Batch, Bytes
from engine.program.ir import Op, Program


class TritonMixers:
    """Fulfils `engine.program.device.mixers.DeviceMixers` on a driver whose kernels `load` compiles."""

    def __init__(
        self,
        driver: Driver,
        program: Program,
        dense: Mapping[str, Tensor],
        buffers: DeviceBuffers,
        *,
        load: KernelLoader,
        kv_dtype: str,
        page_tokens: int,
        room: ContextRoom,
        max_tokens: int,
        threads: int | None = None,
        isa: str = "",
    ) -> None:
        assert (kv_dtype, page_tokens) == ("f16", PAGE_TOKENS), "the kernels read pages of 16 rows of binary16"
        _, page_values = page_layers(program.caches)
        _, slot_values = state_offsets(program.states)
        sizes: Mapping[BlockKind, int] = {
            **{kind: VALUE_BYTES * values for kind, values in page_values.items()},
            "state": 4 * slot_values,
        }
        names = sorted({name for op in program.ops if op.kind in MIXERS for name in op.weights if name})
        launcher = TritonLauncher(driver, load)
        with ExitStack() as made:
            self._pools = BlockPools(driver, sizes)
            made.callback(self._pools.free)
            vectors: dict[str, Memory] = {}
            for name in names:
                vectors[name] = _vector(driver, dense[name])
                made.callback(vectors[name].free)
            addresses = {name: memory.address for name, memory in vectors.items()}
            weights = RecurrentWeights(addresses, {name: dense[name].cols for name in names})
            self._caches = PagedCaches(driver, launcher, program.caches, self._pools)
            made.callback(self._caches.free)
            self._attention = PagedAttention(driver, launcher, program, self._caches, buffers, addresses, max_tokens)
            made.callback(self._attention.free)
            self._selections = Selections(driver, launcher, program, self._caches, buffers)
            made.callback(self._selections.free)
            self._recurrences = TritonRecurrences(launcher, self._pools, buffers, program.states, weights)
            self.resize_context(room)
            self._made = made.pop_all()

    @property
    def page_tokens(self) -> int:
        return PAGE_TOKENS

    @property
    def room(self) -> ContextRoom:
        return self._pools.room

    @property
    def block_bytes(self) -> Mapping[BlockKind, int]:
        return self._pools.block_bytes

    def resize_context(self, room: ContextRoom) -> None:
        # Contexts must never be longer than there is room for words of them, whichever of the two finds no memory.
        self._selections.make_room(max(room, self.room, key=lambda either: either.pages))
        try:
            self._pools.resize(room)
        finally:
            self._selections.make_room(self.room)

    def copy_block(self, kind: BlockKind, source: int, target: int) -> None:
        self._pools.copy(kind, source, target)

    def read_block(self, kind: BlockKind, block: int) -> Bytes:
        return self._pools.read(kind, block)

    def write_block(self, kind: BlockKind, block: int, data: Bytes) -> None:
        self._pools.write(kind, block, data)

    def step_bytes(self, tokens: int) -> int:
        return 4 * MixerLayout(tokens).size

    def begin(self, batch: Batch, tokens: int, data: NDArray[np.uint8]) -> None:
        write_batch(MixerLayout(tokens), batch, data)
        self._caches.begin(batch)

    def issue(self, stream: Stream, index: int, op: Op, extent: Extent) -> None:
        if op.kind in ATTENTION:
            self._attention.issue(stream, op, extent)
        elif op.kind == "choose":
            self._selections.issue(stream, op, extent)
        else:
            self._recurrences.issue(stream, op, extent)

    def free(self) -> None:
        self._made.close()


def refuse_what_has_no_kernels(program: Program) -> None:
    """Raise UnsupportedError for a program with an operation that the kernels cannot run."""
    for op in program.ops:
        if op.kind == "choose":
            Choice.of(program, op)


def _vector(driver: Driver, tensor: Tensor) -> Memory:
    """A vector of f32, copied to the device."""
    values = np.frombuffer(tensor.data, np.float32)
    memory = driver.allocate(values.nbytes)
    driver.upload(memory.address, values)
    return memory
