"""The simulated device: CUDA sources emulated on the processor, memory in RAM, and no promise about order that a real
device does not give.

What is issued is done at `synchronise` and not before, in an order that the seed chooses among all that streams and
events allow. docs/design.md says what this shows and what it cannot.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine import _native
from engine.base.units import format_size
from engine.device.block_moves import check_moves
from engine.device.driver import Event, Graph, Grid, HostMemory, Kernel, Memory, Pinned, Range, Stream, bytes_of
from engine.device.graph import Kind, Node, Step, Timeline, before, check_signals, random_order
from engine.device.kernels import KernelSignature, signature
from engine.device.regions import PAGE, Account, AddressBook, Lease, PinnedMemory, SlotRange, cannot_pin, no_room
from engine.device.virtual_time import Recording

GIB = 1 << 30
GRANULARITY = 2 << 20  # of mapped memory, as CUDA has it
_UNLIMITED = 1 << 62
_NAP = 0.1  # seconds after which a wait looks for signals to this process


@dataclass(frozen=True, eq=False)
class SimStream:
    label: str


@dataclass(frozen=True, eq=False)
class SimEvent:
    timeline: Timeline
    nodes: frozenset[int]
    recorded: frozenset[int]  # the same in the recording under way


@dataclass(frozen=True)
class SimKernel:
    """`number` is its place among the emulated kernels."""

    signature: KernelSignature
    number: int

    @property
    def name(self) -> str:
        return self.signature.name


@dataclass(frozen=True)
class LaunchCounters:
    """What the last launch of a kernel did: __syncthreads passed by a thread (the most of any block), collectives of
    warps, and atomics of all threads; and how often the kernel was launched."""

    launches: int
    barriers: int
    collectives: int
    shared_atomics: int
    global_atomics: int


class SimGraph:
    """A captured graph. `nodes` are complete once the capture has ended."""

    def __init__(self, driver: SimDriver) -> None:
        self._driver = driver
        self._steps: tuple[Step, ...] = ()

    @property
    def nodes(self) -> Sequence[Node]:
        return [step.node for step in self._steps]

    def close(self, steps: Sequence[Step]) -> None:
        self._steps = tuple(steps)

    def launch(self, stream: Stream) -> None:
        self._driver.issue_graph(stream, self._steps)


class SimDriver:
    """Fulfils `engine.device.driver.Driver`.

    `memory` bytes of the device; `threads` run its kernels; `seed` decides every order; `pin_limit` bytes of the host
    may be pinned (None: any number). A `wait_value` that lasts longer than `patience` seconds is an AssertionError.
    `calls` counts the calls of each method that a device would be asked by.
    """

    name = "sim"

    def __init__(
        self,
        memory: int = 8 * GIB,
        threads: int = 1,
        seed: int = 0,
        pin_limit: int | None = None,
        *,
        granularity: int = GRANULARITY,
        patience: float = 120.0,
    ) -> None:
        assert min(memory, threads, granularity, patience) > 0
        assert granularity % PAGE == 0, "memory is mapped in pages"
        self.calls: Counter[str] = Counter()
        self.description = f"simulated device, {format_size(memory)}"
        self.uuid = "SIM-00000000"
        self._emulator = _native.Emulator(threads, seed)
        self._random = Random(seed)
        self._granularity = granularity
        self._patience = patience
        self._book = AddressBook()
        self._device = Account(memory, no_room)
        self._pinnable = Account(_UNLIMITED if pin_limit is None else pin_limit, cannot_pin)
        self._numbers = {name: (place, letters) for place, (name, letters, _) in enumerate(_native.sim_kernels())}
        self._counters: dict[str, LaunchCounters] = {}
        self._pending = Timeline()
        self._done: set[int] = set()
        self._capture: Timeline | None = None
        self._recording: Recording | None = None

    # -- memory

    def memory(self) -> tuple[int, int]:
        return self._device.total, self._device.total - self._device.used

    def allocate(self, size: int) -> Memory:
        self._count("allocate")
        return Lease(size, self._device, self._book, self._settle)

    def reserve(self, size: int) -> Range:
        self._count("reserve")
        return SlotRange(size, self._granularity, self._device, self._book, self._settle)

    def host(self, size: int) -> HostMemory:
        self._count("host")
        return Lease(size, self._pinnable, self._book, self._settle)

    def pin(self, view: memoryview | NDArray[Any], size: int) -> Pinned:
        self._count("pin")
        array = bytes_of(np.asarray(view))
        assert 0 < size <= array.size, f"{size} bytes of a view of {array.size}"
        return PinnedMemory(array[:size], self._pinnable, self._book, self._settle)

    def upload(self, target: int, data: NDArray[Any]) -> None:
        self._count("upload")
        source = bytes_of(np.ascontiguousarray(data))
        self._book.check(target, source.size)
        _native.copy_memory(target, source.ctypes.data, source.size)

    def download(self, source: int, out: NDArray[Any]) -> None:
        self._count("download")
        target = bytes_of(out)
        self._book.check(source, target.size)
        _native.copy_memory(target.ctypes.data, source, target.size)

    # -- work

    def stream(self, label: str = "") -> Stream:
        self._count("stream")
        return SimStream(label)

    def kernel(self, name: str) -> Kernel:
        wanted = signature(name)
        assert name in self._numbers, f"kernel {name} is not emulated"
        number, letters = self._numbers[name]
        assert letters == wanted.parameters, f"{name} takes {letters!r}, and the table says {wanted.parameters!r}"
        return SimKernel(wanted, number)

    def launch(
        self, stream: Stream, kernel: Kernel, grid: Grid, block: int, args: Sequence[int | float], shared: int = 0
    ) -> None:
        assert isinstance(kernel, SimKernel), "a kernel of another driver"
        slots = kernel.signature.pack(args)
        for letter, value in zip(kernel.signature.parameters, args, strict=True):
            known = letter != "p" or value == 0 or self._book.region(int(value)) is not None
            assert known, f"{kernel.name} is given {int(value):#x}, which is no memory of the device"
        self._issue(stream, "kernel", kernel.name, partial(self._run, kernel, grid, block, shared, slots))

    def copy(self, stream: Stream, target: int, source: int, size: int) -> None:
        def run() -> None:
            self._book.check(target, size)
            self._book.check(source, size)
            _native.copy_memory(target, source, size)

        self._issue(stream, "copy", "copy", run)

    def move_blocks(self, stream: Stream, base: int, size: int, moves: NDArray[np.int32]) -> None:
        self._count("move_blocks")
        check_moves(base, size, moves)
        if len(moves):
            self._issue(stream, "copy", "move_blocks", partial(self._move_blocks, base, size, moves.copy()))

    def record(self, stream: Stream) -> Event:
        timeline = self._timeline
        recorded = self._recording.tail(stream) if self._recording is not None else frozenset[int]()
        return SimEvent(timeline, timeline.tail(stream), recorded)

    def wait_event(self, stream: Stream, event: Event) -> None:
        assert isinstance(event, SimEvent), "an event of another driver"
        timeline = self._timeline
        if self._recording is not None and self._capture is None:
            self._recording.wait(stream, event.recorded)
        if event.timeline is timeline:
            timeline.join(stream, event.nodes)
            return
        crossing = self._capture is not None or event.timeline.origin is not None
        assert not crossing, "an event from the other side of a capture"
        # recorded in a timeline whose work is all done

    def write_value(self, stream: Stream, address: int, value: int) -> None:
        self._book.check(address, 4)
        self._issue(stream, "write", "write", partial(_native.store_word, address, value), address, value)

    def wait_value(self, stream: Stream, address: int, value: int) -> None:
        self._book.check(address, 4)
        self._issue(stream, "wait", "wait", partial(self._wait, address, value), address, value)

    def host_function(self, stream: Stream, function: int, argument: int) -> None:
        assert function != 0, "no function"
        self._issue(stream, "host", "host", partial(_native.call_function, function, argument))

    def native(self, stream: Stream, name: str, call: Callable[[], None]) -> None:
        self._issue(stream, "native", name, call)

    @contextmanager
    def capture(self, stream: Stream) -> Iterator[Graph]:
        assert self._capture is None, "a capture is under way"
        self._count("capture")
        timeline = self._capture = Timeline(stream)
        graph = SimGraph(self)
        try:
            yield graph
        finally:
            self._capture = None
        timeline.check_joined()
        check_signals(timeline.nodes)
        graph.close(timeline.steps)

    def synchronise(self, stream: Stream) -> None:
        self._count("synchronise")
        if self._recording is not None:
            self._recording.synchronise(stream)
        self._perform(before(self._pending.nodes, self._pending.tail(stream), self._done))

    # -- of the simulated device alone

    def issue_graph(self, stream: Stream, steps: Sequence[Step]) -> None:
        """Issue a captured graph."""
        assert self._capture is None, "a graph is launched while another is captured"
        self._pending.extend(stream, steps)
        if self._recording is not None:
            self._recording.extend(stream, steps)

    @contextmanager
    def recording(self) -> Iterator[Recording]:
        """What is issued inside, over any number of steps."""
        assert self._recording is None, "a recording is under way"
        self._recording = Recording()
        try:
            yield self._recording
        finally:
            self._recording = None

    def counters(self, kernel: str) -> LaunchCounters:
        """Of the launches of a kernel that are done."""
        return self._counters.get(kernel, LaunchCounters(0, 0, 0, 0, 0))

    @property
    def _timeline(self) -> Timeline:
        return self._pending if self._capture is None else self._capture

    def _count(self, call: str) -> None:
        assert self._capture is None, f"{call} while a graph is captured"
        self.calls[call] += 1

    def _issue(
        self, stream: Stream, kind: Kind, name: str, run: Callable[[], None], address: int = 0, value: int = 0
    ) -> None:
        self._timeline.add(stream, kind, name, run, address, value)
        if self._recording is not None and self._capture is None:
            self._recording.add(stream, kind, name, address, value)

    def _settle(self) -> None:
        """Do all that was issued to any stream."""
        assert self._capture is None, "memory changes while a graph is captured"
        self._perform(frozenset(range(len(self._pending.nodes))) - self._done)

    def _perform(self, wanted: frozenset[int]) -> None:
        chosen = [self._pending.steps[index] for index in sorted(wanted)]
        try:
            for place in random_order([step.node for step in chosen], self._random):
                chosen[place].run()
        except BaseException:
            self._pending, self._done = Timeline(), set()  # as after an error of a device: nothing else is done
            raise
        self._done |= wanted
        if len(self._done) == len(self._pending.nodes):
            self._pending, self._done = Timeline(), set()

    def _run(self, kernel: SimKernel, grid: Grid, block: int, shared: int, slots: bytes) -> None:
        counted = self._emulator.launch(kernel.number, grid, block, shared, slots)
        self._counters[kernel.name] = LaunchCounters(self.counters(kernel.name).launches + 1, *counted)

    def _move_blocks(self, base: int, size: int, moves: NDArray[np.int32]) -> None:
        first, last = int(moves.min()), int(moves.max())
        self._book.check(base + first * size, (last - first + 1) * size)
        for source, target in (moves.astype(np.int64) * size + base).tolist():
            _native.copy_memory(target, source, size)

    def _wait(self, address: int, value: int) -> None:
        for _ in range(max(1, round(self._patience / _NAP))):
            if _native.wait_word(address, value, _NAP):
                return
        raise AssertionError(f"nobody wrote {value} to {address:#x} within {self._patience:g} s")
