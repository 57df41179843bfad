"""The config.json that a GGUF file's metadata amount to."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.base.errors import CorruptFileError, UnsupportedError
from engine.files.sources.gguf.architectures.record import (
    GROWTH,
    LONG_FACTORS,
    ROPE_FACTORS,
    SHORT_FACTORS,
    Architecture,
    Key,
)
from engine.files.sources.gguf.metadata import Metadata, from_tensors, shortest
from engine.files.sources.tensors import SourceTensor

# What models with llama-3 positions are published with beside their factor, the length they were trained at and how
# often the slow and the fast turn in it: Llama 3, Llama 4 and Step-3.5.
_LLAMA3 = ((8192, 1.0, 4.0), (8192, 1.0, 1.0), (131072, 1.0, 32.0))
_FAR = 1 << 20  # tokens
_STILL = 1e29  # a frequency divided by so much turns nothing


def build_config(
    architecture: Architecture, metadata: Mapping[str, Any], tensors: Mapping[str, SourceTensor], path: Path
) -> dict[str, Any]:
    """Config fields under their Hugging Face names.

    Errors, naming `path`: CorruptFileError for missing or mistyped metadata, UnsupportedError for positions that the
    file describes in a way this release cannot read back.
    """
    reader = Metadata(metadata, path)
    config: dict[str, Any] = {"model_type": architecture.model_type, "architectures": [architecture.hf_class]}
    layers = config["num_hidden_layers"] = reader.number(Key("block_count")) - reader.number(
        Key("nextn_predict_layers", 0)
    )
    config.update(
        {name: reader.number(key) for name, key in architecture.config.items() if name not in architecture.by_window}
    )
    config.update({name: reader.by_window(*rule, layers) for name, rule in architecture.by_window.items()})
    config.update({name: reader.doubled(key) for name, key in architecture.doubled.items()})
    config.update(_latent_heads(reader, config) if architecture.latent else _heads(architecture, reader, config, path))
    config.update(architecture.constants)
    config.update(architecture.far if config["max_position_embeddings"] >= _FAR else {})
    words = {name: reader.word(*rule, layers) for name, rule in architecture.words.items()}
    config.update({name: word for name, word in words.items() if word is not None})
    config.update({name: reader.ratio(*keys) for name, keys in architecture.ratios.items()})
    config.update(from_tensors(architecture, tensors, config, path))
    config["vocab_size"] = _rows(tensors, "token_embd.weight", path)
    config["tie_word_embeddings"] = "output.weight" not in tensors
    if architecture.proportional:
        config["rope_parameters"] = _two_ropes(reader, config, tensors, path)
    elif architecture.window_rope:
        config["rope_parameters"] = _ropes_by_window(reader, config, tensors, path)
    else:
        config["rope_scaling"] = _rope_scaling(reader, config, tensors, path)
    return _nested(config)


def _nested(config: Mapping[str, Any]) -> dict[str, Any]:
    """Fields `a.b` as the field b of an object a."""
    nested: dict[str, Any] = {name: value for name, value in config.items() if "." not in name}
    for name, value in config.items():
        if "." in name:
            outer, inner = name.split(".")
            nested.setdefault(outer, {})[inner] = value
    return nested


def _heads(architecture: Architecture, reader: Metadata, config: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """The heads of ordinary attention, which are rotated whole where the architecture says no other thing."""
    if config["num_attention_heads"] < 1:
        raise CorruptFileError(f"{path} speaks of {config['num_attention_heads']} heads of attention.")
    kv_heads = config["num_key_value_heads"] or config["num_attention_heads"]
    width = config["head_dim"] or config["hidden_size"] // config["num_attention_heads"]
    heads = {"num_key_value_heads": kv_heads, "head_dim": width}
    rotated = reader.number(Key(architecture.rotated, width))
    if architecture.root_width is not None:
        by_layers = architecture.root_width == config["num_hidden_layers"]
        heads["query_pre_attn_scalar"] = config["hidden_size"] // config["num_attention_heads"] if by_layers else width
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
        return _llama3_scaling(_frequencies(tensors, ROPE_FACTORS, config["head_dim"], path), config, path)
    if LONG_FACTORS in tensors:
        return _long_scaling(reader, config, tensors, path)
    if kind != "yarn" and reader.number(Key(GROWTH, None)):
        raise UnsupportedError(f"{path} lets queries grow, and does not say from which length on.")
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
    """What some families do besides. The logarithm's factor is a tenth of DeepSeek's `mscale_all_dim`, and Ministral's
    as it is; `mscale` is not in the file, and in published models the same. How fast Mistral Small 4's queries grow is
    not in its files either.
    """
    if config["model_type"] == "gpt_oss":
        return {"truncate": False}
    growth = {}
    if config["model_type"] in ("mistral4", "ministral3"):
        growth = {"llama_4_scaling_beta": reader.number(Key(GROWTH, 0.1))}
    factor = reader.number(Key("rope.scaling.yarn_log_multiplier", None))
    if factor is None or not (growth or "kv_lora_rank" in config):
        return growth
    mscale = shortest(factor * 10) if "kv_lora_rank" in config else factor
    return {"mscale": mscale, "mscale_all_dim": mscale, **growth}


def _frequencies(tensors: Mapping[str, SourceTensor], name: str, head_dim: int, path: Path) -> NDArray[np.float32]:
    """The divisors of a head's frequencies, which a file holds as a tensor."""
    if name not in tensors:
        raise CorruptFileError(f"{path} lacks the tensor {name}.")
    tensor = tensors[name]
    if tensor.form != "f32" or tensor.shape != (head_dim // 2,):
        raise CorruptFileError(f"{path}: {name} is {tensor.form} {list(tensor.shape)}.")
    factors: NDArray[np.float32] = tensor.read(0, 1).view(np.float32)[0]
    return factors


def _two_ropes(
    reader: Metadata, config: Mapping[str, Any], tensors: Mapping[str, SourceTensor], path: Path
) -> dict[str, Any]:
    """Gemma 4's: that of layers which see everything turns the fast part of a head; the rest have huge divisors."""
    factors = _frequencies(tensors, ROPE_FACTORS, config["global_head_dim"], path)
    turning = int((factors == 1).sum())
    if not turning or (factors[:turning] != 1).any() or (factors[turning:] < _STILL).any():
        raise UnsupportedError(f"{path} holds frequencies in {ROPE_FACTORS} that are not those of gemma4.")
    return {
        "full_attention": {
            "rope_type": "proportional",
            "rope_theta": config["rope_theta"],
            "partial_rotary_factor": turning / len(factors),
        },
        "sliding_attention": {"rope_type": "default", "rope_theta": reader.number(Key("rope.freq_base_swa", 10000.0))},
    }


def _ropes_by_window(
    reader: Metadata, config: Mapping[str, Any], tensors: Mapping[str, SourceTensor], path: Path
) -> dict[str, Any]:
    """Those of layers that see everything and of layers with a window, which are never stretched."""
    width = config["head_dim"]
    return {
        "full_attention": {
            "rope_type": "default",
            **(_rope_scaling(reader, config, tensors, path) or {}),
            "rope_theta": config["rope_theta"],
            "partial_rotary_factor": config.get("partial_rotary_factor", 1.0),
        },
        "sliding_attention": {
            "rope_type": "default",
            "rope_theta": reader.number(Key("rope.freq_base_swa", config["rope_theta"])),
            "partial_rotary_factor": reader.number(Key("rope.dimension_count_swa", width)) / width,
        },
    }


def _long_scaling(
    reader: Metadata, config: Mapping[str, Any], tensors: Mapping[str, SourceTensor], path: Path
) -> dict[str, Any]:
    """LongRoPE. The magnitude is llama.cpp's, the same for short and long texts."""
    magnitude = reader.number(Key("rope.scaling.attn_factor", 1.0))
    return {
        "rope_type": "longrope",
        "short_factor": _shortest_of(_frequencies(tensors, SHORT_FACTORS, config["head_dim"], path)),
        "long_factor": _shortest_of(_frequencies(tensors, LONG_FACTORS, config["head_dim"], path)),
        "original_max_position_embeddings": reader.number(Key("rope.scaling.original_context_length")),
        "short_mscale": magnitude,
        "long_mscale": magnitude,
    }


def _shortest_of(values: NDArray[np.float32]) -> list[float]:
    return [shortest(value) for value in values.tolist()]


def _llama3_scaling(factors: NDArray[np.float32], config: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """The settings that give the divisors of frequencies which the file holds as a tensor; what does not turn has 1.

    Source of the formula: "llama3" in transformers' modeling_rope_utils.
    """
    factor = float(factors.max())
    dim = int(config["head_dim"] * config.get("partial_rotary_factor", 1.0))
    frequencies = config["rope_theta"] ** -(np.arange(dim // 2) * 2 / dim)
    for original, low, high in _LLAMA3:
        turns = original * frequencies / (2 * np.pi)
        smooth = np.clip((turns - low) / (high - low), 0, 1) if high > low else (turns > low).astype(np.float64)
        expected = np.ones(len(factors))
        expected[: dim // 2] = 1 / ((1 - smooth) / factor + smooth)
        if np.allclose(factors, expected, rtol=1e-4):
            return {
                "rope_type": "llama3",
                "factor": factor,
                "low_freq_factor": low,
                "high_freq_factor": high,
                "original_max_position_embeddings": original,
            }
    raise UnsupportedError(f"{path} holds frequencies in {ROPE_FACTORS} that are not those of llama models.")
