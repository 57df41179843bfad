"""Triton's kernels on a device: compiled ahead for the shapes of a program, launched and captured as all others are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from engine.device.driver import Driver, Grid, Kernel, Stream
from engine.device.kernels import KernelSignature
from engine.program.device import compress_kernels, index_kernels, paged_kernels, recurrent_kernels

Constants = Mapping[str, int]

FUNCTIONS: Mapping[str, Any] = {
    "append_rows": paged_kernels.append_rows,
    "attend_parts": paged_kernels.attend_parts,
    "merge_parts": paged_kernels.merge_parts,
    "score_numbers": index_kernels.score_numbers,
    "compress": compress_kernels.compress,
    "convolve": recurrent_kernels.convolve,
    "delta_rule": recurrent_kernels.delta_rule,
    "state_space": recurrent_kernels.state_space,
}
"""Every Triton kernel by its name."""

TYPES: Mapping[str, str] = {
    **dict.fromkeys(("rows", "queries", "part_sums", "part_weights", "sinks", "out"), "*fp32"),
    **dict.fromkeys(("x", "y", "weights", "bias", "states", "q", "k", "v", "g", "b", "c"), "*fp32"),
    **dict.fromkeys(("dt", "a_log", "d", "dt_bias", "kv", "gate", "entry"), "*fp32"),
    **dict.fromkeys(("pages", "first_pages", "positions", "live", "chosen", "longest", "words"), "*i32"),
    **dict.fromkeys(("starts", "slots", "fresh", "saves", "sequences"), "*i32"),
    "cache": "*fp16",
    **dict.fromkeys(("row_stride", "page_values", "base", "head_values", "query_stride", "key_values"), "i32"),
    **dict.fromkeys(("value_base", "value_values", "window", "chunk", "out_stride"), "i32"),
    **dict.fromkeys(("x_stride", "y_stride", "q_stride", "k_stride", "v_stride", "g_stride", "b_stride"), "i32"),
    **dict.fromkeys(("c_stride", "dt_stride", "slot_values", "channels"), "i32"),
    **dict.fromkeys(("kv_stride", "gate_stride", "entry_stride", "dim"), "i32"),
    **dict.fromkeys(("chosen_stride", "weight_stride", "first"), "i32"),
    **dict.fromkeys(("scale", "slope", "softcap", "dt_min", "dt_max"), "fp32"),
}
"""Triton's types of the parameters of all kernels, by name."""

_LETTERS = {"i32": "i", "fp32": "f"}


@dataclass(frozen=True)
class LoadedKernel:
    """A compiled kernel, and how it is launched."""

    kernel: Kernel
    threads: int
    shared: int


class KernelLoader(Protocol):
    """Compiles the Triton function `FUNCTIONS[name]` for the driver's device. `types` are those of its parameters."""

    def __call__(self, name: str, types: Mapping[str, str], constants: Constants) -> LoadedKernel: ...


def launch_signature(name: str, types: Mapping[str, str]) -> KernelSignature:
    """How a Triton kernel with these parameters is launched, its two scratch pointers included."""
    letters = "".join(_LETTERS.get(kind, "p") for kind in types.values())
    return KernelSignature(name, "", letters + "pp", None)


class TritonLauncher:
    """Launches kernels that `load` compiles, each once for its constants."""

    def __init__(self, driver: Driver, load: KernelLoader) -> None:
        self._driver, self._load = driver, load
        self._kernels: dict[tuple[str, tuple[tuple[str, int], ...]], LoadedKernel] = {}

    def launch(self, stream: Stream, name: str, constants: Constants, grid: Grid, **args: int | float) -> None:
        """Arguments in the order of the kernel's parameters."""
        key = name, tuple(constants.items())
        if key not in self._kernels:
            self._kernels[key] = self._load(name, {argument: TYPES[argument] for argument in args}, constants)
        loaded = self._kernels[key]
        # Two more pointers: scratch memory that Triton's kernels may take, and these do not.
        self._driver.launch(stream, loaded.kernel, grid, loaded.threads, (*args.values(), 0, 0), loaded.shared)


def block_of(values: int) -> int:
    """The block of a kernel that holds so many values: a power of two, and at least what a tensor core takes."""
    return max(16, 1 << (values - 1).bit_length())
