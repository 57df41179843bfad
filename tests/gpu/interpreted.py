"""A simulated device whose Triton kernels are interpreted on the processor. Import it with TRITON_INTERPRET=1."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from engine.device.driver import Grid, Stream
from engine.device.sim import SimDriver
from engine.files.ftw.opening import Tensor
from engine.memory.blocks import ContextRoom
from engine.program.device.buffers import DeviceBuffers
from engine.program.device.native_mixers import NativeMixers
from engine.program.device.triton_launch import FUNCTIONS, LoadedKernel
from engine.program.device.triton_mixers import TritonMixers
from engine.program.ir import Program

assert os.environ.get("TRITON_INTERPRET") == "1", "set TRITON_INTERPRET=1"

MIB = 1 << 20
DTYPES = {"*fp32": torch.float32, "*fp16": torch.float16, "*i32": torch.int32}


@dataclass(frozen=True)
class Interpreted:
    """Stands for a compiled kernel."""

    name: str
    types: tuple[str, ...]
    constants: Mapping[str, int]


class InterpretingDriver(SimDriver):
    """A simulated device whose Triton kernels are interpreted: its memory is the host's."""

    def launch(self, stream: Stream, kernel: Any, grid: Grid, block: int, args: Any, shared: int = 0) -> None:
        if not isinstance(kernel, Interpreted):
            super().launch(stream, kernel, grid, block, args, shared)
            return
        values = [_value(kind, value) for kind, value in zip(kernel.types, args[:-2], strict=True)]
        function = FUNCTIONS[kernel.name]
        self.native(stream, kernel.name, lambda: function[grid](*values, **kernel.constants))


def load(name: str, types: Mapping[str, str], constants: Mapping[str, int]) -> LoadedKernel:
    """Fulfils `KernelLoader`."""
    kernel: Any = Interpreted(name, tuple(types.values()), constants)
    return LoadedKernel(kernel, 32, 0)


def native_and_triton(
    program: Program, weights: Mapping[str, Tensor], room: ContextRoom, tokens: int
) -> tuple[InterpretingDriver, DeviceBuffers, tuple[NativeMixers, TritonMixers]]:
    """Mixers of both kinds over the same buffers, for steps of up to so many tokens."""
    driver = InterpretingDriver(256 * MIB, granularity=4096)
    buffers = DeviceBuffers(driver, program, tokens, tokens)
    settings: dict[str, Any] = {"kv_dtype": "f16", "page_tokens": 16, "room": room, "max_tokens": tokens}
    native = NativeMixers(driver, program, weights, buffers, **settings, threads=1)
    return driver, buffers, (native, TritonMixers(driver, program, weights, buffers, load=load, **settings))


def _value(kind: str, value: Any) -> Any:
    return _Pointer(value, DTYPES[kind]) if kind in DTYPES else value


class _Pointer(torch.Tensor):
    """What Triton's interpreter takes for memory: a type and an address."""

    @staticmethod
    def __new__(cls, address: int, dtype: torch.dtype) -> _Pointer:
        pointer = torch.Tensor._make_subclass(cls, torch.zeros(1, dtype=dtype))
        pointer.address = address or 16
        return pointer

    def data_ptr(self) -> int:
        return self.address

    def cpu(self) -> _Pointer:  # the interpreter copies what it is given, and back: this memory is used where it lies
        return self

    def new_empty(self, *args: Any, **kwargs: Any) -> _Pointer:
        return self
