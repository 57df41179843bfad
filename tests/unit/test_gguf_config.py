"""What a GGUF file's metadata say of a model, and what is known of models whose files say nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.base.errors import CorruptFileError, UnsupportedError
from engine.files.sources.gguf.architectures import ARCHITECTURES
from engine.files.sources.gguf.config import build_config
from engine.files.sources.gguf.undo import head_order
from engine.files.sources.tensors import MemoryTensor
from engine.spec.attention import Attention, LatentAttention
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
LAGUNA = {
    **{name: value for name, value in HEADS.items() if name != "attention.head_count"},
    "block_count": 6,
    "attention.head_count": [4, 6, 6, 6, 4, 6],
    "attention.head_count_kv": 2,
    "attention.key_length": 16,
    "expert_count": 8,
    "expert_feed_forward_length": 32,
    "expert_shared_feed_forward_length": 32,
    "expert_used_count": 2,
    "rope.dimension_count": 8,
    "rope.freq_base": 500000.0,
}
GLM_5_2 = [True, True, *[True, False, False, False] * 19]  # llama.cpp's table for files that list nothing


def config_of(architecture: str, metadata: dict[str, Any], rows: dict[str, int] | None = None) -> dict[str, Any]:
    """The config of a file with an embedding, and matrices of so many `rows`."""
    name = architecture.split(" ")[0]
    named = {f"{name}.{key}": value for key, value in metadata.items()}
    tensors = {
        name: MemoryTensor("f32", (count, 64), np.zeros((count, 256), np.uint8))
        for name, count in {"token_embd.weight": 8, **(rows or {})}.items()
    }
    return build_config(ARCHITECTURES[architecture], {"general.architecture": name, **named}, tensors, Path("m.gguf"))


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


@pytest.mark.parametrize(("rows", "gating"), [(4, "per-head"), (64, "per-element")])
@pytest.mark.parametrize(
    ("metadata", "kinds"),
    [
        ({"attention.sliding_window": 512, "rope.freq_base_swa": 10000.0}, "FSSSFS"),
        ({}, "FFFFFF"),
        ({"attention.sliding_window": 512, "attention.sliding_window_pattern": [False, True] * 3}, "FSFSFS"),
    ],
    ids=["XS.2", "M.1", "listed"],
)
def test_gates_and_windows_of_laguna(metadata: dict[str, Any], kinds: str, rows: int, gating: str) -> None:
    layers = {f"blk.{layer}.ffn_gate_inp.weight": 8 for layer in range(6)}
    config = config_of("laguna", {**LAGUNA, **metadata}, {**layers, "blk.0.attn_gate.weight": rows})
    assert config["gating"] == gating
    named = {"F": "full_attention", "S": "sliding_attention"}
    assert config["layer_types"] == [named[kind] for kind in kinds]
    spec = spec_from_config(config)
    mixers = [layer.mixer for layer in spec.layers if isinstance(layer.mixer, Attention)]
    assert [mixer.window for mixer in mixers] == [512 if kind == "S" else 0 for kind in kinds]
    assert {mixer.rope.dim for mixer in mixers if mixer.rope} == {8, 16} if "S" in kinds else {8}


def test_heads_in_the_order_of_a_model_that_sees_are_refused() -> None:
    glm4 = {**HEADS, "block_count": 1, "attention.head_count_kv": 2, "rope.dimension_count": 8}
    assert config_of("glm4", glm4)["partial_rotary_factor"] == 0.5
    with pytest.raises(UnsupportedError, match=r"glm4\.rope\.dimension_sections is 4, which is not known"):
        config_of("glm4", {**glm4, "rope.dimension_sections": [4, 2, 2, 0]})


def test_queries_that_grow_from_an_unknown_length_are_refused() -> None:
    mistral3 = {**HEADS, "block_count": 1, "attention.temperature_scale": 0.1}
    scaled = {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 512}
    named = "mistral3 with growing queries"
    assert config_of(named, {**mistral3, **scaled})["rope_scaling"]["llama_4_scaling_beta"] == 0.1
    with pytest.raises(UnsupportedError, match="lets queries grow, and does not say from which length on"):
        config_of(named, mistral3)


def test_attention_without_heads_is_refused() -> None:
    metadata = {**HEADS, "block_count": 2, "attention.head_count": 0}
    for architecture in ("llama", "qwen3"):
        with pytest.raises(CorruptFileError, match="speaks of 0 heads"):
            config_of(architecture, metadata)
    with pytest.raises(CorruptFileError, match="cannot belong to 0 heads"):
        head_order(64, 0, Path("model.gguf"))
