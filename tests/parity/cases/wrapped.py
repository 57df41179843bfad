"""Decoders inside models that also see, as transformers makes the whole of them."""

from __future__ import annotations

from typing import Any

from .case import COMMON, EIGHT, HEAD, Case

VISION: dict[str, Any] = {"depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2, "out_hidden_size": 64}
QWEN_VISION = {**VISION, "num_position_embeddings": 16, "deepstack_visual_indexes": [0]}
QWEN_TEXT = {**COMMON, **HEAD, **EIGHT, "moe_intermediate_size": 48}
GLM_TEXT = {
    **{**COMMON, **HEAD, "n_routed_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 48},
    **{"n_group": 1, "topk_group": 1, "first_k_dense_replace": 1},
}


def in_axes(*sections: int, **more: float) -> dict[str, Any]:
    """Positions in three axes, each of which turns so many pairs."""
    return {"rope_parameters": {"rope_type": "default", "rope_theta": 300.0, "mrope_section": list(sections), **more}}


WRAPPED_CASES = (
    Case(
        "qwen3_vl_moe",
        "qwen3_vl_moe",
        {"text_config": {**QWEN_TEXT, **in_axes(3, 3, 2)}, "vision_config": QWEN_VISION},
    ),
    Case(
        "glm4v_moe",
        "glm4v_moe",
        {
            "text_config": {**GLM_TEXT, **in_axes(2, 1, 1, partial_rotary_factor=0.5)},
            "vision_config": {**VISION, "image_size": 28},
        },
    ),
)
