"""Models without experts."""

from __future__ import annotations

from typing import Any

from .case import BIASES, GRANITE, HEAD, ODD, ODD_HEAD, THETA, Case, growing, growing_linearly, rope

LLAMA3 = rope("llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=64)
YARN = rope("yarn", factor=8.0, original_max_position_embeddings=64)


def long_rope(original: int) -> dict[str, Any]:
    """LongRoPE trained for a context of `original` tokens."""
    factors = {"short_factor": [1.0 + i / 8 for i in range(8)], "long_factor": [2.0 + i for i in range(8)]}
    return rope("longrope", factor=8.0, original_max_position_embeddings=original, **factors)


DENSE_CASES = (
    Case("llama", "llama", HEAD),
    Case("llama-odd-biased-tied", "llama", {**ODD, **BIASES, "mlp_bias": True, "tie_word_embeddings": True}),
    Case("llama-llama3-rope", "llama", {**HEAD, **LLAMA3, "eos_token_id": [2, 7]}),
    Case("llama-linear-rope", "llama", {**HEAD, **rope("linear", factor=3.0)}),
    Case("llama-dynamic-rope", "llama", {**HEAD, **rope("dynamic", factor=3.0)}),
    Case("llama-longrope-short", "llama", {**HEAD, **long_rope(512)}),
    Case("llama-longrope-beyond", "llama", {**HEAD, **long_rope(8)}),
    Case("mistral-window", "mistral", {**HEAD, "sliding_window": 11}),
    Case("ministral3", "ministral3", {**HEAD, **growing()}),
    Case("ministral3-odd-window", "ministral3", {**ODD, **ODD_HEAD, **growing_linearly(), "sliding_window": 13}),
    Case("qwen2", "qwen2", {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 1}),
    Case("qwen2-odd-yarn", "qwen2", {**ODD, **YARN}),
    Case("qwen3", "qwen3", {**HEAD, "rope_parameters": THETA}),
    Case("qwen3-odd-biased", "qwen3", {**ODD, **ODD_HEAD, **BIASES}),
    Case("arcee", "arcee", HEAD),
    Case("arcee-odd-biased-yarn", "arcee", {**ODD, **ODD_HEAD, **BIASES, **YARN, "mlp_bias": True}),
    Case("granite-biased", "granite", {**GRANITE, **BIASES, "mlp_bias": True}),
)
