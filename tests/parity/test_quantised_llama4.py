"""Llama 4 in 8 bits as compressed-tensors publishes it: experts one by one, of which transformers' own are fused."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.files.conversion.convert import convert
from engine.files.ftw.opening import open_model

from .cases.case import Case
from .cases.quantised import QUANTISED
from .check import TOLERANCE, differences, greedy
from .codecs_numpy import pack_for_conversion
from .layout_weights import LayoutWeights
from .prepare import Prepared, no_tokenizer
from .tiny import build, open_truth
from .vendors import FP8_ROWS, Tensors, compressed

SIZES = {"hidden_size": 256, "intermediate_size": 128, "intermediate_size_mlp": 128}
CASE = Case(
    "llama4-quantised",
    "llama4_text",
    {**QUANTISED, **SIZES, "num_local_experts": 6, "num_experts_per_tok": 1, "attention_chunk_size": 14},
)


def quantise_experts(name: str, values: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    """The stored tensors of a layer's fused matrices [E, in, out], and those with the values read back."""
    stem, fused = name.rsplit(".", 1)
    parts = {"gate_proj": 0, "up_proj": 1} if fused == "gate_up_proj" else {"down_proj": 0}
    stored: Tensors = {}
    read_back = torch.empty_like(values)
    for part, place in parts.items():
        for expert, matrix in enumerate(values.chunk(len(parts), -1)[place]):
            kept, exact = FP8_ROWS(f"{stem}.{expert}.{part}.weight", matrix.T.contiguous())
            stored |= kept
            read_back[expert].chunk(len(parts), -1)[place].copy_(exact.T)
    return stored, read_back


def publish(twin: Path, dest: Path) -> None:
    """Writes the f32 checkpoint `twin` to `dest`, quantised, and puts the values read back into `twin`."""
    exact = load_file(twin / "model.safetensors")
    stored: Tensors = {}
    for name, values in exact.items():
        if re.search(r"\.experts\.\w+$", name):
            tensors, exact[name] = quantise_experts(name, values)
        elif re.search(r"\.shared_expert\.\w+\.weight$", name):
            tensors, exact[name] = FP8_ROWS(name, values)
        else:
            tensors = {name: values}
        stored |= tensors
    dest.mkdir()
    save_file(exact, twin / "model.safetensors", metadata={"format": "pt"})
    save_file(stored, dest / "model.safetensors", metadata={"format": "pt"})
    quantization = {"quantization_config": compressed("float-quantized", FP8_ROWS)}
    config = json.loads((twin / "config.json").read_text()) | quantization
    (dest / "config.json").write_text(json.dumps(config))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    folder = tmp_path_factory.mktemp("llama4")
    twin = folder / "twin"
    build(CASE, twin)
    publish(twin, folder / "published")
    convert(folder / "published", folder / "m", write_tokenizer=no_tokenizer, pack=pack_for_conversion)
    return Prepared(twin, open_truth(twin), LayoutWeights(twin), open_model(folder / "m"))


def test_experts_stay_in_8_bits(model: Prepared) -> None:
    fields = [field for field in model.ftw.banks[0].fields if not field.shape.vector]
    assert {field.name: field.shape.codec for field in fields} == {"gate_up": "fp8", "down": "fp8"}
    assert {model.ftw.dense[f"layers.0.shared.{name}"].codec for name in ("gate", "up", "down")} == {"fp8"}


def test_the_reference_agrees_with_the_dequantised_twin(model: Prepared) -> None:
    worst = max(differences(model.reference(), model.truth), key=lambda found: found.share)
    assert worst.share <= TOLERANCE, worst
    assert greedy(model.reference(), model.truth) == model.truth.greedy
