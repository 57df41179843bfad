"""The config.json that a GGUF file's metadata amount to."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from engine.base.errors import CorruptFileError, UnsupportedError
from engine.files.sources.gguf.architectures.record import ROPE_FACTORS, Architecture, Key
from engine.files.sources.gguf.metadata import Metadata, from_tensors, shortest
from engine.files.sources.tensors import SourceTensor

# the two settings that models with llama-3 positions are published with, beside their factor
_LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}


def build_config(
    architecture: Architecture, metadata: Mapping[str, Any], tensors: Mapping[str, SourceTensor], path: Path
) -> dict[str, Any]:
    """Config fields under their Hugging Face names.

    Errors, naming `path`: CorruptFileError for missing or mistyped metadata, UnsupportedError for positions that the
    file describes in a way this release cannot read back.
    """
    reader = Metadata(metadata, path)
    config: dict[str, Any] = {"model_type": architecture.model_type, "architectures": [architecture.hf_class]}
    config["num_hidden_layers"] = reader.number(Key("block_count")) - reader.number(Key("nextn_predict_layers", 0))
    config.update({name: reader.number(key) for name, key in architecture.config.items()})
    config.update(_latent_heads(reader, config) if architecture.latent else _heads(architecture, reader, config, path))
    config.update(architecture.constants)
    config.update({name: reader.word(key, words) for name, (key, words) in architecture.words.items()})
    config.update({name: reader.ratio(*keys) for name, keys in architecture.ratios.items()})
    config.update(from_tensors(architecture, tensors, config["num_hidden_layers"], path))
    config["vocab_size"] = _rows(tensors, "token_embd.weight", path)
    config["tie_word_embeddings"] = "output.weight" not in tensors
    config["rope_scaling"] = _rope_scaling(reader, config, tensors, path)
    return config


def _heads(architecture: Architecture, reader: Metadata, config: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """The heads of ordinary attention, which are rotated whole where the architecture says no other thing."""
    kv_heads = config["num_key_value_heads"] or config["num_attention_heads"]
    width = config["head_dim"] or config["hidden_size"] // config["num_attention_heads"]
    heads = {"num_key_value_heads": kv_heads, "head_dim": width}
    rotated = reader.number(Key("rope.dimension_count", width))
    if architecture.partial:
        return {**heads, "partial_rotary_factor": rotated / width}
    if rotated != width:
        raise UnsupportedError(f"{path} rotates {rotated} of the {width} values of a head.")
    return heads


def _latent_heads(reader: Metadata, config: Mapping[str, Any]) -> dict[str, Any]:
    """The heads of latent attention. Newer files tell their widths apart from those of the shared latent key."""
    keys = reader.number(Key("attention.key_length_mla", None)) or reader.number(Key("attention.key_length"))
    values = reader.number(Key("attention.value_length_mla", None)) or reader.number(Key("attention.value_length"))
    groups: dict[str, Any] = {}
    if config["model_type"] == "deepseek_v2":
        groups = {"topk_method": "group_limited_greedy" if config["n_group"] > 1 else "greedy"}
    return {
        "num_key_value_heads": config["num_attention_heads"],
        "qk_nope_head_dim": keys - config["qk_rope_head_dim"],
        "v_head_dim": values,
        **groups,
    }


def _rows(tensors: Mapping[str, SourceTensor], name: str, path: Path) -> int:
    if name not in tensors:
        raise CorruptFileError(f"{path} lacks the tensor {name}.")
    return tensors[name].shape[0]


def _rope_scaling(
    reader: Metadata, config: Mapping[str, Any], tensors: Mapping[str, SourceTensor], path: Path
) -> dict[str, Any] | None:
    kind = reader.text("rope.scaling.type") or "none"
    if ROPE_FACTORS in tensors:
        return _llama3_scaling(tensors[ROPE_FACTORS], config, path)
    if kind == "none":
        return None
    if kind == "linear":
        return {"rope_type": "linear", "factor": reader.number(Key("rope.scaling.factor"))}
    if kind == "yarn":
        scaling = {
            "rope_type": "yarn",
            "factor": reader.number(Key("rope.scaling.factor")),
            "original_max_position_embeddings": reader.number(Key("rope.scaling.original_context_length")),
            "beta_fast": reader.number(Key("rope.scaling.yarn_beta_fast", 32.0)),
            "beta_slow": reader.number(Key("rope.scaling.yarn_beta_slow", 1.0)),
        }
        return scaling | _yarn_habits(reader, config)
    raise UnsupportedError(f"{path} scales positions by {kind!a:.40}; known are linear, yarn and llama3.")


def _yarn_habits(reader: Metadata, config: Mapping[str, Any]) -> dict[str, Any]:
    """What some families do besides. The logarithm's factor is a tenth of DeepSeek's `mscale_all_dim`; `mscale` is not
    in the file, and in published models the same.
    """
    if config["model_type"] == "gpt_oss":
        return {"truncate": False}
    factor = reader.number(Key("rope.scaling.yarn_log_multiplier", None))
    if factor is None or "kv_lora_rank" not in config:
        return {}
    mscale = shortest(factor * 10)
    return {"mscale": mscale, "mscale_all_dim": mscale}


def _llama3_scaling(tensor: SourceTensor, config: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """The settings that give the divisors of frequencies which the file holds as a tensor.

    Source of the formula: "llama3" in transformers' modeling_rope_utils.
    """
    if tensor.form != "f32" or tensor.shape != (config["head_dim"] // 2,):
        raise CorruptFileError(f"{path}: {ROPE_FACTORS} is {tensor.form} {list(tensor.shape)}.")
    factors = tensor.read(0, 1).view(np.float32)[0]
    factor = float(factors.max())
    frequencies = config["rope_theta"] ** -(np.arange(len(factors)) * 2 / config["head_dim"])
    turns = _LLAMA3["original_max_position_embeddings"] * frequencies / (2 * np.pi)
    low, high = _LLAMA3["low_freq_factor"], _LLAMA3["high_freq_factor"]
    smooth = np.clip((turns - low) / (high - low), 0, 1)
    if not np.allclose(factors, 1 / ((1 - smooth) / factor + smooth), rtol=1e-4):
        raise UnsupportedError(f"{path} holds frequencies in {ROPE_FACTORS} that are not those of llama-3 models.")
    return {"rope_type": "llama3", "factor": factor, **_LLAMA3}
