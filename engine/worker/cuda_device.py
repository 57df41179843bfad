"""The CUDA device as a worker uses it: its driver, its mixers, and how it signals the CPU worker."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from engine.base.config import check_device
from engine.device.cuda import CudaDriver
from engine.device.triton_compile import compile_triton
from engine.program.device.executor import DeviceExecutor
from engine.program.device.triton_launch import FUNCTIONS, LoadedKernel, launch_signature
from engine.program.device.triton_mixers import TritonMixers, refuse_what_has_no_kernels

__all__ = ["cuda_executor", "cuda_mixers", "open_cuda", "refuse_what_has_no_kernels"]


def open_cuda() -> CudaDriver:
    """The first GPU. Raises UnsupportedError, or FreetokenError with what the driver says."""
    check_device("cuda")
    return CudaDriver()


def cuda_mixers(driver: CudaDriver) -> Callable[..., TritonMixers]:
    """Builds what keeps context memory on a GPU."""

    def load(name: str, types: Mapping[str, str], constants: Mapping[str, int]) -> LoadedKernel:
        compiled = compile_triton(FUNCTIONS[name], types, constants, int(driver.compute_capability))
        kernel = driver.load(launch_signature(compiled.name, types), compiled.cubin)
        return LoadedKernel(kernel, compiled.threads, compiled.shared)

    return partial(TritonMixers, load=load)


def cuda_executor(driver: CudaDriver) -> Callable[..., DeviceExecutor]:
    """Builds executors on a GPU: stream memory operations where its graphs can hold them, else host functions."""
    return partial(
        DeviceExecutor,
        make_mixers=cuda_mixers(driver),
        signals="memory" if driver.waits_on_memory() else "host",
    )
