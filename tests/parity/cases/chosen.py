"""Models whose attention has experts."""

from __future__ import annotations

from .case import LOCAL_EIGHT, LOCAL_SEVEN, ODD, THETA, Case

# large enough to tell the last norm, which alone has it, from the others
EPSILON = {"rms_norm_eps": 0.03}

CHOSEN_CASES = (
    Case("jetmoe", "jetmoe", {**LOCAL_EIGHT, **EPSILON, "num_experts_per_tok": 2, "kv_channels": 16}),
    Case(
        "jetmoe-odd-tied",
        "jetmoe",
        {**ODD, **LOCAL_SEVEN, **EPSILON, "kv_channels": 10, "tie_word_embeddings": True, "rope_parameters": THETA},
    ),
)
