"""Tiny checkpoints with random weights, written by the libraries that the world writes checkpoints with."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
from safetensors.numpy import save_file

from tests.bench.kquants import quantize

Values = npt.NDArray[np.float32]

MIXTRAL: dict[str, Any] = {
    "model_type": "mixtral", "architectures": ["MixtralForCausalLM"], "hidden_size": 64, "intermediate_size": 96,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 96,
    "num_local_experts": 4, "num_experts_per_tok": 2, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
    "max_position_embeddings": 512, "tie_word_embeddings": False, "sliding_window": None,
}  # fmt: skip
# the same, of whole blocks of 256
WIDE_MIXTRAL = MIXTRAL | {"hidden_size": 256, "intermediate_size": 512, "head_dim": 64, "num_hidden_layers": 1}
# without experts
LLAMA = {key: value for key, value in MIXTRAL.items() if "expert" not in key} | {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "intermediate_size": 128,
    "tie_word_embeddings": True,
}


def random_values(shape: tuple[int, ...], seed: int) -> Values:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def mixtral_tensors(config: Mapping[str, Any] = MIXTRAL, seed: int = 0) -> dict[str, Values]:
    """Every tensor of a mixtral checkpoint, f32."""
    hidden, width, head = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    q_rows, kv_rows = config["num_attention_heads"] * head, config["num_key_value_heads"] * head
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (config["vocab_size"], hidden)}
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        shapes |= {
            prefix + "input_layernorm.weight": (hidden,),
            prefix + "self_attn.q_proj.weight": (q_rows, hidden),
            prefix + "self_attn.k_proj.weight": (kv_rows, hidden),
            prefix + "self_attn.v_proj.weight": (kv_rows, hidden),
            prefix + "self_attn.o_proj.weight": (hidden, q_rows),
            prefix + "post_attention_layernorm.weight": (hidden,),
            prefix + "block_sparse_moe.gate.weight": (config["num_local_experts"], hidden),
        }
        for expert in range(config["num_local_experts"]):
            moe = f"{prefix}block_sparse_moe.experts.{expert}."
            shapes |= {moe + "w1.weight": (width, hidden), moe + "w3.weight": (width, hidden)}
            shapes[moe + "w2.weight"] = (hidden, width)
    shapes |= {"model.norm.weight": (hidden,), "lm_head.weight": (config["vocab_size"], hidden)}
    return {name: random_values(shape, seed + number) for number, (name, shape) in enumerate(shapes.items())}


def llama_tensors() -> dict[str, Values]:
    """Every tensor of a dense llama checkpoint, f32."""
    hidden, width = LLAMA["hidden_size"], LLAMA["intermediate_size"]
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (96, hidden), "model.norm.weight": (hidden,)}
    for layer in range(LLAMA["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        for norm in ("input_layernorm", "post_attention_layernorm"):
            shapes[f"{prefix}{norm}.weight"] = (hidden,)
        for name, rows in (("q", 64), ("k", 32), ("v", 32), ("o", 64)):
            shapes[f"{prefix}self_attn.{name}_proj.weight"] = (rows, hidden)
        for name in ("gate", "up"):
            shapes[f"{prefix}mlp.{name}_proj.weight"] = (width, hidden)
        shapes[f"{prefix}mlp.down_proj.weight"] = (hidden, width)
    return {name: random_values(shape, seed) for seed, (name, shape) in enumerate(shapes.items())}


def write_folder(folder: Path, tensors: Mapping[str, npt.NDArray[Any]], config: Mapping[str, Any] = MIXTRAL) -> Path:
    """A model folder with one weights file."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text('{"model": {}}')
    save_file(dict(tensors), folder / "model.safetensors")
    return folder


def write_sharded_folder(
    folder: Path, tensors: Mapping[str, npt.NDArray[Any]], shards: int, config: Mapping[str, Any] = MIXTRAL
) -> Path:
    """A model folder with `shards` weights files and their index."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text('{"model": {}}')
    names = sorted(tensors)
    index = {}
    for number in range(shards):
        file = f"model-{number + 1:05d}-of-{shards:05d}.safetensors"
        mine = names[number::shards]
        save_file({name: tensors[name] for name in mine}, folder / file)
        index |= dict.fromkeys(mine, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))
    return folder


_GGUF_STEMS = {
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
    "block_sparse_moe.gate": "ffn_gate_inp",
}  # fmt: skip
_GGUF_EXPERTS = {"w1": "ffn_gate_exps", "w3": "ffn_up_exps", "w2": "ffn_down_exps"}


def permuted_for_gguf(rows: npt.NDArray[Any], heads: int) -> npt.NDArray[Any]:
    """Rows of q or k as llama-type GGUF files keep them; source: `permute` in llama.cpp's convert_hf_to_gguf.py."""
    return rows.reshape(heads, 2, rows.shape[0] // heads // 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def write_mixtral_gguf(
    path: Path,
    tensors: Mapping[str, Values],
    quantization: gguf.GGMLQuantizationType,
    config: Mapping[str, Any] = MIXTRAL,
    **metadata: str,
) -> Path:
    """The same model as a llama-architecture GGUF file, experts fused, matrices quantised."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_expert_count(config["num_local_experts"])
    writer.add_expert_used_count(config["num_experts_per_tok"])
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list([f"token{number}" for number in range(config["vocab_size"])])
    for key, value in metadata.items():
        writer.add_string(key, value)

    def add(name: str, values: Values) -> None:
        if values.ndim == 1 or "gate_inp" in name:
            writer.add_tensor(name, values)
        else:
            writer.add_tensor(name, quantize(values, quantization), raw_dtype=quantization)

    outer = {"model.embed_tokens.weight": "token_embd", "model.norm.weight": "output_norm", "lm_head.weight": "output"}
    for name, short in outer.items():
        if name in tensors:
            add(f"{short}.weight", tensors[name])
    for layer in range(config["num_hidden_layers"]):
        for long, short in _GGUF_STEMS.items():
            values = tensors[f"model.layers.{layer}.{long}.weight"]
            if short in ("attn_q", "attn_k"):
                heads = config["num_attention_heads" if short == "attn_q" else "num_key_value_heads"]
                values = permuted_for_gguf(values, heads)
            add(f"blk.{layer}.{short}.weight", values)
        for long, short in _GGUF_EXPERTS.items():
            prefix = f"model.layers.{layer}.block_sparse_moe.experts."
            experts = [tensors[f"{prefix}{expert}.{long}.weight"] for expert in range(config["num_local_experts"])]
            add(f"blk.{layer}.{short}.weight", np.stack(experts))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
