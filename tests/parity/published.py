"""Configs of tiny checkpoints as those of published models are, which llama.cpp's converter is written for."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from safetensors.numpy import load_file, save_file

from .tiny import COMPUTED


def _count_tokens(config: dict[str, Any], folder: Path) -> None:
    """A tokenizer.json of as many tokens as there are embeddings, of which the converter keeps so many."""
    vocabulary = {str(token): token for token in range(config["vocab_size"])}
    (folder / "tokenizer.json").write_text(json.dumps({"model": {"vocab": vocabulary}, "added_tokens": []}))


def _gemma3(config: dict[str, Any], folder: Path) -> None:
    _count_tokens(config, folder)
    ropes = config.pop("rope_parameters")
    config["rope_theta"] = ropes["full_attention"].pop("rope_theta")
    config["rope_local_base_freq"] = ropes["sliding_attention"]["rope_theta"]
    config["rope_scaling"] = ropes["full_attention"]


def _mimo(config: dict[str, Any], folder: Path) -> None:
    ropes = config.pop("rope_parameters")
    config |= {f"swa_{name}": config[name] for name in ("head_dim", "v_head_dim", "num_attention_heads")}
    config |= {
        "topk_method": "noaux_tc",
        "scoring_func": "sigmoid",
        "swa_num_key_value_heads": 2 * config["num_key_value_heads"],
        "hybrid_layer_pattern": [int(kind == "sliding_attention") for kind in config.pop("layer_types")],
        "rope_parameters": ropes["full_attention"],
        "swa_rope_theta": ropes["sliding_attention"]["rope_theta"],
    }


def _hunyuan(config: dict[str, Any], folder: Path) -> None:
    config["moe_intermediate_size"] = [config["intermediate_size"]] * config["num_hidden_layers"]
    config["num_shared_expert"] = [1] * config["num_hidden_layers"]


def _bailing(config: dict[str, Any], folder: Path) -> None:
    config |= {"architectures": ["BailingMoeV2ForCausalLM"], "model_type": "bailing_moe"}
    config["num_experts"] = config.pop("n_routed_experts")
    config["num_shared_experts"] = config.pop("n_shared_experts")
    config["score_function"] = "sigmoid"


def _minimax_m3(config: dict[str, Any], folder: Path) -> None:
    sparse = [int(kind == "sparse") for kind in config.pop("mlp_layer_types")]
    indexer = {"num_index_heads": "n_heads", "index_dim": "head_dim", "topk_blocks": "topk_blocks"}
    indexer |= {"block_size": "block_size", "local_block": "local_blocks"}
    config |= {
        "architectures": ["MiniMaxM3SparseForCausalLM"],
        "model_type": "minimax_m3",
        "n_shared_experts": 1,
        "scoring_func": "sigmoid",
        "moe_layer_freq": sparse,
        "rotary_dim": int(config["head_dim"] * config["rope_parameters"]["partial_rotary_factor"]),
        "sparse_attention_config": {f"sparse_{name}": config.pop(f"index_{ours}") for name, ours in indexer.items()},
    }


def _bailing_hybrid(config: dict[str, Any], folder: Path) -> None:
    config |= {
        "architectures": ["BailingMoeV3ForCausalLM"],
        "model_type": "bailing_moe_v3",
        "gated_attention_proj_granularity_type": "head_wise",
        "moe_shared_expert_intermediate_size": config["num_shared_experts"] * config["moe_intermediate_size"],
        "no_kda_lora": True,
        "num_experts_per_tok": config["num_experts_per_token"],
        "norm_topk_prob": config["moe_renormalize"],
        "n_group": config["num_expert_group"],
        "score_function": "sigmoid",
    }


def _step(config: dict[str, Any], folder: Path) -> None:
    text = config["text_config"]
    config["model_type"] = "step3p7_published"  # of which transformers makes another form
    kinds, ropes = text["layer_types"], text["rope_parameters"]
    text |= {
        "num_attention_groups": text.pop("num_key_value_heads"),
        "moe_num_experts": text.pop("n_routed_experts"),
        "moe_top_k": text["num_experts_per_tok"],
        "moe_layers_enum": ",".join(str(i) for i, kind in enumerate(text["mlp_layer_types"]) if kind == "sparse"),
        "partial_rotary_factors": [0.5 if kind == "full_attention" else 1.0 for kind in kinds],
        "rope_theta": [ropes[kind]["rope_theta"] for kind in kinds],
    }
    text["attention_other_setting"] = {
        "num_attention_heads": text["num_sliding_attention_heads"],
        "num_attention_groups": text["num_attention_groups"],
    }


def _minimax(config: dict[str, Any], folder: Path) -> None:
    for ours, part in (("full_attn", "full_attention"), ("linear_attn", "linear_attention"), ("mlp", "mlp")):
        config |= {f"layernorm_{part}_{factor}": config.pop(f"{ours}_{factor}_factor") for factor in ("alpha", "beta")}
    config["architectures"] = ["MiniMaxText01ForCausalLM"]
    config["rotary_dim"] = int(config["head_dim"] * config["rope_parameters"].get("partial_rotary_factor", 1.0))
    tensors = load_file(folder / "model.safetensors")
    learned = {name: values for name, values in tensors.items() if not name.endswith(COMPUTED)}
    save_file(learned, folder / "model.safetensors", {"format": "pt"})


def _glm5_next(config: dict[str, Any], folder: Path) -> None:
    text = config["text_config"]
    config["model_type"] = "glm5_next_published"  # of which transformers makes another form
    text |= {"mla_use_nope": True, "first_k_dense_replace": text["mlp_layer_types"].index("sparse")}
    text["scoring_func"] = "sigmoid"
    text["linear_attn_config"] = {
        "num_heads": text["linear_num_heads"],
        "head_dim": text["linear_head_dim"],
        "short_conv_kernel_size": text["linear_conv_kernel_dim"],
        "gate_lower_bound": text["linear_lower_bound"],
    }


PUBLISHED: dict[str, Callable[[dict[str, Any], Path], None]] = {
    "gemma3_text": _gemma3,
    "gemma4_text": _count_tokens,
    "mimo_v2_flash": _mimo,
    "hunyuan_v1_moe": _hunyuan,
    "sarvam_moe": _bailing,
    "bailing_hybrid": _bailing_hybrid,
    "glm4_moe_lite": lambda config, _folder: config.update(first_k_dense_replace=1),
    "solar_open": lambda config, _folder: config["rope_parameters"].update(partial_rotary_factor=1.0),
    "minimax_m3_vl_text": _minimax_m3,
    "step3p7": _step,
    "glm5_next": _glm5_next,
    "minimax": _minimax,
    "mistral4": lambda config, _folder: config.update(architectures=["Mistral3ForConditionalGeneration"]),
    "cohere2": lambda config, _folder: config.update(rotary_pct=1.0),
    "phimoe": lambda config, _folder: config.update(architectures=["PhiMoEForCausalLM"]),
    "deepseek_v32": lambda config, _folder: config.update(scoring_func="sigmoid"),
}


# By case, the class of a model around its decoder that a checkpoint is published as.
SEEING = {
    "qwen2-odd-yarn": "Qwen2VLForConditionalGeneration",
    "qwen3-odd-biased": "Qwen3VLForConditionalGeneration",
    "mistral-window": "Mistral3ForConditionalGeneration",
    "ministral3": "Mistral3ForConditionalGeneration",
}


def as_published(checkpoint: Path, folder: Path, name: str) -> Path:
    """A copy whose config says what published ones of the case called `name` do and transformers leaves to its code."""
    shutil.copytree(checkpoint, folder)
    config = json.loads((folder / "config.json").read_text())
    if config["model_type"] in PUBLISHED:
        PUBLISHED[config["model_type"]](config, folder)
    if config["model_type"] in ("granitemoehybrid", "jamba"):
        named = {"linear_attention": "mamba", "full_attention": "attention"}
        config["layer_types"] = [named.get(kind, kind) for kind in config.get("layer_types", [])]
    if config["model_type"] == "deepseek_v3":
        config["scoring_func"] = "sigmoid"
    if name in SEEING:
        config["architectures"] = [SEEING[name]]
    (folder / "config.json").write_text(json.dumps(config))
    return folder
