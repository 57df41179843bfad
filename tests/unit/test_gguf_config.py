"""What a GGUF file's metadata say of a model, and what is known of models whose files say nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.base.errors import UnsupportedError
from engine.files.sources.gguf.architectures import ARCHITECTURES
from engine.files.sources.gguf.config import build_config
from engine.files.sources.tensors import MemoryTensor
from engine.spec.attention import LatentAttention
from engine.spec.families import spec_from_config

HEADS = {
    "attention.head_count": 4,
    "attention.layer_norm_rms_epsilon": 1e-5,
    "context_length": 4096,
    "embedding_length": 64,
    "feed_forward_length": 96,
}
GLM_DSA = {
    **HEADS,
    "block_count": 78,
    "context_length": 1 << 20,
    "attention.q_lora_rank": 32,
    "attention.kv_lora_rank": 32,
    "attention.key_length": 24,
    "attention.value_length": 16,
    "attention.indexer.head_count": 4,
    "attention.indexer.key_length": 16,
    "attention.indexer.top_k": 16,
    "expert_count": 8,
    "expert_feed_forward_length": 32,
    "expert_shared_count": 1,
    "expert_used_count": 2,
    "expert_weights_norm": True,
    "leading_dense_block_count": 3,
    "rope.dimension_count": 8,
}
GLM_5_2 = [True, True, *[True, False, False, False] * 19]  # llama.cpp's table for files that list nothing


def config_of(architecture: str, metadata: dict[str, Any]) -> dict[str, Any]:
    named = {f"{architecture}.{key}": value for key, value in metadata.items()}
    tensors = {"token_embd.weight": MemoryTensor("f32", (8, 64), np.zeros((8, 256), np.uint8))}
    return build_config(
        ARCHITECTURES[architecture], {"general.architecture": architecture, **named}, tensors, Path("m.gguf")
    )


@pytest.mark.parametrize(
    ("changes", "own"),
    [
        ({}, GLM_5_2),
        ({"context_length": 202752}, [True] * 78),
        ({"attention.indexer.types": [True] * 77 + [False]}, [True] * 77 + [False]),
    ],
    ids=["GLM-5.2", "GLM-5", "listed"],
)
def test_which_layers_of_glm_choose_for_themselves(changes: dict[str, Any], own: list[bool]) -> None:
    layers = spec_from_config(config_of("glm-dsa", {**GLM_DSA, **changes})).layers
    indexers = [layer.mixer.indexer for layer in layers if isinstance(layer.mixer, LatentAttention)]
    assert [each is not None and not each.shared for each in indexers] == own


def test_heads_in_the_order_of_a_model_that_sees_are_refused() -> None:
    glm4 = {**HEADS, "block_count": 1, "attention.head_count_kv": 2, "rope.dimension_count": 8}
    assert config_of("glm4", glm4)["partial_rotary_factor"] == 0.5
    with pytest.raises(UnsupportedError, match=r"glm4\.rope\.dimension_sections is 4, which is not known"):
        config_of("glm4", {**glm4, "rope.dimension_sections": [4, 2, 2, 0]})
