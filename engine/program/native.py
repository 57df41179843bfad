"""The native executor: the whole step in one call of C++, without the interpreter lock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from engine import _native
from engine.base.errors import NoRoomError, UnsupportedError
from engine.files.ftw.opening import Bank, Tensor
from engine.program.executor import Batch, Floats, Ints
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
        kv_pages: int = 0,
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
                kv_pages=kv_pages,
                max_tokens=max_tokens,
            )
        except ValueError as error:
            raise UnsupportedError(f"The native executor cannot run this model: {error}.") from error
        except MemoryError:
            raise _no_room(kv_pages) from None

    @property
    def page_tokens(self) -> int:
        return self._native.page_tokens

    @property
    def kv_pages(self) -> int:
        return self._native.kv_pages

    @property
    def page_bytes(self) -> int:
        """Bytes of one cache page in all layers together."""
        return self._native.page_bytes

    @property
    def threads(self) -> int:
        """Threads that share a step."""
        return self._native.threads

    @property
    def isa(self) -> str:
        """The instruction set in use."""
        return self._native.isa

    def resize_kv(self, pages: int) -> None:
        try:
            self._native.resize_kv(pages)
        except MemoryError:
            raise _no_room(pages) from None

    def step(self, batch: Batch) -> Floats:
        return self._run(batch, 0, None)

    def trace(self, batch: Batch) -> list[Floats]:
        states = []
        for first, last in pairwise((0, *self._program.layer_ends)):
            self._run(batch, first, last)
            states.append(self._native.buffer(self._program.residual))
        return states

    def copy_page(self, source: int, target: int) -> None:
        self._native.copy_page(source, target)

    def counters(self) -> Mapping[str, float]:
        return self._native.counters()

    def record_routing(self, on: bool) -> None:
        self._native.record_routing(on)

    def routing(self) -> Ints:
        return self._native.routing()

    def force_routing(self, ids: Ints | None) -> None:
        self._native.force_routing(ids)

    def _run(self, batch: Batch, first: int, last: int | None) -> Floats:
        return self._native.step(
            batch.tokens, batch.positions, batch.seq_starts, batch.page_tables, batch.rows, first, last
        )


def _no_room(pages: int) -> NoRoomError:
    return NoRoomError(f"There is no memory for {pages} pages of context.", "Ask for a smaller context or budget.")
