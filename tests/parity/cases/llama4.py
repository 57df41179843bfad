"""Llama 4: layers of chunks with rope beside layers without, experts that see a scaled input."""

from __future__ import annotations

from .case import BIASES, HEAD, ODD, ODD_HEAD, THETA, Case
from .dense import LLAMA3

CHUNKS = {
    "attention_chunk_size": 14,
    "no_rope_layers": [1, 0, 1],
    "floor_scale": 5,
    "attn_scale": 0.3,
    "intermediate_size_mlp": 112,
    "num_experts_per_tok": 1,
    "num_local_experts": 8,
}
ODD_CHUNKS = {
    **CHUNKS,
    **ODD,
    **ODD_HEAD,
    **BIASES,
    "attention_chunk_size": 9,
    "no_rope_layers": None,
    "no_rope_layer_interval": 3,
    "interleave_moe_layer_step": 2,
    "intermediate_size_mlp": 38,
    "num_local_experts": 7,
    "use_qk_norm": False,
    "tie_word_embeddings": True,
}

LLAMA4_CASES = (
    Case("llama4", "llama4_text", {**HEAD, **CHUNKS, **LLAMA3}),
    Case("llama4-odd-wrapped", "llama4_text", {**ODD_CHUNKS, "rope_parameters": THETA}, prefix="language_model."),
    Case(
        "llama4-without-chunks",
        "llama4_text",
        {**HEAD, **CHUNKS, "attention_chunk_size": None, "attn_temperature_tuning": False, "rope_parameters": THETA},
        apart=True,
    ),
)
