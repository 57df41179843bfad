"""Whether there is an NVIDIA GPU that this installation can use; found out without loading anything large."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec

from engine.base.errors import ON_THE_CPU

_PACKAGES = ("cupy", "triton")


@dataclass(frozen=True)
class Missing:
    """Why the GPU cannot be used, and what to do about it."""

    reason: str
    remedy: str


def missing_for_cuda(
    library: str = "libcuda.so.1", has_package: Callable[[str], bool] = lambda name: find_spec(name) is not None
) -> Missing | None:
    """None where `--device cuda` can be tried: a driver, a GPU, and the packages of the extra are there."""
    try:
        driver = ctypes.CDLL(library)
    except OSError:
        return Missing(f"there is no NVIDIA driver here ({library})", ON_THE_CPU)
    count = ctypes.c_int()
    if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0 or count.value == 0:
        return Missing("the NVIDIA driver finds no GPU", ON_THE_CPU)
    absent = [name for name in _PACKAGES if not has_package(name)]
    if absent:
        return Missing(
            f"these Python packages are missing: {', '.join(absent)}",
            "Install the GPU's packages: pip install 'freetoken-cli[cuda12]', or [cuda13] for CUDA 13.",
        )
    return None
