"""Models that add to the residual stream in other ways, with other norms, bounds and activations."""

from __future__ import annotations

from .case import BIASES, EIGHT, HEAD, ODD, ODD_HEAD, SEVEN, THETA, Case, rope

SOFT = {"attn_logit_softcapping": 3.0, "final_logit_softcapping": 2.0}
GEMMA2 = {**SOFT, "sliding_window": 13, "query_pre_attn_scalar": 24}

RESIDUAL_CASES = (
    Case("gemma", "gemma", {**HEAD, "tie_word_embeddings": True}),
    Case("gemma-odd", "gemma", {**ODD, **ODD_HEAD, **BIASES, "rope_parameters": THETA}),
    Case("gemma2", "gemma2", {**HEAD, **GEMMA2, "tie_word_embeddings": True}),
    Case(
        "gemma2-odd-exact-gelu",
        "gemma2",
        {
            **ODD,
            **ODD_HEAD,
            **GEMMA2,
            **BIASES,
            "hidden_activation": "gelu",
            "final_logit_softcapping": None,
            "layer_types": ["full_attention", "sliding_attention", "full_attention"],
        },
    ),
    Case("olmo2", "olmo2", rope("linear", factor=3.0)),
    Case("olmo2-odd", "olmo2", {**ODD, **BIASES, "hidden_act": "gelu", "tie_word_embeddings": True}),
    # what is normed does not tell how large it was, but for a large epsilon
    Case("flex_olmo", "flex_olmo", {**EIGHT, "rms_norm_eps": 0.03}),
    Case(
        "flex_olmo-odd-normalised",
        "flex_olmo",
        {**ODD, **SEVEN, **BIASES, "norm_topk_prob": True, "rms_norm_eps": 0.03},
        fused=True,
    ),
)
