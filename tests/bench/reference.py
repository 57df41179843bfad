"""The yardstick of quality: transformers, in f32, on exactly the values that the quantised file stands for."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from numpy.typing import NDArray
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

_LLAMA_NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def reference_logits(model: Any, tokens: NDArray[np.int32]) -> NDArray[np.float32]:
    """Logits [T, vocab] of one sequence of T token ids."""
    with torch.inference_mode():
        logits = model(torch.from_numpy(tokens.astype(np.int64))[None], use_cache=False).logits[0]
    return logits.numpy()


def load_folder(folder: Path) -> Any:
    """A Hugging Face folder in f32, with attention written out in plain operations."""
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()


def load_dense_llama(file: Path) -> LlamaForCausalLM:
    """A dense GGUF file of the `llama` architecture with tied embeddings, dequantised by the gguf package."""
    reader = gguf.GGUFReader(file)

    def entry(name: str) -> Any:
        return reader.fields[f"llama.{name}"].contents()

    config = LlamaConfig(
        vocab_size=len(reader.fields["tokenizer.ggml.tokens"].data),
        hidden_size=entry("embedding_length"),
        intermediate_size=entry("feed_forward_length"),
        num_hidden_layers=entry("block_count"),
        num_attention_heads=entry("attention.head_count"),
        num_key_value_heads=entry("attention.head_count_kv"),
        rms_norm_eps=entry("attention.layer_norm_rms_epsilon"),
        rope_parameters={"rope_type": "default", "rope_theta": entry("rope.freq_base")},
        max_position_embeddings=entry("context_length"),
        tie_word_embeddings=True,
    )
    heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
    model = LlamaForCausalLM._from_config(config, dtype=torch.float32, attn_implementation="eager")
    report = model.load_state_dict(_llama_state(reader, heads), strict=False)
    if report.unexpected_keys or report.missing_keys != ["lm_head.weight"]:
        raise SystemExit(f"{file} is not the dense llama it should be: {report}")
    model.tie_weights()
    return model.eval()


def _llama_state(reader: gguf.GGUFReader, heads: Mapping[str, int]) -> dict[str, torch.Tensor]:
    state = {}
    for tensor in reader.tensors:
        values = gguf.dequantize(tensor.data, tensor.tensor_type)
        stem = tensor.name.removesuffix(".weight")
        prefix = ""
        if stem.startswith("blk."):
            _, layer, stem = stem.split(".", 2)
            prefix = f"model.layers.{layer}."
        if stem in heads:  # neighbours become (i, i + dim/2) again
            values = values.reshape(heads[stem], -1, 2, values.shape[-1]).swapaxes(1, 2).reshape(values.shape)
        state[f"{prefix}{_LLAMA_NAMES[stem]}.weight"] = torch.tensor(values)
    return state
