"""Matrices of 4-bit integers in groups, written as GPTQ, AWQ and compressed-tensors write them, and read by hand.

Writers move whole arrays, readers take one value at a time from the formats' descriptions: neither knows the other.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Tensors = dict[str, torch.Tensor]

AWQ_OUTPUTS = (0, 2, 4, 6, 1, 3, 5, 7)  # of nibbles, the lowest first


@dataclass(frozen=True)
class Grouped:
    """A matrix [out, in]: codes, a scale and a zero point for every row and group, and the group of every column."""

    codes: Ints
    scales: torch.Tensor  # [out, groups]
    zeros: Ints  # [out, groups]
    index: Ints  # [in]

    @property
    def values(self) -> torch.Tensor:
        """In f32, which holds every value exactly."""
        scales = self.scales.float()[:, self.index]
        return scales * torch.from_numpy((self.codes - self.zeros[:, self.index]).astype(np.float32))

    @property
    def order(self) -> Ints:
        return np.argsort(self.index, kind="stable")


def random_grouped(
    rows: int,
    cols: int,
    group: int,
    *,
    symmetric: bool = False,
    moved: bool = False,
    lowest_zero: int = 0,
    dtype: torch.dtype = torch.float16,
    seed: int = 0,
) -> Grouped:
    """Every code, every zero point from `lowest_zero` to 15 (or 8 alone), scales over several powers of two."""
    random = np.random.default_rng(seed)
    groups = -(-cols // group)
    index = np.arange(cols) // group
    zeros = np.full((rows, groups), 8) if symmetric else random.integers(lowest_zero, 16, (rows, groups))
    scales = torch.from_numpy(np.exp2(random.normal(size=(rows, groups)) - 6)).to(dtype)
    return Grouped(random.integers(0, 16, (rows, cols)), scales, zeros, random.permutation(index) if moved else index)


# --- writers ---------------------------------------------------------------------------------------------------------


def words(nibbles: Ints, places: tuple[int, ...] = tuple(range(8))) -> torch.Tensor:
    """Nibbles [.., n] to words I32 [.., n / 8]: nibble i of a word is value `places[i]` of its eight."""
    eights = nibbles.reshape(*nibbles.shape[:-1], -1, 8)[..., list(places)].astype(np.uint64)
    packed = (eights << (4 * np.arange(8, dtype=np.uint64))).sum(-1).astype(np.uint32)
    return torch.from_numpy(np.ascontiguousarray(packed).view(np.int32))


def as_gptq(matrix: Grouped, *, version: str = "gptq", prefix: str = "l.") -> Tensors:
    stored = matrix.zeros.T - (1 if version == "gptq" else 0)
    return {
        f"{prefix}qweight": words(matrix.codes).T.contiguous(),
        f"{prefix}qzeros": words(stored),
        f"{prefix}scales": matrix.scales.T.contiguous(),
        f"{prefix}g_idx": torch.from_numpy(matrix.index.astype(np.int32)),
    }


def as_awq(matrix: Grouped, *, prefix: str = "l.") -> Tensors:
    return {
        f"{prefix}qweight": words(matrix.codes.T, AWQ_OUTPUTS),
        f"{prefix}qzeros": words(matrix.zeros.T, AWQ_OUTPUTS),
        f"{prefix}scales": matrix.scales.T.contiguous(),
    }


def as_packed(matrix: Grouped, *, symmetric: bool, moved: bool = False, prefix: str = "l.") -> Tensors:
    """As compressed-tensors does since it packs zero points too."""
    rows, cols = matrix.codes.shape
    tensors = {
        f"{prefix}weight_packed": words(matrix.codes),
        f"{prefix}weight_scale": matrix.scales,
        f"{prefix}weight_shape": torch.tensor([rows, cols]),
    }
    if not symmetric:
        padded = np.pad(matrix.zeros, ((0, -rows % 8), (0, 0)))
        tensors[f"{prefix}weight_zero_point"] = words(padded.T).T.contiguous()
    if moved:
        tensors[f"{prefix}weight_g_idx"] = torch.from_numpy(matrix.index.astype(np.int32))
    return tensors


# --- readers ---------------------------------------------------------------------------------------------------------


def nibble(word: int, place: int) -> int:
    return (word % 2**32) // 16**place % 16


def gptq_by_hand(tensors: Tensors, less_one: int) -> torch.Tensor:
    """W[o, i] = scale * (code - zero): one output and input at a time."""
    qweight, qzeros = (tensors[f"l.{name}"].tolist() for name in ("qweight", "qzeros"))
    scales, index = tensors["l.scales"].float().tolist(), tensors["l.g_idx"].tolist()
    out = torch.empty(len(scales[0]), len(index))
    for i, group in enumerate(index):
        for o in range(len(out)):
            code = nibble(qweight[i // 8][o], i % 8)
            zero = nibble(qzeros[group][o // 8], o % 8) + less_one
            out[o, i] = scales[group][o] * (code - zero)
    return out


def awq_by_hand(tensors: Tensors, group: int) -> torch.Tensor:
    """The same from words of outputs: output o of eight lies in the nibble whose turn in 0 2 4 6 1 3 5 7 it is."""
    qweight, qzeros = (tensors[f"l.{name}"].tolist() for name in ("qweight", "qzeros"))
    scales = tensors["l.scales"].float().tolist()
    out = torch.empty(len(scales[0]), len(qweight))
    for i, line in enumerate(qweight):
        for o in range(len(out)):
            place = [0, 4, 1, 5, 2, 6, 3, 7][o % 8]
            code, zero = nibble(line[o // 8], place), nibble(qzeros[i // group][o // 8], place)
            out[o, i] = scales[i // group][o] * (code - zero)
    return out
