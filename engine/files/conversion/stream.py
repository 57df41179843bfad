"""The long part of a conversion: packed bytes into files, hashed, and noted in the journal as they reach the disk."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import xxhash

from engine.base.errors import CorruptFileError
from engine.base.progress import Progress
from engine.files.conversion.gather import Gather
from engine.files.conversion.journal import is_journal_line, journal_line
from engine.files.conversion.packing import Pack, item_bytes
from engine.files.conversion.partial import Partial
from engine.files.conversion.plan import Item, Plan
from engine.files.conversion.requantise import Requantiser
from engine.files.ftw.manifest import DENSE_NAME
from engine.files.source_file import Bytes, SourceFile


@dataclass(frozen=True)
class Pace:
    """How much work a kill may cost, and how the page cache is treated.

    The journal is brought up to date after `save_bytes` or `save_seconds`; the disk begins to write after
    `sync_bytes`. With `drop_cache` the pages that were read and written are given back each time.
    """

    save_bytes: int = 256 << 20
    save_seconds: float = 2.0
    sync_bytes: int = 32 << 20
    drop_cache: bool = False


def stream(
    plan: Plan,
    gather: Gather,
    sources: tuple[SourceFile, ...],
    partial: Partial,
    progress: Progress,
    pack: Pack,
    pace: Pace,
) -> None:
    """Writes every item that the journal of `partial` does not have yet.

    A file of `sources` is acquired before the first of them that reads it, and released after the last, when what was
    made of it is safe on disk. Those that none of them reads are released at once.

    Errors: those of acquiring, CorruptFileError for a source that cannot be read or holds impossible values, OSError
    from writing.
    """
    _check_resumed(plan, partial)
    first = len(partial.lines)
    requantiser = Requantiser()
    partial.write(DENSE_NAME, 0, np.frombuffer(plan.dense_header, np.uint8))
    done = len(plan.dense_header) + sum(item.size for item in plan.items[:first])
    progress(done, plan.total_bytes)
    with ThreadPoolExecutor(max_workers=1) as background:
        use = _Use(sources, plan.items[first:])
        saver = _Saver(partial, use, pace, background)
        for item in plan.items[first:]:
            if use.lacks(item):
                saver.save()  # what is missing may be long in coming
                use.acquire(item)
            hasher = xxhash.xxh3_128()
            written = 0
            for chunk in _read(item_bytes(item, gather, pack, requantiser), partial):
                hasher.update(chunk.data)
                partial.write(item.file, item.offset + written, chunk)
                written += len(chunk)
                saver.wrote(item.file, len(chunk))
                progress(done + written, plan.total_bytes)
            if written != item.size:
                raise AssertionError(f"{item.name} took {written} bytes instead of {item.size}")
            done += item.size
            saver.finished(journal_line(hasher.hexdigest(), requantiser.take_loss()))
            finished = use.end(item)
            if finished:
                saver.save()
            for source in finished:
                source.release()
        saver.save()


def _read(chunks: Iterator[Bytes], partial: Partial) -> Iterator[Bytes]:
    """The chunks; an error in what they are made of says what becomes of that which is done.

    The source has to be another then, and what was made of this one does not go with it.
    """
    try:
        yield from chunks
    except CorruptFileError as error:
        raise CorruptFileError(
            error.message,
            f"{error.remedy} What was made of it so far does not go with another: {partial.removal}".lstrip(),
        ) from error


class _Use:
    """The source files that are in use: from the first of `items` that reads them to the last."""

    def __init__(self, sources: tuple[SourceFile, ...], items: tuple[Item, ...]) -> None:
        self._sources = sources
        self._left = Counter(number for item in items for number in item.reads)
        self._open: set[int] = set()
        for number, source in enumerate(sources):
            if number not in self._left:
                source.release()

    def lacks(self, item: Item) -> bool:
        """Whether a file that the item reads is still to be acquired."""
        return not self._open.issuperset(item.reads)

    def acquire(self, item: Item) -> None:
        """Returns when all files are there that the item reads."""
        for number in item.reads:
            if number not in self._open:
                self._sources[number].acquire()
                self._open.add(number)

    def end(self, item: Item) -> list[SourceFile]:
        """Takes an item off; the files that no other reads."""
        self._left.subtract(item.reads)
        finished = [number for number in item.reads if not self._left[number]]
        self._open.difference_update(finished)
        return [self._sources[number] for number in finished]

    def drop_behind(self) -> None:
        for number in self._open:
            self._sources[number].drop_behind()


class _Saver:
    """Decides when the disk is to write and when the journal is brought up to date.

    The disk writes while the next bytes are packed: a sync waits in `background`, one at a time.
    """

    def __init__(self, partial: Partial, use: _Use, pace: Pace, background: ThreadPoolExecutor) -> None:
        self._partial = partial
        self._use = use
        self._pace = pace
        self._background = background
        self._syncing: Future[None] | None = None
        self._lines: list[str] = []
        self._unsaved = 0
        self._unsynced = 0
        self._saved_at = time.monotonic()

    def wrote(self, file: str, count: int) -> None:
        self._unsaved += count
        self._unsynced += count
        if self._unsynced >= self._pace.sync_bytes and (self._syncing is None or self._syncing.done()):
            self._wait()
            self._syncing = self._background.submit(self._partial.sync, file)
            self._unsynced = 0

    def finished(self, line: str) -> None:
        self._lines.append(line)
        if self._unsaved >= self._pace.save_bytes or time.monotonic() - self._saved_at >= self._pace.save_seconds:
            self.save()

    def save(self) -> None:
        self._wait()
        if not self._lines:
            return
        self._partial.record(self._lines, self._pace.drop_cache)
        if self._pace.drop_cache:
            self._use.drop_behind()
        self._lines = []
        self._unsaved = 0
        self._saved_at = time.monotonic()

    def _wait(self) -> None:
        """Waits for the sync in the background, and raises what it met."""
        if self._syncing is not None:
            self._syncing.result()
            self._syncing = None


def _check_resumed(plan: Plan, partial: Partial) -> None:
    """Looks at what an earlier run left: the last finished item of every file must have the journal's hash."""
    last: dict[str, tuple[Item, str]] = {}
    for item, digest in zip(plan.items, partial.hashes, strict=False):
        last[item.file] = (item, digest)
    whole = len(partial.lines) <= len(plan.items) and all(map(is_journal_line, partial.lines))
    for item, digest in last.values():
        hasher = xxhash.xxh3_128()
        for piece in partial.read(item.file, item.offset, item.offset + item.size):
            hasher.update(piece)
        whole = whole and hasher.hexdigest() == digest
    if not whole:
        raise CorruptFileError(
            f"The files in {partial.folder} are not what its journal says.",
            f"Remove it with: {partial.removal}, and convert again.",
        )
