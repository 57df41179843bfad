"""The generator of random models: transformers accepts each family, and both forms hold the same numbers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.bench import kquants
from tests.bench import random_moe as generator
from tests.bench.families import FAMILIES
from tests.bench.random_moe import Codecs, interleave_rotary_halves
from tests.bench.shapes import Experts, Shape, tensors

TINY = Shape(
    layers=2, hidden=64, heads=4, kv_heads=2, head_dim=16, experts=8, top_k=2, intermediate=32, context=128, vocab=256
)
WIDE = replace(TINY, hidden=256, intermediate=256)  # whole blocks of 256


def random_moe(family: str, shape: Shape, codecs: Codecs, **where: Any) -> None:
    generator.random_moe(family, shape, codecs, tokenizer=False, **where)


def load_folder(folder: Path) -> dict[str, torch.Tensor]:
    return {name: value for shard in sorted(folder.glob("*.safetensors")) for name, value in load_file(shard).items()}


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_transformers_takes_every_tensor_and_needs_no_other(family: str, tmp_path: Path) -> None:
    random_moe(family, TINY, Codecs("f32", "f32", "f32"), hf=tmp_path)
    model, report = AutoModelForCausalLM.from_pretrained(tmp_path, output_loading_info=True, dtype=torch.float32)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    assert not report["mismatched_keys"]
    with torch.no_grad():
        logits = model(torch.tensor([[5, 17, 33, 101]])).logits
    assert torch.isfinite(logits).all()
    assert logits.std() > 0.1


@pytest.mark.parametrize("codec", sorted(set(generator.CODECS) - {"f32", "bf16"}))
@pytest.mark.parametrize("family", ["qwen3_moe", "mixtral"])
def test_gguf_and_safetensors_hold_the_same_numbers(family: str, codec: str, tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    shape = WIDE if codec.endswith("_k") or codec == "iq4_xs" else TINY
    random_moe(family, shape, Codecs(codec), hf=tmp_path / "hf", gguf_file=file)
    values = load_folder(tmp_path / "hf")
    stored = {t.name: gguf.dequantize(t.data, t.tensor_type) for t in gguf.GGUFReader(file).tensors}
    seen = set()
    for layer, tensor in tensors(FAMILIES[family], shape):
        name = tensor.gguf if layer < 0 else f"blk.{layer}.{tensor.gguf}"
        if isinstance(tensor, Experts):
            expected = np.stack([values[tensor.name.format(e=e)].numpy() for e in range(tensor.count)])
        else:
            expected = values[tensor.name].numpy()
            if tensor.rotary_heads:
                expected = interleave_rotary_halves(expected, tensor.rotary_heads)
        assert np.array_equal(stored[name].reshape(expected.shape), expected), name
        seen.add(name)
    assert seen == set(stored)


def test_mixtral_rows_are_permuted_and_not_by_accident(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    random_moe("mixtral", TINY, Codecs("f32", "f32", "f32"), hf=tmp_path / "hf", gguf_file=file)
    key = load_folder(tmp_path / "hf")["model.layers.0.self_attn.k_proj.weight"].numpy()
    stored = next(t.data for t in gguf.GGUFReader(file).tensors if t.name == "blk.0.attn_k.weight")
    assert not np.array_equal(stored, key)
    assert np.array_equal(stored[1], key[8])  # the second row is the first of the other half


def test_a_tensor_does_not_depend_on_what_else_is_written(tmp_path: Path) -> None:
    random_moe("qwen3_moe", TINY, Codecs("f32", "f32", "f32"), hf=tmp_path / "two", seed=3)
    random_moe(
        "qwen3_moe", Shape(**{**vars(TINY), "layers": 1}), Codecs("q4_0", "f32", "f32"), hf=tmp_path / "one", seed=3
    )
    name = "model.layers.0.self_attn.q_proj.weight"
    assert torch.equal(load_folder(tmp_path / "two")[name], load_folder(tmp_path / "one")[name])
    random_moe("qwen3_moe", TINY, Codecs("f32", "f32", "f32"), hf=tmp_path / "other", seed=4)
    assert not torch.equal(load_folder(tmp_path / "two")[name], load_folder(tmp_path / "other")[name])


def test_a_dtype_that_would_round_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="without rounding"):
        random_moe("qwen3_moe", TINY, Codecs("q4_0"), hf=tmp_path, dtype="bf16")


@pytest.mark.long
def test_both_forms_carry_the_tokenizer(tmp_path: Path) -> None:
    shape = Shape(**{**vars(TINY), "layers": 1, "hidden": 32, "vocab": 49152})
    file = tmp_path / "model.gguf"
    generator.random_moe("qwen3_moe", shape, Codecs("f32", "f32", "f16"), hf=tmp_path, gguf_file=file)
    names = gguf.GGUFReader(file).fields
    assert len(names["tokenizer.ggml.tokens"].data) == 49152
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    assert tokenizer.decode(tokenizer("Paris is a city.")["input_ids"]) == "Paris is a city."


@pytest.mark.parametrize("change", [{"layers": 0}, {"top_k": 9}, {"heads": 3}])
def test_shapes_that_cannot_be_are_refused(change: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=r"must be|more than|cannot share"):
        Shape(**{**vars(TINY), **change})


@pytest.mark.parametrize(
    ("codec", "error"),
    [("q2_k", 0.4), ("q3_k", 0.22), ("q4_k", 0.09), ("q5_k", 0.05), ("q6_k", 0.025), ("iq4_nl", 0.1), ("iq4_xs", 0.1)],
)
def test_our_encoders_of_codecs_that_gguf_only_reads_are_near(codec: str, error: float) -> None:
    values = generator.draw(0, codec, (64, 512), 0.02)
    values[3] = 0
    kind = generator.CODECS[codec]
    decoded = gguf.dequantize(kquants.quantize(values, kind), kind)
    assert np.sqrt(((decoded - values) ** 2).sum() / (values**2).sum()) < error
    assert not decoded[3].any()
