"""The worker's end of the socket pair: a thread reads, so that messages are there when a step ends."""

from __future__ import annotations

import ctypes
import os
import queue
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterable

from engine.worker.protocol import Message
from engine.worker.wire import LineBuffer, decode, encode

_PR_SET_PDEATHSIG = 1
_GRACE_SECONDS = 5.0  # a step that outlives its front by more than this is cut off


class Closed(Exception):
    """The front has gone, or sends what no front would."""


class Link:
    """Messages over one connected socket. `receive` and `send` belong to the main thread."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._inbox: queue.SimpleQueue[Message | Closed] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, name="link", daemon=True)
        self._reader.start()

    def receive(self, wait: bool, seconds: float | None = None) -> list[Message]:
        """The messages that have come; with `wait` at least one, unless none comes for `seconds`.

        Raises Closed at the end of the stream.
        """
        messages: list[Message] = []
        while True:
            try:
                item = self._inbox.get(block=wait and not messages, timeout=seconds)
            except queue.Empty:
                return messages
            if isinstance(item, Closed):
                raise item
            messages.append(item)

    def send(self, messages: Iterable[Message]) -> None:
        """Write messages in one go. Raises Closed when nobody listens any more."""
        data = b"".join(encode(message) for message in messages)
        try:
            if data:
                self._socket.sendall(data)
        except OSError as error:
            raise Closed(f"the front is gone: {error.strerror}") from None

    def _read(self) -> None:
        lines = LineBuffer()
        end = Closed("the front closed the link")
        try:
            while data := self._socket.recv(1 << 20):
                for line in lines.feed(data):
                    self._inbox.put(decode(line))
        except OSError:
            pass
        except Exception as error:
            end = Closed(f"the front sent a bad message: {error}")
        finally:
            self._inbox.put(end)
            time.sleep(_GRACE_SECONDS)
            os._exit(1)


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when process `parent`, which started it, ends. The link's end is the other way
    to notice; this one also works in the middle of a step. Exits at once if the parent is gone already."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if parent and os.getppid() != parent:
        sys.exit(1)
