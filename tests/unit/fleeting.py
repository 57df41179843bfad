"""Source files that come when they are acquired and are gone once they are released."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from engine.base.errors import NetworkError
from engine.files.source_file import Bytes, LocalFile
from engine.files.sources.checkpoint import Checkpoint
from engine.files.sources.opening import open_checkpoint
from engine.files.sources.tensors import FileTensor


class FleetingFile:
    """A copy of the file at `origin`, in the folder `here`; what is done with it goes into `events`."""

    def __init__(self, origin: Path, here: Path, events: list[str], fails: bool = False) -> None:
        self.path = here / origin.name
        self.size = origin.stat().st_size
        self.identity: list[Any] = [origin.name, self.size]
        self._origin = origin
        self._events = events
        self._fails = fails
        self._open: LocalFile | None = None

    def sample(self) -> str:
        """As wherever it comes from has it: what it is made into is the same to the last byte."""
        origin = LocalFile(self._origin)
        try:
            return origin.sample()
        finally:
            origin.close()

    def acquire(self) -> None:
        assert self._open is None
        if self._fails:
            raise NetworkError(f"{self.path.name} cannot be fetched.")
        self._events.append(f"+{self.path.stem}")
        shutil.copy(self._origin, self.path)
        self._open = LocalFile(self.path)

    def release(self) -> None:
        self._events.append(f"-{self.path.stem}")
        self.close()
        self.path.unlink(missing_ok=True)

    def read(self, start: int, out: Bytes) -> None:
        assert self._open is not None, f"{self.path.name} is read while it is not here"
        self._open.read(start, out)

    def read_bytes(self, start: int, stop: int) -> bytes:
        raise AssertionError("only headers are read this way, and those before anything is acquired")

    def drop_behind(self) -> None:
        assert self._open is not None, f"{self.path.name} is touched while it is not here"
        self._open.drop_behind()

    def close(self) -> None:
        if self._open is not None:
            self._open.close()
            self._open = None


@contextmanager
def fleeting(source: Path, here: Path, events: list[str], failing: str = "") -> Iterator[Checkpoint]:
    """The folder `source` as a checkpoint of fleeting files; the one called `failing` never comes."""
    here.mkdir(exist_ok=True)
    checkpoint = open_checkpoint(source)
    checkpoint.close()
    files = {
        id(file): FleetingFile(file.path, here, events, fails=file.path.stem == failing) for file in checkpoint.files
    }
    tensors = {}
    for name, tensor in checkpoint.tensors.items():
        assert isinstance(tensor, FileTensor)
        tensors[name] = replace(tensor, file=files[id(tensor.file)])
    come = replace(checkpoint, tensors=tensors, files=tuple(files.values()))
    yield come
    come.close()
