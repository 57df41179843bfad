"""The device executor: a program, its weights and its experts on a device."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack

import numpy as np

from engine.device.driver import Driver
from engine.experts.bank import HostBank
from engine.experts.cache import ExpertCache
from engine.experts.hybrid import PREFILL, BranchSeconds, Signals
from engine.experts.prefill import PrefillPolicy
from engine.experts.split import Split
from engine.files.ftw.opening import Ftw
from engine.memory.blocks import NO_BLOCKS, BlockKind, ContextRoom
from engine.program.device.activations import Activations
from engine.program.device.batch_check import BatchLimits, BatchNeeds, check_batch
from engine.program.device.buffers import DeviceBuffers
from engine.program.device.experts import DeviceExperts, ExpertRoom
from engine.program.device.launching import Context
from engine.program.device.mixers import MakeMixers
from engine.program.device.native_mixers import NativeMixers
from engine.program.device.operations import prepare
from engine.program.device.routing import DeviceRouting
from engine.program.device.runner import CHUNK_ROWS, StepRunner, most_tokens
from engine.program.device.step_data import StepData
from engine.program.device.weights import DeviceWeights
from engine.program.executor import Batch, Bytes, Floats, Ints
from engine.program.ir import Program, routes_experts

TENDED_STEPS = 1 << 16


class DeviceExecutor:
    """Fulfils `engine.program.executor.RoutedExecutor` on a device.

    `slots` are those of each bank of `host`, which stays its owner's, as the driver does; `split` divides misses,
    `threads` of the instruction set `isa` run the CPU's share, `patience` seconds are what it may take for a layer, and
    `signals` says how the device calls it ("memory": stream memory operations, "host": functions of the host).
    `prefill` decides when the experts of a long step come by whole layers.
    Raises UnsupportedError for a model that the device cannot run and NoRoomError; neither leaves anything behind.
    """

    def __init__(
        self,
        program: Program,
        ftw: Ftw,
        driver: Driver,
        host: HostBank,
        *,
        slots: Sequence[int],
        split: Split,
        threads: int | None = None,
        isa: str = "",
        kv_dtype: str = "f16",
        page_tokens: int = 16,
        room: ContextRoom = NO_BLOCKS,
        max_tokens: int = 512,
        patience: float = 30.0,
        signals: Signals = "memory",
        make_mixers: MakeMixers = NativeMixers,
        prefill: PrefillPolicy = PREFILL,
    ) -> None:
        self._program = program
        self._max_tokens = most = most_tokens(max_tokens)
        self._needs = BatchNeeds.of(program)
        self._steps = 0
        self._seconds = 0.0
        stream = driver.stream("main")
        with ExitStack() as made:
            weights = DeviceWeights(driver, program, ftw.dense)
            made.callback(weights.free)
            self._vocabulary = _token_rows(program, weights)
            buffers = DeviceBuffers(driver, program, most, CHUNK_ROWS)
            made.callback(buffers.free)
            self._mixers = make_mixers(
                driver,
                program,
                ftw.dense,
                buffers,
                kv_dtype=kv_dtype,
                page_tokens=page_tokens,
                room=room,
                max_tokens=most,
                threads=threads,
                isa=isa,
            )
            made.callback(self._mixers.free)
            self._routing = DeviceRouting(driver, program, most)
            made.callback(self._routing.free)
            data = StepData(
                driver,
                program.ropes,
                max_tokens=most,
                chunk_rows=CHUNK_ROWS,
                routed=self._routing.shape,
                mixer_bytes=self._mixers.step_bytes,
            )
            made.callback(data.free)
            activations = Activations(driver, most, CHUNK_ROWS)
            made.callback(activations.free)
            self._experts = DeviceExperts(
                driver,
                program,
                host,
                stream,
                slots=slots,
                split=split,
                max_tokens=most,
                threads=threads,
                isa=isa,
                patience=patience,
                signals=signals,
                prefill=prefill,
            )
            made.callback(self._experts.free)
            routers = [index for index, op in enumerate(program.ops) if routes_experts(op)]
            context = Context(driver, stream, buffers, weights, activations, self._mixers, routers)
            self._runner = StepRunner(
                driver,
                stream,
                program,
                prepare(program, context, self._experts.hybrid),
                buffers=buffers,
                data=data,
                mixers=self._mixers,
                experts=self._experts,
                routing=self._routing,
            )
            made.callback(self._runner.free)
            self._made = made.pop_all()

    # --- steps

    def step(self, batch: Batch) -> Floats:
        """Raises ValueError for a batch that does not fit, FreetokenError where the CPU's share failed or hangs."""
        self._check(batch)
        logits = np.zeros((len(batch.rows), self._program.vocab_size), np.float32)
        if len(batch.tokens):
            began = time.monotonic()
            self._runner.run(batch, logits)
            self._seconds += time.monotonic() - began
            self._steps += 1
            if self._steps % TENDED_STEPS == 0:
                self._experts.tend()
        return logits

    def trace(self, batch: Batch) -> list[Floats]:
        """Raises as `step` does."""
        self._check(batch)
        if not len(batch.tokens):
            width = self._program.buffers[self._program.residual].width
            return [np.zeros((0, width), np.float32) for _ in self._program.layer_ends]
        return self._runner.trace(batch)

    @property
    def page_tokens(self) -> int:
        return self._mixers.page_tokens

    @property
    def room(self) -> ContextRoom:
        return self._mixers.room

    @property
    def block_bytes(self) -> Mapping[BlockKind, int]:
        return self._mixers.block_bytes

    def copy_block(self, kind: BlockKind, source: int, target: int) -> None:
        self._mixers.copy_block(kind, source, target)

    def read_block(self, kind: BlockKind, block: int) -> Bytes:
        return self._mixers.read_block(kind, block)

    def write_block(self, kind: BlockKind, block: int, data: Bytes) -> None:
        self._mixers.write_block(kind, block, data)

    # --- what may change between two steps

    def resize_context(self, room: ContextRoom) -> None:
        self._mixers.resize_context(room)

    def slots(self) -> tuple[int, ...]:
        """Slots of each bank."""
        return tuple(room.slots for room in self._experts.rooms())

    def experts(self) -> tuple[ExpertRoom, ...]:
        """Each bank's room for experts on the device."""
        return self._experts.rooms()

    def resize_experts(self, slots: Sequence[int]) -> None:
        """Give each bank so many slots, keeping the hottest records. NoRoomError, and the old ones stand."""
        self._experts.resize(slots)

    def set_split(self, split: Split) -> None:
        """Divide the misses of the next steps in this way."""
        self._experts.set_split(split)

    def record_routing(self, on: bool) -> None:
        self._routing.record(on)

    def routing(self) -> Ints:
        return self._routing.recorded()

    def force_routing(self, ids: Ints | None) -> None:
        self._routing.force(ids)

    # --- what happened

    def counters(self) -> Mapping[str, float]:
        """As the protocol says, but that a device's time is not told apart: `step_seconds` are those of whole steps.

        Besides `hits`, `fills`, `cpu_experts`, `misses`, `distinct` (experts of a layer and step) and `plans` (layers).
        """
        return {"steps": self._steps, "step_seconds": self._seconds, **self._experts.counters()}

    def layer_counts(self) -> Ints:
        """int32 [MoE layers, 5] of the last step: distinct experts, hits, misses, fills, left to the CPU."""
        return self._experts.layer_counts()

    def take_seconds(self) -> BranchSeconds:
        """How long fills of each MoE layer took since the last call, and the CPU's share of experts."""
        return self._experts.take_seconds()

    @property
    def is_streaming(self) -> bool:
        """Whether the last step brought whole layers of experts instead of what it routed to."""
        return self._experts.is_streaming

    @property
    def caches(self) -> tuple[ExpertCache, ...]:
        """Of each bank, for who looks into them or damages them on purpose."""
        return self._experts.caches

    def check(self) -> None:
        """AssertionError unless every slot holds the record that the device's tables say."""
        self._experts.check()

    def close(self) -> None:
        """Give all memory back; nothing else may be called then."""
        self._made.close()

    def _check(self, batch: Batch) -> None:
        check_batch(batch, BatchLimits(self._max_tokens, self._vocabulary, self.page_tokens, self.room, self._needs))
        self._routing.begin(len(batch.tokens))


def _token_rows(program: Program, weights: DeviceWeights) -> int:
    """Token ids that the embedding, and every table of experts by tokens, has a row for."""
    rows = [weights.matrix(op.weights[0]).rows for op in program.ops if op.kind == "embed"]
    tables = [op for op in program.ops if op.kind == "route" and any(op.weights[1:2])]
    return min([*rows, *(weights.length(op.weights[1]) // int(op.attrs["top_k"]) for op in tables)])
