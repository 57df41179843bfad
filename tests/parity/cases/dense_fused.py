"""Models without experts whose checkpoints keep matrices that read the same in one."""

from __future__ import annotations

from .case import HEAD, ODD, ODD_HEAD, THETA, Case, rope
from .dense import long_rope

HALF = {"partial_rotary_factor": 0.6}

DENSE_FUSED_CASES = (
    Case("phi3", "phi3", {**long_rope(512), "original_max_position_embeddings": 512}),
    Case("phi3-beyond", "phi3", {**long_rope(8), "original_max_position_embeddings": 8}),
    Case(
        "phi3-odd-window",
        "phi3",
        {**ODD, "sliding_window": 13, "tie_word_embeddings": True, "rope_parameters": {**THETA, **HALF}},
    ),
    Case("glm", "glm", {**HEAD, "attention_bias": False}),
    Case("glm-odd", "glm", {**ODD, "head_dim": 12, **rope("linear", factor=3.0, partial_rotary_factor=0.5)}),
    Case("glm4", "glm4", {**HEAD, "rms_norm_eps": 0.03}),
    Case("glm4-odd", "glm4", {**ODD, **ODD_HEAD, "attention_bias": False, "partial_rotary_factor": 0.8}),
)
