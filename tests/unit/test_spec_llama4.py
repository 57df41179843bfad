"""Llama 4's config.json to spec: as it is published, in other spellings, and what is refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from engine.base.errors import CorruptFileError, UnsupportedError
from engine.spec.families import spec_from_config
from engine.spec.feed_forward import Dense, Moe, Router, Shared
from engine.spec.rope import Growth, Llama3Scaling
from engine.spec.schema import Spec
from tests.unit.spec_parts import attention

SCOUT_TEXT: dict[str, Any] = {
    "attention_bias": False,
    "attention_chunk_size": 8192,
    "attn_scale": 0.1,
    "attn_temperature_tuning": 4,
    "floor_scale": 8192,
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 5120,
    "interleave_moe_layer_step": 1,
    "intermediate_size": 8192,
    "intermediate_size_mlp": 16384,
    "max_position_embeddings": 10485760,
    "model_type": "llama4_text",
    "no_rope_layers": [1, 1, 1, 0] * 12,
    "num_attention_heads": 40,
    "num_experts_per_tok": 1,
    "num_hidden_layers": 48,
    "num_key_value_heads": 8,
    "num_local_experts": 16,
    "rms_norm_eps": 1e-05,
    "rope_scaling": {
        "factor": 16.0,
        "high_freq_factor": 1.0,
        "low_freq_factor": 1.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    },
    "rope_theta": 500000.0,
    "use_qk_norm": True,
    "vocab_size": 202048,
}


def spec_of(**changes: Any) -> Spec:
    text = {name: value for name, value in {**SCOUT_TEXT, **changes}.items() if value is not ...}
    return spec_from_config({"model_type": "llama4", "text_config": text, "vision_config": {}})


def test_scout() -> None:
    spec = spec_of()
    near, far = attention(spec, 0), attention(spec, 3)
    assert (near.chunk, near.qk_norm, near.growth, near.window) == (8192, "unit_after", None, 0)
    assert near.rope is not None
    assert (near.rope.theta, near.rope.pairs) == (500000.0, True)
    assert near.rope.scaling == Llama3Scaling(16.0, 8192, 1.0, 1.0)
    assert (far.chunk, far.qk_norm, far.rope, far.growth) == (0, "none", None, Growth(0.1, 8192, 1))
    assert [layer.mixer == far for layer in spec.layers] == [False, False, False, True] * 12
    ffn = spec.layers[0].ffn
    assert isinstance(ffn, Moe)
    assert (ffn.router, ffn.shared, ffn.scaled_input) == (Router(1, "sigmoid"), Shared(8192), True)
    assert spec.moe_layers == tuple(range(48))


def test_layers_may_be_told_by_intervals_or_by_their_numbers() -> None:
    by_interval = spec_of(no_rope_layers=[], interleave_moe_layer_step=2)
    assert by_interval.layers[3].mixer == attention(spec_of(), 3)
    assert by_interval.moe_layers == tuple(range(1, 48, 2))
    assert by_interval.layers[0].ffn == Dense(16384)
    assert spec_of(moe_layers=[1, 5], interleave_moe_layer_step=2).moe_layers == (1, 5)
    longer = spec_of(no_rope_layers=[0, 1] * 40)
    assert [attention(longer, layer).chunk for layer in (0, 1)] == [0, 8192]


def test_without_chunks_rope_is_where_it_was() -> None:
    spec = spec_of(attention_chunk_size=None, layer_types=["full_attention"] * 48)
    assert attention(spec, 0).chunk == spec.context_length
    assert attention(spec, 0).rope is not None
    assert attention(spec, 3).rope is None


def test_what_may_be_switched_off() -> None:
    assert attention(spec_of(attn_temperature_tuning=False), 3).growth is None
    assert attention(spec_of(attn_temperature_tuning=0), 3).growth is None
    assert attention(spec_of(use_qk_norm=False), 0).qk_norm == "none"


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"num_experts_per_tok": 2}, "num_experts_per_tok"),
        ({"layer_types": ["chunked_attention"] * 48}, "no_rope_layers"),
        ({"no_rope_layers": [1, 0]}, "2 types of layers for 48"),
        ({"hidden_act": "gelu"}, "hidden_act"),
    ],
)
def test_what_is_not_implemented_is_refused_by_name(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(UnsupportedError, match=named):
        spec_of(**changes)


@pytest.mark.parametrize("changes", [{"floor_scale": 0}, {"attn_scale": -0.1}, {"attn_temperature_tuning": "yes"}])
def test_what_cannot_be_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(CorruptFileError):
        spec_of(**changes)
