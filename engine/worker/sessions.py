"""Contexts saved to files and restored from them, a little between any two steps, so that no stream waits long."""

from __future__ import annotations

import traceback
from collections import deque
from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from engine.base.errors import FreetokenError, NotFoundError
from engine.memory.blocks import BlockKind
from engine.memory.context import ContextMemory
from engine.memory.pages import PAGE_TOKENS
from engine.memory.saved import HeldPrefix, RestoredPrefix
from engine.program.executor import Executor
from engine.worker.context_file import ContextHeader, ContextIdentity, ContextReader, ContextWriter
from engine.worker.protocol import ContextLoaded, ContextSaved, Failed, LoadContext, Message, SaveContext

SLICE_SECONDS = 0.05  # of work between two steps

Slices = Generator[Message | None, None, None]
"""A job in parts: None after each, the answer after the last."""


@dataclass
class _Chore:
    """A job and the ticket under which it is answered."""

    ticket: int
    slices: Slices


class Sessions:
    """Saves and restores that are under way, one after the other."""

    def __init__(
        self,
        executor: Executor,
        memory: ContextMemory,
        identity: ContextIdentity,
        clock: Callable[[], float],
    ) -> None:
        self._executor = executor
        self._memory = memory
        self._identity = identity
        self._clock = clock
        self._chores: deque[_Chore] = deque()

    @property
    def busy(self) -> bool:
        """Whether there is anything to do."""
        return bool(self._chores)

    def begin(self, message: SaveContext | LoadContext) -> None:
        """Take on a job; `advance` carries it out."""
        slices = self._save(message) if isinstance(message, SaveContext) else self._load(message)
        self._chores.append(_Chore(message.ticket, slices))

    def advance(self) -> list[Message]:
        """Work for about `SLICE_SECONDS`; the answers that are ready."""
        if not self._chores:
            return []
        chore = self._chores[0]
        try:
            answer = next(chore.slices)
        except FreetokenError as error:
            answer = Failed.of(error, ticket=chore.ticket)
        except Exception as error:
            traceback.print_exception(error)
            failure = FreetokenError(f"The context cannot be saved or restored: {error!r}.", "Try again.")
            answer = Failed.of(failure, ticket=chore.ticket)
        if answer is None:
            return []
        self._chores.popleft()
        return [answer]

    def cancel(self, ticket: int) -> None:
        """Give up a job: nothing of its file, or of what it restored, stays. An unknown or finished one is fine."""
        for chore in [chore for chore in self._chores if chore.ticket == ticket]:
            chore.slices.close()
            self._chores.remove(chore)

    def close(self) -> None:
        """Give up what is under way and remove half-written files."""
        for chore in self._chores:
            chore.slices.close()
        self._chores.clear()

    def _save(self, message: SaveContext) -> Slices:
        held = HeldPrefix(self._memory, message.tokens)
        try:
            if not held.tokens:
                if len(message.tokens) < PAGE_TOKENS:
                    raise NotFoundError(
                        f"This conversation is shorter than the {PAGE_TOKENS} tokens that are kept.", "Save it later."
                    )
                raise NotFoundError(
                    "Nothing of this conversation is in context memory.", "Save it right after an answer."
                )
            header = ContextHeader(self._identity, held.tokens, held.pages, dict(self._executor.block_bytes))
            writer = ContextWriter(Path(message.path), header)
            try:
                until = self._clock() + SLICE_SECONDS
                for page, kind in header.blocks:
                    writer.add(self._executor.read_block(kind, held.block(page, kind)))
                    if self._clock() >= until:
                        yield None
                        until = self._clock() + SLICE_SECONDS
                writer.finish()
            except BaseException:
                writer.abandon()
                raise
        finally:
            held.release()
        yield ContextSaved(message.ticket, len(header.tokens), writer.size)

    def _load(self, message: LoadContext) -> Slices:
        reader = ContextReader(Path(message.path), self._identity, self._executor.block_bytes)
        header = reader.header
        restored = RestoredPrefix(self._memory, header.tokens, header.pages)
        try:
            until = self._clock() + SLICE_SECONDS
            for page in range(len(header.pages)):
                blocks = {kind: reader.next(kind) for kind in header.kinds(page)}

                def write(kind: BlockKind, block: int, blocks: dict[BlockKind, bytes] = blocks) -> None:
                    if kind in blocks:
                        self._executor.write_block(kind, block, np.frombuffer(blocks[kind], np.uint8))

                if not restored.add(write):
                    break
                if self._clock() >= until:
                    yield None
                    until = self._clock() + SLICE_SECONDS
            count = restored.restored
        except BaseException:
            restored.discard()
            raise
        finally:
            restored.release()
            reader.close()
        yield ContextLoaded(message.ticket, count, len(header.tokens))
