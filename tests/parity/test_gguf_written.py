"""GGUF files of models with recurrent layers by a writer of our own, after the rules of llama.cpp's converter.

Names come from the gguf package; what is done to tensors is written out here once more, forwards.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file

from engine.files.conversion.convert import convert
from engine.files.ftw.opening import open_model

from .cases import CASES
from .codecs_numpy import pack_for_conversion
from .prepare import no_tokenizer, prepare
from .test_gguf_converter import assert_same

Floats = NDArray[np.float32]
Tensors = Mapping[str, Floats]
_EXPERT = re.compile(r"(.+\.experts)\.(\d+)\.(\w+)\.weight")


def common(config: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "block_count": config["num_hidden_layers"],
        "context_length": config.get("max_position_embeddings") or config["model_max_length"],
        "embedding_length": config["hidden_size"],
        "feed_forward_length": config["intermediate_size"],
        "attention.head_count": config["num_attention_heads"],
        "attention.layer_norm_rms_epsilon": config["rms_norm_eps"],
        "expert_count": config.get("num_experts") or config["num_local_experts"],
        "expert_used_count": config.get("num_experts_per_tok") or config["num_experts_per_token"],
        "expert_feed_forward_length": config["moe_intermediate_size"],
    }


def kimi_keys(config: Mapping[str, Any]) -> dict[str, Any]:
    kinds = config["layer_types"]
    return {
        **common(config),
        "attention.head_count_kv": [int(kind == "full_attention") for kind in kinds],
        "attention.kv_lora_rank": config["kv_lora_rank"],
        "attention.key_length": config["kv_lora_rank"] + config["qk_rope_head_dim"],
        "attention.key_length_mla": config["qk_nope_head_dim"] + config["qk_rope_head_dim"],
        "attention.value_length_mla": config["v_head_dim"],
        "rope.dimension_count": config["qk_rope_head_dim"],
        "ssm.conv_kernel": config["linear_conv_kernel_dim"],
        "kda.head_dim": config["linear_head_dim"],
        "expert_shared_count": config["num_shared_experts"],
        "leading_dense_block_count": config["mlp_layer_types"].count("dense"),
        "expert_weights_scale": config["routed_scaling_factor"],
    }


def kimi_tensors(tensors: Tensors, config: Mapping[str, Any]) -> Iterator[tuple[str, Floats]]:
    for name, values in tensors.items():
        if name.endswith("kv_b_proj.weight"):
            heads = values.reshape(config["num_attention_heads"], -1, config["kv_lora_rank"])
            nope = config["qk_nope_head_dim"]
            yield name.replace("kv_b", "k_b"), heads[:, :nope].swapaxes(1, 2)
            yield name.replace("kv_b", "v_b"), heads[:, nope:]
        elif "conv1d" in name:
            yield name, values.reshape(1, values.shape[0], 1, -1)
        else:
            yield re.sub(r"block_sparse_moe\.(\w+_proj)", r"mlp.\1", name), values


def qwen_keys(config: Mapping[str, Any]) -> dict[str, Any]:
    return {
        **common(config),
        "attention.head_count_kv": config["num_key_value_heads"],
        "attention.key_length": config["head_dim"],
        "rope.freq_base": config["rope_parameters"]["rope_theta"],
        "rope.dimension_count": int(config["head_dim"] * config["rope_parameters"]["partial_rotary_factor"]),
        "expert_shared_feed_forward_length": config["shared_expert_intermediate_size"],
        "ssm.conv_kernel": config["linear_conv_kernel_dim"],
        "ssm.state_size": config["linear_key_head_dim"],
        "ssm.group_count": config["linear_num_key_heads"],
        "ssm.time_step_rank": config["linear_num_value_heads"],
        "ssm.inner_size": config["linear_value_head_dim"] * config["linear_num_value_heads"],
    }


def qwen_tensors(tensors: Tensors, config: Mapping[str, Any]) -> Iterator[tuple[str, Floats]]:
    """Value head r of key head g moves from place g * R + r to r * G + g."""
    groups, heads = config["linear_num_key_heads"], config["linear_num_value_heads"]
    order = np.arange(heads).reshape(groups, -1).T.reshape(-1)
    assert (order != np.arange(heads)).any()

    def in_rounds(values: Floats, width: int) -> Floats:
        before = len(values) - heads * width
        return np.concatenate(
            [
                values[:before],
                values[before:].reshape(heads, width, -1)[order].reshape(heads * width, *values.shape[1:]),
            ]
        )

    width = config["linear_value_head_dim"]
    for name, values in tensors.items():
        if "linear_attn.in_proj_qkv" in name or "linear_attn.in_proj_z" in name:
            yield name, in_rounds(values, width)
        elif "conv1d" in name:
            yield name, in_rounds(values.squeeze(1), width)
        elif re.search(r"in_proj_[ab]\.|A_log|dt_bias", name):
            yield name, in_rounds(values, 1)
        elif "linear_attn.out_proj" in name:
            yield name, np.ascontiguousarray(in_rounds(np.ascontiguousarray(values.T), width).T)
        elif name.endswith("norm.weight") and "linear_attn" not in name:
            yield name, values + np.float32(1)
        else:
            yield name, values


def lfm2_keys(config: Mapping[str, Any]) -> dict[str, Any]:
    heads = config["num_key_value_heads"]
    return {
        **common({**config, "rms_norm_eps": config["norm_eps"]}),
        "attention.head_count_kv": [heads if kind == "full_attention" else 0 for kind in config["layer_types"]],
        "rope.freq_base": config["rope_parameters"]["rope_theta"],
        "leading_dense_block_count": config["num_dense_layers"],
        "expert_gating_func": 2,
        "shortconv.l_cache": config["conv_L_cache"],
    }


def lfm2_tensors(tensors: Tensors, _config: Mapping[str, Any]) -> Iterator[tuple[str, Floats]]:
    for name, values in tensors.items():
        mapped = name.removeprefix("model.") if ".experts." in name else name
        yield mapped.replace(".expert_bias", ".expert_bias.bias"), values.squeeze(1) if "conv.conv" in name else values


FILES = {
    "lfm2_moe": (gguf.MODEL_ARCH.LFM2MOE, lfm2_keys, lfm2_tensors),
    "kimi_linear": (gguf.MODEL_ARCH.KIMI_LINEAR, kimi_keys, kimi_tensors),
    "qwen3_5_moe": (gguf.MODEL_ARCH.QWEN35MOE, qwen_keys, qwen_tensors),
}


SETTINGS = {"lfm2_moe": {"tie_word_embeddings": True}}  # files of this architecture have no other head


def write(path: Path, checkpoint: Path, name: str) -> None:
    """The f32 checkpoint as a GGUF file: experts stacked, a decay as -exp of its logarithm."""
    kind, keys, changed = FILES[name]
    config = json.loads((checkpoint / "config.json").read_text())
    writer = gguf.GGUFWriter(path, gguf.MODEL_ARCH_NAMES[kind])
    for key, value in keys(config).items():
        full = f"{gguf.MODEL_ARCH_NAMES[kind]}.{key}"
        if isinstance(value, list):
            writer.add_array(full, value)
        elif isinstance(value, float):
            writer.add_float32(full, value)
        else:
            writer.add_uint32(full, value)
    names = gguf.get_tensor_name_map(kind, config["num_hidden_layers"])
    experts: dict[str, dict[int, Floats]] = {}
    stored: dict[str, Floats] = {}
    for tensor, values in changed(load_file(checkpoint / "model.safetensors"), config):
        match = _EXPERT.fullmatch(tensor)
        if match:
            experts.setdefault(f"{match[1]}.{match[3]}.weight", {})[int(match[2])] = values
        elif tensor.endswith("A_log"):
            stored[tensor] = -np.exp(values)
        else:
            renamed = tensor.replace(".dt_bias", ".dt_proj.bias")
            stored[renamed.replace("e_score_correction_bias", "e_score_correction.bias")] = values
    stored |= {tensor: np.stack([parts[i] for i in range(len(parts))]) for tensor, parts in experts.items()}
    for tensor, values in stored.items():
        mapped = names.get_name(tensor, try_suffixes=(".weight", ".bias"))
        assert mapped is not None, tensor
        writer.add_tensor(mapped, np.ascontiguousarray(values))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.mark.parametrize("name", FILES)
def test_the_file_becomes_the_same_model(tmp_path: Path, name: str) -> None:
    case = next(case for case in CASES if case.name == name)
    model = prepare(replace(case, settings={**case.settings, **SETTINGS.get(name, {})}), tmp_path / "made")
    write(tmp_path / "m.gguf", model.checkpoint, name)
    convert(tmp_path / "m.gguf", tmp_path / "m", write_tokenizer=no_tokenizer, pack=pack_for_conversion)
    assert_same(open_model(tmp_path / "m"), model.ftw, {})
