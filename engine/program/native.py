"""The native executor: the whole step in one call of C++, without the interpreter lock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from engine import _native
from engine.base.errors import NoRoomError, UnsupportedError
from engine.files.ftw.opening import Bank, Tensor
from engine.memory.blocks import NO_BLOCKS, BlockKind, ContextRoom
from engine.program.executor import Batch, Bytes, Floats, Ints
from engine.program.ir import Program


class NativeExecutor:
    """Fulfils `engine.program.executor.RoutedExecutor`; weights stay where they are mapped, nothing is copied.

    `threads` None takes one a physical core, within the process's affinity and quota; `isa` "" takes the fastest
    instruction set. A step has at most `max_tokens` tokens. Raises UnsupportedError for a program, a tensor or an
    instruction set that it cannot run, NoRoomError when the cache finds no memory.
    """

    def __init__(
        self,
        program: Program,
        dense: Mapping[str, Tensor],
        banks: Sequence[Bank],
        *,
        threads: int | None = None,
        isa: str = "",
        kv_dtype: str = "f16",
        page_tokens: int = 16,
        room: ContextRoom = NO_BLOCKS,
        max_tokens: int = 512,
    ) -> None:
        self._program = program
        try:
            self._native = _native.Executor(
                program,
                dict(dense),
                banks,
                threads=threads,
                isa=isa,
                kv_dtype=kv_dtype,
                page_tokens=page_tokens,
                pages=room.pages,
                windows=room.windows,
                states=room.states,
                max_tokens=max_tokens,
            )
        except ValueError as error:
            raise UnsupportedError(
                f"The native executor cannot run this model: {error}.", "freetoken doctor says what can run here."
            ) from error
        except MemoryError:
            raise no_room(room) from None

    @property
    def page_tokens(self) -> int:
        return self._native.page_tokens

    @property
    def room(self) -> ContextRoom:
        return ContextRoom(*self._native.room)

    @property
    def block_bytes(self) -> Mapping[BlockKind, int]:
        return block_bytes(self._native)

    @property
    def threads(self) -> int:
        """Threads that share a step."""
        return self._native.threads

    @property
    def isa(self) -> str:
        """The instruction set in use."""
        return self._native.isa

    def resize_context(self, room: ContextRoom) -> None:
        try:
            self._native.resize_context(room.pages, room.windows, room.states)
        except MemoryError:
            raise no_room(room) from None

    def step(self, batch: Batch) -> Floats:
        return self._run(batch, 0, None)

    def trace(self, batch: Batch) -> list[Floats]:
        states = []
        for first, last in pairwise((0, *self._program.layer_ends)):
            self._run(batch, first, last)
            states.append(self._native.buffer(self._program.residual))
        return states

    def copy_block(self, kind: BlockKind, source: int, target: int) -> None:
        self._native.copy_block(kind, source, target)

    def read_block(self, kind: BlockKind, block: int) -> Bytes:
        return self._native.read_block(kind, block)

    def write_block(self, kind: BlockKind, block: int, data: Bytes) -> None:
        self._native.write_block(kind, block, data)

    def counters(self) -> Mapping[str, float]:
        return self._native.counters()

    def record_routing(self, on: bool) -> None:
        self._native.record_routing(on)

    def routing(self) -> Ints:
        return self._native.routing()

    def force_routing(self, ids: Ints | None) -> None:
        self._native.force_routing(ids)

    def _run(self, batch: Batch, first: int, last: int | None) -> Floats:
        return run_native(self._native, batch, batch.rows, first, last)


def run_native(native: _native.Executor, batch: Batch, rows: Ints, first: int, last: int | None) -> Floats:
    """Run operations `first` to `last` (None: all) of a native executor; logits of `rows`."""
    return native.step(
        batch.tokens,
        batch.positions,
        batch.seq_starts,
        batch.page_tables,
        rows,
        first,
        last,
        window_tables=batch.window_tables,
        states=batch.states,
        saves=batch.saves,
    )


def block_bytes(native: _native.Executor) -> Mapping[BlockKind, int]:
    """Bytes of one block of each kind of a native executor's context memory."""
    found = native.block_bytes
    return {"page": found["page"], "window": found["window"], "state": found["state"]}


def no_room(room: ContextRoom) -> NoRoomError:
    """What to say where context memory finds no memory."""
    others = [f"{room.windows} window pages"] * bool(room.windows) + [f"{room.states} states"] * bool(room.states)
    what = " and ".join([f"{room.pages} pages", *others])
    return NoRoomError(f"There is no memory for {what} of context.", "Ask for a smaller context or budget.")
