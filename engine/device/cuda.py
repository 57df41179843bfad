"""The CUDA device: CuPy for memory, streams, graphs and launches; the driver's own library for what CuPy lacks.

Streams are independent of the null stream, on which `upload` and `download` copy.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import cupy
import numpy as np
from cupy.cuda import driver as cupy_driver
from cupy.cuda import function as cupy_function
from cupy.cuda import runtime
from numpy.typing import NDArray

from engine.base.errors import ON_THE_CPU, FreetokenError, NoRoomError
from engine.base.units import format_size
from engine.device import libcuda
from engine.device.block_moves import BlockMover
from engine.device.compiling import Compiler
from engine.device.driver import (
    CannotPinError,
    Event,
    Graph,
    Grid,
    HostMemory,
    Kernel,
    Memory,
    Pinned,
    Range,
    Stream,
    bytes_of,
)
from engine.device.kernels import KernelSignature, signature

_CHUNK = 16 << 20  # of mapped memory: a pool of 40 GB is mapped in a few thousand calls
_STATIC_SHARED = 48 << 10  # more dynamic shared memory has to be asked for
_OUT_OF_MEMORY = 2
_AFTER_A_FAULT = f"Try again. Does it come back? {ON_THE_CPU}"
_HOST_FLAGS = runtime.hostAllocMapped | runtime.hostAllocPortable
_REGISTER_FLAGS = 1 | 2  # portable, mapped


@dataclass(frozen=True, eq=False)
class CudaStream:
    label: str
    stream: Any

    @property
    def handle(self) -> int:
        return int(self.stream.ptr)


@dataclass(frozen=True, eq=False)
class CudaKernel:
    """A loaded kernel; `module` keeps its code alive."""

    signature: KernelSignature
    module: Any
    function: Any

    @property
    def name(self) -> str:
        return self.signature.name


class DeviceMemory:
    """An allocation of its own."""

    def __init__(self, size: int) -> None:
        assert size > 0, "no memory of no bytes"
        self.size = size
        try:
            self.address = int(runtime.malloc(size))
        except runtime.CUDARuntimeError as error:
            raise _no_room(error, size) from None
        runtime.memset(self.address, 0, size)
        _finish_null_stream()
        self._live = True

    def free(self) -> None:
        if self._live:
            self._live = False
            runtime.deviceSynchronize()
            runtime.free(self.address)


class MappedRange:
    """Reserved addresses whose first bytes are memory, in chunks of `granularity`."""

    def __init__(self, size: int, device: int) -> None:
        self._device = device
        unit = libcuda.granularity(device)
        self.granularity = -(-_CHUNK // unit) * unit
        self.size = -(-size // self.granularity) * self.granularity
        self.address = libcuda.reserve_addresses(self.size)
        self._chunks: list[int] = []  # handles, ascending by address
        self._live = True

    @property
    def mapped(self) -> int:
        return len(self._chunks) * self.granularity

    def map(self, size: int) -> None:
        assert self._live, "the range was given back"
        assert 0 <= size <= self.size, f"{size} bytes of a range of {self.size}"
        runtime.deviceSynchronize()
        before = len(self._chunks)
        wanted = -(-size // self.granularity)
        try:
            while len(self._chunks) < wanted:
                self._grow()
        except libcuda.CudaError as error:
            self._shrink(before)
            if error.code == libcuda.OUT_OF_MEMORY:
                raise _no_room(error, (wanted - before) * self.granularity) from None
            raise
        self._shrink(wanted)

    def free(self) -> None:
        if self._live:
            self.map(0)
            self._live = False
            libcuda.free_addresses(self.address, self.size)

    def _grow(self) -> None:
        handle = libcuda.create_memory(self.granularity, self._device)
        try:
            libcuda.map_memory(self.address + self.mapped, self.granularity, handle, self._device)
        except libcuda.CudaError:
            libcuda.release_memory(handle)
            raise
        self._chunks.append(handle)

    def _shrink(self, chunks: int) -> None:
        while len(self._chunks) > chunks:
            handle = self._chunks.pop()
            libcuda.unmap_memory(self.address + self.mapped, self.granularity)
            libcuda.release_memory(handle)


class PinnedHostMemory:
    """Memory of the host that CUDA has allocated."""

    def __init__(self, size: int) -> None:
        assert size > 0, "no memory of no bytes"
        try:
            self._host = int(runtime.hostAlloc(size, _HOST_FLAGS))
        except runtime.CUDARuntimeError as error:
            raise _cannot_pin(error, size) from None
        self.address = libcuda.device_address(self._host)
        self.array: NDArray[np.uint8] = np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(self._host))
        self.array[:] = 0
        self._live = True

    def free(self) -> None:
        if self._live:
            self._live = False
            runtime.deviceSynchronize()
            runtime.freeHost(self._host)


class RegisteredMemory:
    """Memory of this process that was there before; kept alive as long as it is registered."""

    def __init__(self, array: NDArray[np.uint8], size: int) -> None:
        self._array: NDArray[np.uint8] | None = array
        self._host = int(array.ctypes.data)
        try:
            runtime.hostRegister(self._host, size, _REGISTER_FLAGS)
        except runtime.CUDARuntimeError as error:
            raise _cannot_pin(error, size) from None
        self.address = libcuda.device_address(self._host)

    def free(self) -> None:
        if self._array is not None:
            self._array = None
            runtime.deviceSynchronize()
            runtime.hostUnregister(self._host)


class CudaGraph:
    """A captured graph; `close` is called once, at the end of the capture."""

    def __init__(self) -> None:
        self._graph: Any = None

    def close(self, graph: Any) -> None:
        self._graph = graph

    def launch(self, stream: Stream) -> None:
        assert isinstance(stream, CudaStream), "a stream of another driver"
        assert self._graph is not None, "the capture has not ended"
        self._graph.launch(stream.stream)


class CudaDriver:
    """Fulfils `engine.device.driver.Driver` on one NVIDIA GPU. Raises FreetokenError where there is none."""

    name = "cuda"

    def __init__(self, device: int = 0) -> None:
        try:
            runtime.setDevice(device)
            properties = runtime.getDeviceProperties(device)
        except runtime.CUDARuntimeError as error:
            raise FreetokenError(f"GPU {device} cannot be used: {_reason(error)}.", ON_THE_CPU) from None
        self._device = device
        self.description = properties["name"].decode()
        self.uuid = f"GPU-{bytes(properties['uuid']).hex()}" if "uuid" in properties else _bus_id(device)
        self.compute_capability = f"{properties['major']}{properties['minor']}"
        self._compiler = Compiler(self.compute_capability)
        self._kernels: dict[str, CudaKernel] = {}
        self._mover = BlockMover(self)

    # -- memory

    def memory(self) -> tuple[int, int]:
        free, total = runtime.memGetInfo()
        return int(total), int(free)

    def allocate(self, size: int) -> Memory:
        return DeviceMemory(size)

    def reserve(self, size: int) -> Range:
        return MappedRange(size, self._device)

    def host(self, size: int) -> HostMemory:
        return PinnedHostMemory(size)

    def pin(self, view: memoryview | NDArray[Any], size: int) -> Pinned:
        array = bytes_of(np.asarray(view))
        assert 0 < size <= array.size, f"{size} bytes of a view of {array.size}"
        return RegisteredMemory(array, size)

    def upload(self, target: int, data: NDArray[Any]) -> None:
        source = bytes_of(np.ascontiguousarray(data))
        runtime.memcpy(target, source.ctypes.data, source.size, runtime.memcpyHostToDevice)
        _finish_null_stream()

    def download(self, source: int, out: NDArray[Any]) -> None:
        target = bytes_of(out)
        runtime.memcpy(target.ctypes.data, source, target.size, runtime.memcpyDeviceToHost)

    # -- work

    def stream(self, label: str = "") -> Stream:
        return CudaStream(label, cupy.cuda.Stream(non_blocking=True))

    def kernel(self, name: str) -> Kernel:
        if name not in self._kernels:
            wanted = signature(name)
            self._kernels[name] = self.load(wanted, self._compiler.cubin(wanted))
        return self._kernels[name]

    def load(self, wanted: KernelSignature, cubin: bytes) -> CudaKernel:
        """A kernel from machine code that somebody else has compiled."""
        module = cupy_function.Module()
        module.load(cubin)
        return CudaKernel(wanted, module, module.get_function(wanted.name))

    def launch(
        self, stream: Stream, kernel: Kernel, grid: Grid, block: int, args: Sequence[int | float], shared: int = 0
    ) -> None:
        assert isinstance(stream, CudaStream), "a stream of another driver"
        assert isinstance(kernel, CudaKernel), "a kernel of another driver"
        if 0 in grid:
            return
        if shared > _STATIC_SHARED:
            attribute = cupy_driver.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            cupy_driver.funcSetAttribute(kernel.function.ptr, attribute, shared)
        slots = kernel.signature.pack(args)
        values = ctypes.create_string_buffer(slots, len(slots))
        first = ctypes.addressof(values)
        pointers = (ctypes.c_void_p * max(1, len(args)))(*(first + 8 * i for i in range(len(args))))
        cupy_driver.launchKernel(
            kernel.function.ptr, *grid, block, 1, 1, shared, stream.handle, ctypes.addressof(pointers), 0
        )

    def copy(self, stream: Stream, target: int, source: int, size: int) -> None:
        runtime.memcpyAsync(target, source, size, runtime.memcpyDefault, _handle(stream))

    def move_blocks(self, stream: Stream, base: int, size: int, moves: NDArray[np.int32]) -> None:
        self._mover.move(stream, base, size, moves)

    def record(self, stream: Stream) -> Event:
        assert isinstance(stream, CudaStream), "a stream of another driver"
        event: Event = stream.stream.record(cupy.cuda.Event(disable_timing=True))
        return event

    def wait_event(self, stream: Stream, event: Event) -> None:
        assert isinstance(stream, CudaStream), "a stream of another driver"
        stream.stream.wait_event(event)

    def write_value(self, stream: Stream, address: int, value: int) -> None:
        libcuda.write_value(_handle(stream), address, value)

    def wait_value(self, stream: Stream, address: int, value: int) -> None:
        libcuda.wait_value(_handle(stream), address, value)

    def host_function(self, stream: Stream, function: int, argument: int) -> None:
        libcuda.host_function(_handle(stream), function, argument)

    def native(self, stream: Stream, name: str, call: Callable[[], None]) -> None:
        raise AssertionError(f"{name} has no kernel: the simulated device alone runs native operations")

    @contextmanager
    def capture(self, stream: Stream) -> Iterator[Graph]:
        assert isinstance(stream, CudaStream), "a stream of another driver"
        graph = CudaGraph()
        # Relaxed: the CPU worker's thread and other programs of this process may call CUDA meanwhile.
        stream.stream.begin_capture(runtime.streamCaptureModeRelaxed)
        try:
            yield graph
        except BaseException:
            _abandon(stream)
            raise
        graph.close(stream.stream.end_capture())

    def synchronise(self, stream: Stream) -> None:
        assert isinstance(stream, CudaStream), "a stream of another driver"
        try:
            stream.stream.synchronize()
        except runtime.CUDARuntimeError as error:
            raise FreetokenError(
                f"The GPU failed in the middle of a step: {_reason(error)}.", _AFTER_A_FAULT
            ) from error

    def waits_on_memory(self) -> bool:
        """Whether graphs of this device can write and wait for values: an old driver's cannot."""
        word = self.host(64)
        stream = self.stream("trial")
        try:
            with self.capture(stream) as graph:
                self.write_value(stream, word.address, 1)
                self.wait_value(stream, word.address, 1)
            graph.launch(stream)
            self.synchronise(stream)
        except (libcuda.CudaError, runtime.CUDARuntimeError, FreetokenError):
            return False
        finally:
            word.free()
        return True


def _finish_null_stream() -> None:
    """Neither a memset nor a copy from pageable memory need be done on the device when CUDA returns from it, and the
    streams of launches do not wait for the null stream."""
    runtime.streamSynchronize(0)


def _abandon(stream: CudaStream) -> None:
    with suppress(runtime.CUDARuntimeError):  # the capture may be invalid already, which is why it is abandoned
        stream.stream.end_capture()


def _handle(stream: Stream) -> int:
    assert isinstance(stream, CudaStream), "a stream of another driver"
    return stream.handle


def _bus_id(device: int) -> str:
    return f"PCI-{runtime.deviceGetPCIBusId(device)}"


def _reason(error: Exception) -> str:
    return str(error).strip().rstrip(".")


def _no_room(error: Exception, size: int) -> Exception:
    if isinstance(error, runtime.CUDARuntimeError) and error.status != _OUT_OF_MEMORY:
        return FreetokenError(f"The GPU refused {format_size(size)} of memory: {_reason(error)}.", _AFTER_A_FAULT)
    free, _ = runtime.memGetInfo()
    return NoRoomError(
        f"The GPU has {format_size(int(free))} free, and {format_size(size)} are needed.",
        "Give experts or context less room, or close what else uses the GPU.",
    )


def _cannot_pin(error: Exception, size: int) -> CannotPinError:
    return CannotPinError(f"{format_size(size)} of the host's memory could not be pinned: {_reason(error)}.")
