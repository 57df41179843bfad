"""What of the CUDA driver can be held without a GPU: the words that reach CUDA, and memory that is given back."""

from __future__ import annotations

import ctypes
import struct
from typing import Any

import numpy as np
import pytest

from engine.base.errors import FreetokenError, NoRoomError
from engine.base.gpu import missing_for_cuda
from engine.device.kernels import KernelSignature

cuda = pytest.importorskip("engine.device.cuda", reason="cupy is not installed")
libcuda = cuda.libcuda


def test_without_a_gpu_the_driver_says_so() -> None:
    if missing_for_cuda() is None:
        pytest.skip("there is a GPU")
    with pytest.raises(FreetokenError, match="GPU 0 cannot be used"):
        cuda.CudaDriver()


def test_parameters_reach_the_launch_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """One pointer for each parameter, to the bytes of its own type."""
    seen: dict[str, Any] = {}

    def launch(function: int, *rest: int) -> None:
        *shape, stream, pointers, extra = rest
        values = (ctypes.c_void_p * 4).from_address(pointers)
        seen["values"] = (
            ctypes.c_uint64.from_address(values[0]).value,
            ctypes.c_int32.from_address(values[1]).value,
            ctypes.c_float.from_address(values[2]).value,
            ctypes.c_uint64.from_address(values[3]).value,
        )
        seen["shape"] = function, *shape, stream, extra

    monkeypatch.setattr(cuda.cupy_driver, "launchKernel", launch)

    class Handle:
        ptr = 77

    driver = object.__new__(cuda.CudaDriver)
    kernel = cuda.CudaKernel(KernelSignature("example", "", "pifl", None), None, Handle)
    args = (0x7FFF12345678, -5, 0.1, 1 << 63)
    driver.launch(cuda.CudaStream("main", Handle), kernel, (3, 2, 1), 128, args, 64)
    assert seen["values"] == (0x7FFF12345678, -5, struct.unpack("f", struct.pack("f", 0.1))[0], 1 << 63)
    assert seen["shape"] == (77, 3, 2, 1, 128, 1, 1, 64, 77, 0)
    seen.clear()
    driver.launch(cuda.CudaStream("main", Handle), kernel, (3, 0, 1), 128, args)
    assert not seen, "an empty grid is no launch"


def test_an_upload_is_on_the_device_before_anything_that_is_issued_later(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []
    monkeypatch.setattr(cuda.runtime, "memcpy", lambda target, source, size, kind: calls.append((target, size, kind)))
    monkeypatch.setattr(cuda.runtime, "streamSynchronize", calls.append)
    object.__new__(cuda.CudaDriver).upload(4096, np.arange(6, dtype=np.int32))
    assert calls == [(4096, 24, cuda.runtime.memcpyHostToDevice), 0]


class Memory:
    """A GPU's memory of so many chunks, as the driver's library deals it out."""

    def __init__(self, chunks: int) -> None:
        self.free = chunks
        self.mapped: dict[int, int] = {}
        self.made = 0

    def create(self, size: int, device: int) -> int:
        if not self.free:
            raise libcuda.CudaError("cuMemCreate", libcuda.OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY")
        self.free -= 1
        self.made += 1
        return self.made

    def release(self, handle: int) -> None:
        assert handle not in self.mapped.values(), "released while mapped"
        self.free += 1

    def map(self, address: int, size: int, handle: int, device: int) -> None:
        assert address not in self.mapped
        self.mapped[address] = handle


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> Memory:
    there = Memory(5)
    freed: list[int] = []
    monkeypatch.setattr(libcuda, "granularity", lambda device: 2 << 20)
    monkeypatch.setattr(libcuda, "reserve_addresses", lambda size: 1 << 40)
    monkeypatch.setattr(libcuda, "free_addresses", lambda address, size: freed.append(address))
    monkeypatch.setattr(libcuda, "create_memory", there.create)
    monkeypatch.setattr(libcuda, "release_memory", there.release)
    monkeypatch.setattr(libcuda, "map_memory", there.map)
    monkeypatch.setattr(libcuda, "unmap_memory", lambda address, size: there.mapped.pop(address))
    monkeypatch.setattr(cuda.runtime, "deviceSynchronize", lambda: None)
    monkeypatch.setattr(cuda.runtime, "memGetInfo", lambda: (there.free * (16 << 20), 80 << 20))
    return there


def test_a_range_grows_and_shrinks_in_place(memory: Memory) -> None:
    addresses = cuda.MappedRange(100 << 20, 0)
    assert addresses.size == 112 << 20
    for wanted, chunks in ((1, 1), (40 << 20, 3), (16 << 20, 1), (80 << 20, 5), (0, 0)):
        addresses.map(wanted)
        assert addresses.mapped == chunks * addresses.granularity
        assert sorted(memory.mapped) == [(1 << 40) + n * addresses.granularity for n in range(chunks)]
        assert memory.free == 5 - chunks
    addresses.free()
    addresses.free()


def test_too_much_changes_nothing(memory: Memory) -> None:
    addresses = cuda.MappedRange(200 << 20, 0)
    addresses.map(32 << 20)
    before = dict(memory.mapped)
    with pytest.raises(NoRoomError, match="free, and 128 MiB are needed"):
        addresses.map(160 << 20)
    assert memory.mapped == before
    assert memory.free == 3
    addresses.free()
    assert memory.free == 5


def test_memory_that_cannot_be_mapped_is_given_back(memory: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: int) -> None:
        raise libcuda.CudaError("cuMemMap", 1, "CUDA_ERROR_INVALID_VALUE")

    addresses = cuda.MappedRange(64 << 20, 0)
    monkeypatch.setattr(libcuda, "map_memory", refuse)
    with pytest.raises(FreetokenError, match="refused cuMemMap: CUDA_ERROR_INVALID_VALUE"):
        addresses.map(16 << 20)
    assert memory.free == 5
    assert addresses.mapped == 0


def test_structures_have_the_sizes_of_the_headers() -> None:
    """CUmemAllocationProp and CUmemAccessDesc of cuda.h on 64-bit systems."""
    assert ctypes.sizeof(libcuda._Allocation) == 32
    assert ctypes.sizeof(libcuda._Access) == 12
    assert np.dtype(np.uint64).itemsize == ctypes.sizeof(ctypes.c_void_p)
