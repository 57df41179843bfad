"""A worker's end of the process that follows its grammars.

llguidance holds the interpreter's lock while it reads a vocabulary, a second or more if that is large, and may think
long about a hard grammar. In a process of its own it keeps no other answer waiting, and works out what may come next
while the model takes its step.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from collections import deque
from concurrent.futures import Future
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import Any, NamedTuple

from engine.base.errors import FreetokenError

_COMMAND = (sys.executable, "-P", "-m", "engine.worker.grammar_process")


@dataclass(frozen=True)
class Vocabulary:
    """The tokens that grammars choose from: the path of a model's tokenizer.json, and how many logits there are."""

    tokenizer: str
    size: int


class Next(NamedTuple):
    """What may come next: `mask` has a bit a token, the lowest first. `stopped`: the grammar has come to its end."""

    mask: bytes
    stopped: bool


class GrammarProcess:
    """Calls of `Matchers` in another process. None of its methods waits for that process."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        """Start it. Call this on the main thread: the kernel ends the child with the thread that made it."""
        ours, theirs = socket.socketpair()
        with theirs:
            config = json.dumps({"parent": os.getpid(), **asdict(vocabulary)})
            self._child = subprocess.Popen([*_COMMAND, config], stdin=theirs.fileno(), stdout=sys.stderr.fileno())
        self._link = Connection(ours.detach())
        self._calls: SimpleQueue[tuple[str, tuple[object, ...]] | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._unanswered: deque[Future[Any]] = deque()
        self._alive = True
        # Whoever writes may have to wait until a long grammar is read, and nobody could read while he waits.
        threading.Thread(target=self._write, name="grammar calls", daemon=True).start()
        threading.Thread(target=self._read, name="grammar results", daemon=True).start()

    @property
    def alive(self) -> bool:
        """Whether it can still answer."""
        return self._alive

    def call(self, name: str, *given: object) -> Future[Any]:
        """Call a method. The result fails with what it raises, or with FreetokenError when the process has died."""
        result: Future[Any] = Future()
        with self._lock:
            if self._alive:
                self._unanswered.append(result)
                self._calls.put((name, given))
            else:
                result.set_exception(_dead())
        return result

    def close(self) -> None:
        """End it; what is unanswered fails."""
        self._child.kill()
        self._child.wait()
        self._calls.put(None)

    def _write(self) -> None:
        try:
            while (call := self._calls.get()) is not None:
                self._link.send(call)
        except OSError:
            pass  # the reader notices too

    def _read(self) -> None:
        try:
            while True:
                answer = self._link.recv()
                future = self._unanswered.popleft()
                if isinstance(answer, Exception):
                    future.set_exception(answer)
                else:
                    future.set_result(answer)
        except (EOFError, OSError):
            pass
        with self._lock:
            self._alive = False
        for future in self._unanswered:
            future.set_exception(_dead())


def _dead() -> FreetokenError:
    return FreetokenError("The process that follows grammars has ended.", "Send the request again.")
