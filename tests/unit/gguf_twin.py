"""A Hugging Face checkpoint as a GGUF file, by the name map of the gguf package and the rules of llama.cpp's converter.

Independent of `engine/files`: names come from `gguf.get_tensor_name_map`, metadata keys from `gguf.GGUFWriter`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from safetensors.numpy import load_file

from tests.unit.checkpoints import Values, permuted_for_gguf

ARCHITECTURES = {
    "llama": gguf.MODEL_ARCH.LLAMA,
    "mixtral": gguf.MODEL_ARCH.LLAMA,
    "qwen2": gguf.MODEL_ARCH.QWEN2,
    "qwen2_moe": gguf.MODEL_ARCH.QWEN2MOE,
    "qwen3": gguf.MODEL_ARCH.QWEN3,
    "qwen3_moe": gguf.MODEL_ARCH.QWEN3MOE,
    "olmoe": gguf.MODEL_ARCH.OLMOE,
    "granitemoe": gguf.MODEL_ARCH.GRANITE_MOE,
    "gpt_oss": gguf.MODEL_ARCH.GPT_OSS,
}
PERMUTED = ("llama", "mixtral", "granitemoe")
_EXPERT = re.compile(r"(model\.layers\.\d+\.(?:mlp|block_sparse_moe)\.experts)\.(\d+)\.(\w+\.(?:weight|bias))")


def write_gguf(folder: Path, config: Mapping[str, Any], path: Path) -> Path:
    """The f32 checkpoint in `folder`, whose config is `config`, as a GGUF file at `path`."""
    family = config["model_type"]
    writer = gguf.GGUFWriter(path, gguf.MODEL_ARCH_NAMES[ARCHITECTURES[family]])
    _add_metadata(writer, config)
    names = gguf.get_tensor_name_map(ARCHITECTURES[family], config["num_hidden_layers"])
    for name, values in _merged(family, load_file(folder / "model.safetensors"), config).items():
        mapped = names.get_name(name, try_suffixes=(".weight", ".bias"))
        if mapped is None:
            raise AssertionError(f"the gguf package has no name for {name}")
        if mapped.endswith("ffn_gate_inp_shexp.weight"):
            values = values.reshape(-1)
        writer.add_tensor(mapped, np.ascontiguousarray(values))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add_metadata(writer: gguf.GGUFWriter, config: Mapping[str, Any]) -> None:
    family = config["model_type"]
    heads = config["num_attention_heads"]
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config.get("head_dim") or config["hidden_size"] // heads)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_context_length(config["max_position_embeddings"])
    rope = config["rope_parameters"]
    writer.add_rope_freq_base(rope["rope_theta"])
    if rope["rope_type"] == "yarn":
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(rope["factor"])
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    if rope["rope_type"] == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope["factor"])
    experts = config.get("num_experts") or config.get("num_local_experts")
    if experts:
        writer.add_expert_count(experts)
        writer.add_expert_used_count(config["num_experts_per_tok"])
    if "moe_intermediate_size" in config:
        writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
    if "shared_expert_intermediate_size" in config:
        writer.add_expert_shared_feed_forward_length(config["shared_expert_intermediate_size"])
    if family == "gpt_oss":
        writer.add_expert_feed_forward_length(config["intermediate_size"])
        writer.add_sliding_window(config["sliding_window"])
    if family == "granitemoe":
        writer.add_attention_scale(config["attention_multiplier"])
        writer.add_embedding_scale(config["embedding_multiplier"])
        writer.add_residual_scale(config["residual_multiplier"])
        writer.add_logit_scale(config["logits_scaling"])


def _merged(family: str, tensors: Mapping[str, Values], config: Mapping[str, Any]) -> dict[str, Values]:
    """The tensors as the converter hands them to the name map: experts fused, q and k permuted, gpt-oss untangled."""
    merged: dict[str, Values] = {}
    experts: dict[str, dict[int, Values]] = {}
    for name, values in tensors.items():
        match = _EXPERT.fullmatch(name)
        if match:
            experts.setdefault(f"{match[1]}.{match[3]}", {})[int(match[2])] = values
        elif family in PERMUTED and re.search(r"[qk]_proj\.(weight|bias)$", name):
            heads = config["num_attention_heads" if "q_proj" in name else "num_key_value_heads"]
            merged[name] = permuted_for_gguf(values, heads)
        elif name.endswith(".sinks"):
            merged[f"{name}.weight"] = values
        elif family == "gpt_oss" and ".experts." in name:
            merged |= _gpt_oss_experts(name, values)
        elif family == "granitemoe" and "input_linear" in name:
            half = values.shape[1] // 2
            prefix = name.removesuffix("input_linear.weight")
            merged[f"{prefix}experts.w1.weight"] = values[:, :half]
            merged[f"{prefix}experts.w3.weight"] = values[:, half:]
        else:
            merged[name] = values
    for name, parts in experts.items():
        merged[name] = np.stack([parts[index] for index in range(len(parts))])
    return merged


def _gpt_oss_experts(name: str, values: Values) -> dict[str, Values]:
    """Gate and up apart, matrices as [out, in]."""
    prefix, kind = name.rsplit(".", 1)
    suffix = "bias" if kind.endswith("_bias") else "weight"
    rows = values if suffix == "bias" else values.swapaxes(1, 2)
    if kind.startswith("down"):
        return {f"{prefix}.down_proj.{suffix}": rows}
    return {f"{prefix}.gate_proj.{suffix}": rows[:, ::2], f"{prefix}.up_proj.{suffix}": rows[:, 1::2]}
