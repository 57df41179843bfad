"""Gemma's config.json to spec: as Gemma 3 and 4 are published, and what is refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from engine.base.errors import CorruptFileError, UnsupportedError
from engine.spec.families import FAMILIES, layout, spec_from_config
from engine.spec.feed_forward import Dense, Moe, Router
from engine.spec.rope import LinearScaling, ProportionalScaling, Rope
from engine.spec.schema import LayerInputs, Spec
from engine.spec.tensors import layer_tensors, outer_tensors
from tests.unit.spec_parts import attention

NEAR, FAR = "sliding_attention", "full_attention"
GEMMA_3_4B: dict[str, Any] = {
    "model_type": "gemma3",
    "text_config": {
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "model_type": "gemma3_text",
        "num_hidden_layers": 34,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "sliding_window": 1024,
    },
    "vision_config": {},
}
GEMMA_4_26B_A4B_TEXT: dict[str, Any] = {
    "attention_bias": False,
    "attention_k_eq_v": True,
    "enable_moe_block": True,
    "final_logit_softcapping": 30.0,
    "global_head_dim": 512,
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "hidden_size": 2816,
    "hidden_size_per_layer_input": 0,
    "intermediate_size": 2112,
    "layer_types": [NEAR, NEAR, NEAR, NEAR, NEAR, FAR] * 5,
    "max_position_embeddings": 262144,
    "model_type": "gemma4_text",
    "moe_intermediate_size": 704,
    "num_attention_heads": 16,
    "num_experts": 128,
    "num_global_key_value_heads": 2,
    "num_hidden_layers": 30,
    "num_key_value_heads": 8,
    "num_kv_shared_layers": 0,
    "rms_norm_eps": 1e-06,
    "rope_parameters": {
        FAR: {"partial_rotary_factor": 0.25, "rope_theta": 1000000.0, "rope_type": "proportional"},
        NEAR: {"rope_theta": 10000.0, "rope_type": "default"},
    },
    "sliding_window": 1024,
    "tie_word_embeddings": True,
    "top_k_experts": 8,
    "use_bidirectional_attention": "vision",
    "use_double_wide_mlp": False,
    "vocab_size": 262144,
    "vocab_size_per_layer_input": 262144,
}
SMALL = {
    "enable_moe_block": False,
    "num_experts": None,
    "attention_k_eq_v": False,
    "num_global_key_value_heads": None,
    "hidden_size_per_layer_input": 256,
    "num_kv_shared_layers": 18,
    "use_double_wide_mlp": True,
}


def gemma4(**changes: Any) -> Spec:
    return spec_from_config({"model_type": "gemma4", "text_config": {**GEMMA_4_26B_A4B_TEXT, **changes}})


def test_gemma_3_as_it_is_published_says_little() -> None:
    spec = spec_from_config(GEMMA_3_4B)
    assert (spec.vocab_size, spec.context_length, spec.embedding_scale) == (262208, 131072, 2560**0.5)
    near, far = attention(spec, 0), attention(spec, 5)
    assert [near.window, near.heads, near.kv_heads, near.head_dim, near.scale] == [1024, 8, 4, 256, 256**-0.5]
    assert (near.rope, far.rope) == (Rope(10000.0, 256), Rope(1e6, 256, scaling=LinearScaling(8.0)))
    assert [attention(spec, layer).window for layer in range(12)] == [1024, 1024, 1024, 1024, 1024, 0] * 2
    assert spec.layers[0].residual.form == "sandwich"


def test_gemma_4_with_experts() -> None:
    spec = gemma4()
    near, far = attention(spec, 0), attention(spec, 5)
    assert [near.window, near.kv_heads, near.head_dim, near.v_norm, near.v_from_k] == [1024, 8, 256, True, False]
    assert [far.window, far.kv_heads, far.head_dim, far.v_norm, far.v_from_k] == [0, 2, 512, True, True]
    assert (near.scale, far.scale) == (1.0, 1.0)
    assert far.rope == Rope(1e6, 512, scaling=ProportionalScaling(0.25, 1.0))
    ffn = spec.layers[0].ffn
    assert isinstance(ffn, Moe)
    assert ffn.router == Router(8, normalize=True, normed=True, expert_scale=True)
    assert ffn.shared is not None
    assert (ffn.shared.width, ffn.experts.width, ffn.apart) == (2112, 704, True)
    assert (spec.logit_softcap, spec.layer_inputs, spec.layers[0].residual.scaled) == (30.0, None, True)


def test_the_last_layer_of_gemma_4_sees_everything() -> None:
    forced = gemma4(layer_types=[NEAR, NEAR, NEAR, NEAR, NEAR, FAR] * 4 + [NEAR] * 6)
    assert [attention(forced, layer).window for layer in (24, 28, 29)] == [1024, 1024, 0]
    assert attention(forced, 29) == attention(gemma4(), 29)


def test_gemma_4_has_positions_that_a_config_need_not_tell() -> None:
    assert gemma4(rope_parameters=None) == gemma4()


def test_gemma_4_whose_last_layers_share_keys() -> None:
    spec = gemma4(**SMALL)
    assert spec.layer_inputs == LayerInputs(256, 262144)
    owners = [attention(spec, layer).kv_layer for layer in range(30)]
    assert owners == [-1] * 12 + [10, 10, 10, 10, 10, 11] * 3
    assert [spec.layers[layer].ffn for layer in (11, 12)] == [
        Dense(2112, spec.layers[0].ffn.activation),  # type: ignore[union-attr]
        Dense(4224, spec.layers[0].ffn.activation),  # type: ignore[union-attr]
    ]


def test_layers_may_have_fields_of_their_own() -> None:
    ours = {name: value for name, value in GEMMA_4_26B_A4B_TEXT.items() if "global" not in name}
    own = {str(layer): {"head_dim": 512, "num_key_value_heads": 2} for layer in range(5, 30, 6)}
    assert spec_from_config({**ours, "per_layer_config": own}).layers == gemma4().layers
    with pytest.raises(UnsupportedError, match="intermediate_size for layer 0"):
        spec_from_config({**ours, "per_layer_config": {"0": {"intermediate_size": 3}}})


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"use_bidirectional_attention": "all"}, "use_bidirectional_attention"),
        ({"hidden_activation": "silu"}, "hidden_activation"),
        ({"layer_types": [NEAR] * 30 + [FAR]}, "31 types"),
        ({"rope_parameters": {FAR: {"rope_type": "other"}, NEAR: {}}}, "rope_type"),
    ],
)
def test_what_is_not_implemented_is_refused_by_name(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(UnsupportedError, match=named):
        gemma4(**changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"num_kv_shared_layers": 30},
        {"num_kv_shared_layers": 26},
        {"hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 100},
    ],
)
def test_what_cannot_be_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(CorruptFileError):
        gemma4(**changes)


def test_softcaps_of_scores_are_refused_where_nothing_reads_them() -> None:
    with pytest.raises(UnsupportedError, match="attn_logit_softcapping"):
        spec_from_config({**GEMMA_3_4B, "text_config": {**GEMMA_3_4B["text_config"], "attn_logit_softcapping": 50.0}})


def test_keys_that_nothing_reads_are_left_out_and_counted() -> None:
    """A layer that reads another's may have some of its own in a checkpoint."""
    small = {
        **GEMMA_4_26B_A4B_TEXT,
        **SMALL,
        "num_hidden_layers": 2,
        "layer_types": [FAR, FAR],
        "num_kv_shared_layers": 1,
        "use_double_wide_mlp": False,
        "hidden_size_per_layer_input": 0,
    }
    spec = spec_from_config(small)
    names = FAMILIES["gemma4"].names
    tensors = {
        names.holding(wanted.key)[-1].tensor(layer, -1): ("f32", (wanted.rows, wanted.cols)[wanted.is_vector :])
        for layer in (-1, 0, 1)
        for wanted in (outer_tensors(spec) if layer < 0 else layer_tensors(spec, layer))
    }
    assert layout(spec, tensors).left_out == {}
    unread = {f"model.layers.1.self_attn.{name}.weight": ("f32", (3, 3)) for name in ("k_proj", "k_norm")}
    assert layout(spec, {**tensors, **unread}).left_out == {"unread": 2}
    with pytest.raises(UnsupportedError, match=r"1\.self_attn\.other"):
        layout(spec, {**tensors, "model.layers.1.self_attn.other.weight": ("f32", (3, 3))})
