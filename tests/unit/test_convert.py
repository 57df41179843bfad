"""Conversion: what comes out is what went in."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM

from engine.base.progress import silent
from engine.files.conversion.convert import convert
from engine.files.conversion.job import Recipe
from engine.files.ftw.opening import open_model
from engine.files.ftw.verify import verify
from tests.parity.codecs_numpy import pack
from tests.unit.checkpoints import MIXTRAL, write_folder, write_mixtral_gguf, write_sharded_folder
from tests.unit.converting import run
from tests.unit.gguf_twin import write_gguf


def expected_record(raw: Mapping[str, tuple[str, np.ndarray]], layer: int, expert: int, record_bytes: int) -> bytes:
    """A mixtral record from codec and raw rows by name, as docs/ftw.md describes it."""
    prefix = f"model.layers.{layer}.block_sparse_moe.experts.{expert}."
    packed = {}
    for name in ("w1", "w2", "w3"):
        codec, rows = raw[f"{prefix}{name}.weight"]
        packed[name] = pack(codec, rows, MIXTRAL["intermediate_size" if name == "w2" else "hidden_size"])
    turns = np.stack([packed["w1"], packed["w3"]], axis=1)
    return (turns.tobytes() + packed["w2"].tobytes()).ljust(record_bytes, b"\0")


@pytest.mark.parametrize(("dtype", "codec"), [(torch.float32, "f32"), (torch.float16, "f16"), (torch.bfloat16, "bf16")])
def test_safetensors_keep_every_bit(tmp_path: Path, tensors: dict, dtype: torch.dtype, codec: str) -> None:
    source = write_folder(tmp_path / "source", {})
    saved = {name: torch.from_numpy(values).to(dtype) for name, values in tensors.items()}
    save_file(saved, source / "model.safetensors")
    model = run(source, tmp_path / "dest")
    raw = {name: (codec, t.reshape(-1, t.shape[-1]).view(torch.uint8).numpy()) for name, t in saved.items()}
    for index in range(model.banks[0].count):
        record = bytes(model.banks[0].record(index))
        assert record == expected_record(raw, *divmod(index, 4), model.banks[0].record_bytes)
    query = model.dense["layers.1.attn.q"]
    packed = pack(codec, raw["model.layers.1.self_attn.q_proj.weight"][1], 64)
    assert (query.codec, bytes(query.data)) == (codec, packed.tobytes())
    norm = np.frombuffer(model.dense["layers.0.attn_norm"].data, np.float32)
    assert (norm == saved["model.layers.0.input_layernorm.weight"].float().numpy()).all()


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "Q4_0", "Q4_1", "Q8_0", "MXFP4"])
def test_gguf_keeps_every_bit(tmp_path: Path, tensors: dict, kind: str) -> None:
    quantization = gguf.GGMLQuantizationType[kind]
    model = run(write_mixtral_gguf(tmp_path / "m.gguf", tensors, quantization), tmp_path / "dest")
    raw = {
        name: (kind.lower(), gguf.quantize(values, quantization).view(np.uint8).reshape(len(values), -1))
        for name, values in tensors.items()
        if values.ndim == 2
    }
    for index in range(model.banks[0].count):
        record = bytes(model.banks[0].record(index))
        assert record == expected_record(raw, *divmod(index, 4), model.banks[0].record_bytes)
    assert json.loads((tmp_path / "dest" / "tokenizer.json").read_text())[3] == "token3"


SIZES = {
    "vocab_size": 96, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 96, "max_position_embeddings": 512, "tie_word_embeddings": False, "head_dim": 16,
    "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
}  # fmt: skip
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2}
LOCAL_EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
YARN = {"rope_type": "yarn", "rope_theta": 5000.0, "factor": 8.0, "original_max_position_embeddings": 64}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"rope_parameters": {"rope_type": "linear", "rope_theta": 5000.0, "factor": 4.0}},
    "llama biased": {"attention_bias": True},
    "llama tied": {"tie_word_embeddings": True},
    "mixtral": {**LOCAL_EXPERTS, "sliding_window": None},
    "qwen2": {"rope_parameters": YARN},
    "qwen2_moe": {**EXPERTS, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 64},
    "qwen3": {},
    "qwen3_moe": {**EXPERTS, "moe_intermediate_size": 32, "norm_topk_prob": True},
    "olmoe": EXPERTS,
    "granitemoe": {**LOCAL_EXPERTS, "embedding_multiplier": 3.0, "residual_multiplier": 0.5, "logits_scaling": 4.0},
    "gpt_oss": {**LOCAL_EXPERTS, "sliding_window": 12, "rope_parameters": {**YARN, "truncate": False}},
}


@pytest.mark.parametrize("case", FAMILIES)
def test_safetensors_and_gguf_of_one_model_give_the_same_files(tmp_path: Path, case: str) -> None:
    config = AutoConfig.for_model(case.split()[0], **SIZES | FAMILIES[case])
    model = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for number, parameter in enumerate(model.parameters()):
            parameter.copy_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(number)))
    model.save_pretrained(tmp_path / "hf")
    saved_config = json.loads((tmp_path / "hf" / "config.json").read_text())
    from_folder = run(tmp_path / "hf", tmp_path / "a")
    source = write_gguf(tmp_path / "hf", saved_config, tmp_path / "m.gguf")
    convert(source, tmp_path / "b", write_tokenizer=lambda metadata, folder: None)
    from_file = open_model(tmp_path / "b")
    assert from_file.spec == from_folder.spec
    assert from_file.dense.keys() == from_folder.dense.keys()
    for name, tensor in from_folder.dense.items():
        assert from_file.dense[name].data == tensor.data, name
    for bank, other in zip(from_folder.banks, from_file.banks, strict=True):
        assert bank.fields == other.fields
        assert bank.shards == other.shards


def test_shards_or_one_file_make_no_difference(tmp_path: Path, tensors: dict, source: Path) -> None:
    run(source, tmp_path / "a")
    run(write_sharded_folder(tmp_path / "sharded", tensors, 3), tmp_path / "b")
    for name in ("dense.safetensors", "experts-0-0.bank"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_companions_go_along_and_the_result_verifies(tmp_path: Path, source: Path) -> None:
    (source / "chat_template.jinja").write_text("{{ messages }}")
    (source / "generation_config.json").write_text('{"temperature": 0.6}')
    (source / "additional_chat_templates").mkdir()
    (source / "additional_chat_templates" / "tool_use.jinja").write_text("{{ tools }}")
    model = run(source, tmp_path / "dest", recipe=Recipe(sampling={"temperature": 0.1}))
    for name in ("chat_template.jinja", "generation_config.json", "tokenizer.json"):
        assert (model.folder / name).read_bytes() == (source / name).read_bytes()
        assert name in model.manifest.files
    assert (model.folder / "chat_template.tool_use.jinja").read_text() == "{{ tools }}"
    assert json.loads((model.folder / "config.json").read_text()) == MIXTRAL
    assert verify(model.folder, silent).problems == ()


def test_sampling_is_noted_where_the_source_says_nothing(tmp_path: Path, source: Path) -> None:
    model = run(source, tmp_path / "dest", recipe=Recipe(sampling={"temperature": 0.1}))
    assert json.loads((model.folder / "generation_config.json").read_text()) == {"temperature": 0.1}


def test_progress_reaches_the_total(tmp_path: Path, source: Path) -> None:
    seen: list[tuple[int, int]] = []
    run(source, tmp_path / "dest", progress=lambda done, total: seen.append((done, total)))
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert seen[-1][0] == seen[-1][1]
    weights = [path for path in (tmp_path / "dest").iterdir() if path.suffix in (".bank", ".safetensors")]
    assert seen[-1][1] == sum(path.stat().st_size for path in weights)
