"""What CuPy has no name for, from the driver's own library: mapped memory, stream memory operations, host functions."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, byref, c_char_p, c_int, c_size_t, c_ubyte, c_uint32, c_uint64, c_ushort, c_void_p
from functools import cache
from typing import Any

from engine.base.errors import FreetokenError

OUT_OF_MEMORY = 2
_PINNED = 1  # CU_MEM_ALLOCATION_TYPE_PINNED
_DEVICE = 1  # CU_MEM_LOCATION_TYPE_DEVICE
_READ_WRITE = 3  # CU_MEM_ACCESS_FLAGS_PROT_READWRITE
_WAIT_EQUAL = 1  # CU_STREAM_WAIT_VALUE_EQ


class CudaError(FreetokenError):
    """A call of the driver that failed; `code` is a CUresult."""

    def __init__(self, call: str, code: int, name: str) -> None:
        super().__init__(f"The GPU's driver refused {call}: {name}.")
        self.code = code


class _Location(ctypes.Structure):
    _fields_ = (("type", c_int), ("id", c_int))


class _AllocationFlags(ctypes.Structure):
    _fields_ = (
        ("compression", c_ubyte),
        ("direct_rdma", c_ubyte),
        ("usage", c_ushort),
        ("reserved", c_ubyte * 4),
    )


class _Allocation(ctypes.Structure):
    _fields_ = (
        ("type", c_int),
        ("handle_types", c_int),
        ("location", _Location),
        ("win32", c_void_p),
        ("flags", _AllocationFlags),
    )


class _Access(ctypes.Structure):
    _fields_ = (("location", _Location), ("flags", c_int))


_PROTOTYPES: dict[str, tuple[Any, ...]] = {
    "cuGetErrorName": (c_int, POINTER(c_char_p)),
    "cuMemGetAllocationGranularity": (POINTER(c_size_t), POINTER(_Allocation), c_int),
    "cuMemAddressReserve": (POINTER(c_uint64), c_size_t, c_size_t, c_uint64, c_uint64),
    "cuMemAddressFree": (c_uint64, c_size_t),
    "cuMemCreate": (POINTER(c_uint64), c_size_t, POINTER(_Allocation), c_uint64),
    "cuMemRelease": (c_uint64,),
    "cuMemMap": (c_uint64, c_size_t, c_size_t, c_uint64, c_uint64),
    "cuMemUnmap": (c_uint64, c_size_t),
    "cuMemSetAccess": (c_uint64, c_size_t, POINTER(_Access), c_size_t),
    "cuMemHostGetDevicePointer_v2": (POINTER(c_uint64), c_void_p, c_uint32),
    "cuStreamWriteValue32_v2": (c_void_p, c_uint64, c_uint32, c_uint32),
    "cuStreamWaitValue32_v2": (c_void_p, c_uint64, c_uint32, c_uint32),
    "cuLaunchHostFunc": (c_void_p, c_void_p, c_void_p),
}


@cache
def _library() -> ctypes.CDLL:
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise FreetokenError("The GPU's driver (libcuda.so.1) is not there.", "Install NVIDIA's driver.") from error
    for name, parameters in _PROTOTYPES.items():
        function = library[name]
        function.argtypes = parameters
        function.restype = c_int
    return library


def _call(name: str, *args: Any) -> None:
    library = _library()
    code = library[name](*args)
    if code != 0:
        text = c_char_p()
        library["cuGetErrorName"](code, byref(text))
        raise CudaError(name, code, (text.value or b"error %d" % code).decode())


def _allocation(device: int) -> _Allocation:
    return _Allocation(type=_PINNED, location=_Location(_DEVICE, device))


def granularity(device: int) -> int:
    """Bytes of the smallest piece of memory that can be mapped."""
    found = c_size_t()
    _call("cuMemGetAllocationGranularity", byref(found), byref(_allocation(device)), 0)
    return found.value


def reserve_addresses(size: int) -> int:
    """Addresses for `size` bytes, with nothing behind them."""
    address = c_uint64()
    _call("cuMemAddressReserve", byref(address), size, 0, 0, 0)
    return address.value


def free_addresses(address: int, size: int) -> None:
    """Give back what `reserve_addresses` gave; nothing may be mapped there."""
    _call("cuMemAddressFree", address, size)


def create_memory(size: int, device: int) -> int:
    """A handle to memory of the device without an address. CudaError with OUT_OF_MEMORY where there is none."""
    handle = c_uint64()
    _call("cuMemCreate", byref(handle), size, byref(_allocation(device)), 0)
    return handle.value


def release_memory(handle: int) -> None:
    """Give memory back; it must be unmapped."""
    _call("cuMemRelease", handle)


def map_memory(address: int, size: int, handle: int, device: int) -> None:
    """Put memory behind reserved addresses, for the device to read and write."""
    _call("cuMemMap", address, size, 0, handle, 0)
    _call("cuMemSetAccess", address, size, byref(_Access(_Location(_DEVICE, device), _READ_WRITE)), 1)


def unmap_memory(address: int, size: int) -> None:
    """Take memory from behind addresses."""
    _call("cuMemUnmap", address, size)


def device_address(host: int) -> int:
    """Where the device finds pinned memory of the host."""
    found = c_uint64()
    _call("cuMemHostGetDevicePointer_v2", byref(found), host, 0)
    return found.value


def write_value(stream: int, address: int, value: int) -> None:
    """A stream memory operation: writes a uint32 after all that came before in the stream is visible."""
    _call("cuStreamWriteValue32_v2", stream, address, value, 0)


def wait_value(stream: int, address: int, value: int) -> None:
    """A stream memory operation: holds the stream until the uint32 at `address` is `value`."""
    _call("cuStreamWaitValue32_v2", stream, address, value, _WAIT_EQUAL)


def host_function(stream: int, function: int, argument: int) -> None:
    """Calls a C function from a thread of the driver, in the stream's order."""
    _call("cuLaunchHostFunc", stream, function, argument)
