"""Models with experts, whose attention keeps keys and values of every head."""

from __future__ import annotations

from .case import BIASES, EIGHT, GRANITE, HEAD, LOCAL_EIGHT, LOCAL_SEVEN, ODD, ODD_HEAD, SEVEN, THETA, Case, rope

GPT_OSS_YARN = rope("yarn", factor=8.0, original_max_position_embeddings=64, truncate=False)
QWEN_MOE = {"moe_intermediate_size": 48, "norm_topk_prob": True, "decoder_sparse_step": 1}
QWEN_MOE_ODD = {"moe_intermediate_size": 28, "norm_topk_prob": False, "decoder_sparse_step": 2}
GPT_OSS = {"sliding_window": 12, "swiglu_limit": 1.5, "intermediate_size": 48, **GPT_OSS_YARN}

SPARSE_CASES = (
    Case("qwen2_moe", "qwen2_moe", {**EIGHT, **QWEN_MOE, "shared_expert_intermediate_size": 80}),
    Case(
        "qwen2_moe-odd-mixed-layers",
        "qwen2_moe",
        {**ODD, **SEVEN, **QWEN_MOE_ODD, "shared_expert_intermediate_size": 38, "mlp_only_layers": [1]},
        fused=True,
    ),
    Case("qwen3_moe", "qwen3_moe", {**HEAD, **EIGHT, **QWEN_MOE}),
    Case("qwen3_moe-fused", "qwen3_moe", {**HEAD, **EIGHT, **QWEN_MOE}, fused=True),
    Case("qwen3_moe-odd-mixed-layers", "qwen3_moe", {**ODD, **ODD_HEAD, **SEVEN, **QWEN_MOE_ODD, **BIASES}),
    Case("mixtral", "mixtral", {**HEAD, **LOCAL_EIGHT, "sliding_window": None}),
    Case("mixtral-odd-window", "mixtral", {**ODD, **ODD_HEAD, **LOCAL_SEVEN, "sliding_window": 13}),
    Case("olmoe", "olmoe", {**EIGHT, "clip_qkv": 1.2}),
    Case("olmoe-odd-normalised", "olmoe", {**ODD, **SEVEN, **BIASES, "norm_topk_prob": True}, fused=True),
    Case("granitemoe", "granitemoe", {**LOCAL_EIGHT, **GRANITE}),
    Case("granitemoe-odd-tied", "granitemoe", {**ODD, **LOCAL_SEVEN, **GRANITE, "tie_word_embeddings": True}),
    Case("gpt_oss", "gpt_oss", {**HEAD, **LOCAL_EIGHT, **GPT_OSS}),
    Case("gpt_oss-odd", "gpt_oss", {**ODD, **ODD_HEAD, **LOCAL_SEVEN, **GPT_OSS, "rope_parameters": THETA}),
)
