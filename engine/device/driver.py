"""What the engine asks of a device. Two fulfil it: the simulated device (`sim.py`) and CUDA.

Addresses are integers of the device's own address space. Work is issued to streams and done later: in order within a
stream, in any order between streams but for events. Nothing that is issued is certain to be done before `synchronise`;
`upload` and `download` do not wait for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from engine.base.errors import FreetokenError

Grid = tuple[int, int, int]


class CannotPinError(FreetokenError):
    """The system does not let the device reach so much of the host's memory; the message says what limits it."""


class Memory(Protocol):
    """Memory of the device."""

    @property
    def address(self) -> int: ...
    @property
    def size(self) -> int: ...
    def free(self) -> None:
        """Give it back; waits for work that is under way. A second time does nothing."""


class Range(Protocol):
    """A run of the device's addresses, of which a prefix is memory."""

    @property
    def address(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def mapped(self) -> int:
        """Bytes of the prefix, a multiple of `granularity`."""

    @property
    def granularity(self) -> int: ...
    def map(self, size: int) -> None:
        """Make the prefix as small as a multiple of `granularity` that holds `size` bytes can be.

        Contents below the smaller of the old and the new prefix stay; what is new is of any value. Waits for work that
        is under way. Raises NoRoomError, and changes nothing, where the device has too little memory.
        """

    def free(self) -> None:
        """Give back memory and addresses."""


class HostMemory(Protocol):
    """Memory of the host that the device reaches."""

    @property
    def address(self) -> int:
        """The device's address of it."""

    @property
    def array(self) -> NDArray[np.uint8]:
        """The same bytes here."""

    def free(self) -> None: ...


class Pinned(Protocol):
    """Memory of the host that was there before and that the device now reaches."""

    @property
    def address(self) -> int: ...
    def free(self) -> None:
        """Let go of it; the memory itself stays."""


class Stream(Protocol):
    @property
    def label(self) -> str: ...


class Event(Protocol):
    """What a stream had been given when the event was recorded."""


class Kernel(Protocol):
    @property
    def name(self) -> str: ...


class Graph(Protocol):
    """Launches, copies and signals that are issued again as one."""

    def launch(self, stream: Stream) -> None:
        """Issue it: after all that was issued to the stream before, before all that comes after."""


class Driver(Protocol):
    """A device. Not for several threads at once."""

    @property
    def name(self) -> str:
        """ "sim" or "cuda"."""

    @property
    def description(self) -> str:
        """For people."""

    @property
    def uuid(self) -> str:
        """The same for one device at all times, and for no other."""

    def memory(self) -> tuple[int, int]:
        """Bytes of the device in all, and those that are free."""

    def allocate(self, size: int) -> Memory:
        """Zeroed memory of the device, aligned to 256 bytes. Raises NoRoomError."""

    def reserve(self, size: int) -> Range:
        """Addresses for at least `size` bytes; nothing is mapped yet."""

    def host(self, size: int) -> HostMemory:
        """Zeroed, pinned memory of the host. Raises CannotPinError."""

    def pin(self, view: memoryview | NDArray[Any], size: int) -> Pinned:
        """Let the device reach the first `size` bytes of memory that is there. Raises CannotPinError."""

    def upload(self, target: int, data: NDArray[Any]) -> None:
        """Copy an array to the device, at once."""

    def download(self, source: int, out: NDArray[Any]) -> None:
        """Copy from the device into an array, at once."""

    def stream(self, label: str = "") -> Stream: ...

    def kernel(self, name: str) -> Kernel:
        """A kernel of the table `engine.device.kernels.KERNELS`; compiled when it is first asked for."""

    def launch(
        self, stream: Stream, kernel: Kernel, grid: Grid, block: int, args: Sequence[int | float], shared: int = 0
    ) -> None:
        """Run a kernel with `block` threads a block and `shared` bytes of dynamic shared memory.

        `args` are the values of its parameters; another number or type than the table's is an AssertionError.
        """

    def copy(self, stream: Stream, target: int, source: int, size: int) -> None:
        """Copy within the device, or between it and memory of the host that it reaches."""

    def move_blocks(self, stream: Stream, base: int, size: int, moves: NDArray[np.int32]) -> None:
        """Copy blocks of `size` bytes, a multiple of 16, within an array of them at `base`: rows (from, to).

        What this costs follows the bytes, however small the blocks are. No block may be both copied from and copied
        to. Not while a graph is captured.
        """

    def record(self, stream: Stream) -> Event: ...

    def wait_event(self, stream: Stream, event: Event) -> None:
        """What is issued to the stream from here on comes after all that the event stands for."""

    def write_value(self, stream: Stream, address: int, value: int) -> None:
        """Write a uint32 after all that was issued to the stream before, as the host sees it too."""

    def wait_value(self, stream: Stream, address: int, value: int) -> None:
        """Hold the stream until the uint32 at `address` is `value`."""

    def host_function(self, stream: Stream, function: int, argument: int) -> None:
        """Call the C function `void (*)(void*)` at the address `function` from a thread of the host."""

    def native(self, stream: Stream, name: str, call: Callable[[], None]) -> None:
        """Call Python in the stream's order: for operations that have no kernel. The simulated device only."""

    def capture(self, stream: Stream) -> AbstractContextManager[Graph]:
        """Everything issued inside becomes a graph, and nothing of it is done.

        Other streams take part from where they wait for an event of the capture, and must be joined to `stream` by
        events before it ends: an AssertionError otherwise.
        """

    def synchronise(self, stream: Stream) -> None:
        """Wait until all that was issued to the stream is done. Raises what went wrong."""


def bytes_of(array: NDArray[Any]) -> NDArray[np.uint8]:
    """The bytes of a contiguous array, where they lie."""
    assert array.flags.c_contiguous, "memory in one piece is wanted"
    return array.reshape(-1).view(np.uint8)
