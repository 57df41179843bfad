"""Models of 4-bit integers in groups, as GPTQ, AWQ and compressed-tensors publish them, rounded to the nearest."""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from tests.unit.int4_layouts import Grouped, as_awq, as_gptq, as_packed

from .vendors import Tensors, Vendor

LINEARS = r"\.(experts\.\d+|self_attn)\.[a-z]+_proj\.weight$"
EXPERTS = r"\.experts\.\d+\.[a-z]+_proj\.weight$"


def round_to_groups(
    values: torch.Tensor, index: np.ndarray, *, symmetric: bool, dtype: torch.dtype, lowest_zero: int = 0
) -> Grouped:
    """The nearest codes under a scale and a zero point for the columns of each group of `index`."""
    rows, groups = len(values), int(index.max()) + 1
    scales = torch.empty(rows, groups)
    zeros = np.full((rows, groups), 8)
    for group in range(groups):
        columns = values[:, torch.from_numpy(index == group)]
        low, high = columns.amin(1).clamp(max=0), columns.amax(1).clamp(min=0)
        span = 2 * torch.maximum(-low, high) / 15 if symmetric else (high - low) / 15
        scales[:, group] = span.clamp(min=1e-6)
        if not symmetric:
            zeros[:, group] = (-low / scales[:, group]).round().clamp(lowest_zero, 15).numpy()
    scales = scales.to(dtype)
    spread, zero = scales.float()[:, index], torch.from_numpy(zeros[:, index])
    codes = ((values / spread).round() + zero).clamp(0, 15)
    return Grouped(codes.long().numpy(), scales, zeros, index)


@dataclass(frozen=True)
class Int4:
    """One layout with its settings. With `moved`, columns belong to groups in a random order.

    Every matrix has an order of its own, except that gate and up of an even expert share one, as they do where both
    saw the same inputs. `biased`: with a bias of zeros for every matrix, as some wrote them.
    """

    layout: str  # gptq, gptq_v2, awq, packed
    group: int
    symmetric: bool = False
    moved: bool = False
    dtype: torch.dtype = torch.float16
    biased: bool = False

    def __call__(self, name: str, values: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
        cols = values.shape[1]
        index = np.arange(cols) // min(self.group, cols)
        if self.moved:
            shared = re.sub(r"(experts\.\d*[02468])\.(gate|up)_proj", r"\1.inputs", name)
            index = np.random.default_rng(zlib.crc32(shared.encode())).permutation(index)
        matrix = round_to_groups(
            values,
            index,
            symmetric=self.symmetric,
            dtype=self.dtype,
            lowest_zero=1 if self.layout == "gptq" else 0,
        )
        stem = name.removesuffix("weight")
        biases = {f"{stem}bias": torch.zeros(len(values), dtype=self.dtype)} if self.biased else {}
        return self._stored(matrix, stem) | biases, matrix.values

    def _stored(self, matrix: Grouped, stem: str) -> Tensors:
        match self.layout:
            case "awq":
                return as_awq(matrix, prefix=stem)
            case "packed":
                return as_packed(matrix, symmetric=self.symmetric, moved=self.moved, prefix=stem)
            case _:
                return as_gptq(matrix, version=self.layout, prefix=stem)

    @property
    def config(self) -> Mapping[str, Any]:
        if self.layout == "awq":
            return {"quant_method": "awq", "bits": 4, "group_size": self.group, "zero_point": True, "version": "gemm"}
        if self.layout == "packed":
            weights = {"num_bits": 4, "type": "int", "symmetric": self.symmetric, "group_size": self.group}
            return {"quant_method": "compressed-tensors", "config_groups": {"group_0": {"weights": weights}}}
        return {
            "quant_method": "gptq",
            "bits": 4,
            "group_size": self.group,
            "desc_act": self.moved,
            "sym": self.symmetric,
            "checkpoint_format": self.layout,
        }

    @property
    def vendor(self) -> Vendor:
        return Vendor(self.config, LINEARS, self)


INT4: Mapping[str, tuple[Int4, str]] = {  # and the codec that the experts get
    "gptq-128": (Int4("gptq", 128, symmetric=True, biased=True), "int4_128z"),
    "gptq-64-moved": (Int4("gptq", 64, symmetric=True, moved=True), "int4_32"),
    "gptq-32-asymmetric-moved": (Int4("gptq_v2", 32, moved=True), "int4_32z"),
    "gptq-128-asymmetric-moved": (Int4("gptq", 128, moved=True), "int4_128z"),
    "awq-128": (Int4("awq", 128), "int4_128z"),
    "awq-64": (Int4("awq", 64), "int4_32z"),
    "packed-32": (Int4("packed", 32, symmetric=True, dtype=torch.bfloat16), "int4_32"),
    "packed-64-asymmetric-moved": (Int4("packed", 64, moved=True), "int4_32z"),
}

# As in vendors.py: by family and the codec that the experts' layout becomes.
INT4_VENDORS: Mapping[tuple[str, str], Vendor] = {
    ("qwen3_moe", "int4_32"): INT4["packed-32"][0].vendor,
    ("qwen3_moe", "int4_32z"): INT4["awq-64"][0].vendor,
    ("qwen3_moe", "int4_128z"): INT4["gptq-128"][0].vendor,
    ("deepseek_v3", "int4_32"): Vendor(INT4["packed-32"][0].config, EXPERTS, INT4["packed-32"][0]),
}
