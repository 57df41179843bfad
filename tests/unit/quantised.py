"""Quantised checkpoints written for tests, and what our readers make of them, down to the values that kernels see."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

from engine import _native
from engine.files.codecs import CODECS, FORMS
from engine.files.sources.safetensors.folder import open_folder
from engine.files.sources.tensors import SourceTensor, row_count

Tensors = Mapping[str, torch.Tensor]


def presented(
    folder: Path, *shards: Tensors, quantization: Mapping[str, Any] | None = None
) -> Mapping[str, SourceTensor]:
    """The tensors of a model folder whose files hold `shards`."""
    write_quantised(folder, shards, {"quantization_config": dict(quantization)} if quantization else {})
    return open_folder(folder).tensors


def write_quantised(folder: Path, shards: Sequence[Tensors], config: Mapping[str, Any]) -> None:
    """A model folder with an index and a safetensors file for each of `shards`."""
    index = {}
    for number, tensors in enumerate(shards):
        save_file(dict(tensors), folder / f"{number}.safetensors")
        index |= dict.fromkeys(tensors, f"{number}.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    (folder / "config.json").write_text(json.dumps(config))


def values(tensor: SourceTensor) -> torch.Tensor:
    """Every value of a tensor [rows, cols], after packing and unpacking by the native module."""
    rows, cols = row_count(tensor), tensor.shape[-1]
    codec = FORMS[tensor.form].codec
    packed = np.zeros(CODECS[codec].packed_bytes(rows, cols), np.uint8)
    _native.pack_rows(tensor.form, tensor.read(0, rows), cols, packed, CODECS[codec].tile_bytes(cols))
    return torch.from_numpy(_native.unpack(codec, rows, cols, packed))


def random_fp8(*shape: int, seed: int = 0) -> torch.Tensor:
    """Every finite e4m3fn value, both zeros among them."""
    codes = torch.randint(0, 254, shape, generator=torch.Generator().manual_seed(seed)).to(torch.uint8)
    return torch.where(codes >= 127, codes + 1, codes).view(torch.float8_e4m3fn)


def random_bytes(*shape: int, low: int = 0, high: int = 256, seed: int = 0) -> torch.Tensor:
    return torch.randint(low, high, shape, generator=torch.Generator().manual_seed(seed)).to(torch.uint8)


def random_scales(*shape: int, seed: int = 0) -> torch.Tensor:
    """Scales as calibration finds them: positive, within a few powers of two."""
    return torch.exp2(torch.randn(shape, generator=torch.Generator().manual_seed(seed)) - 5)


def random_weights(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))
