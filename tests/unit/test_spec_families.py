"""config.json to spec: published models, old and new spellings, and what is refused by name."""

from __future__ import annotations

import math
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.base.errors import CorruptFileError, FreetokenError, UnsupportedError
from engine.spec.attention import Attention, LatentAttention
from engine.spec.families import FAMILIES, spec_from_config
from engine.spec.feed_forward import Activation, Dense, Moe, Router
from engine.spec.rope import LinearScaling, Llama3Scaling, LongScaling, YarnScaling
from engine.spec.schema import Spec
from tests.unit.published_configs import (
    DEEPSEEK_V2_LITE,
    DEEPSEEK_V3,
    GPT_OSS_20B,
    GRANITE_MOE,
    KIMI_K2_THINKING,
    KIMI_LINEAR_48B_A3B,
    LLAMA_3_2_1B,
    MIXTRAL_8X7B,
    QWEN2_MOE,
    QWEN3_5_35B_A3B,
    QWEN3_30B_A3B,
    QWEN3_NEXT_80B_A3B,
)


def mixer(spec: Spec, layer: int = 0) -> Attention:
    found = spec.layers[layer].mixer
    assert isinstance(found, Attention)
    return found


def moe(spec: Spec, layer: int = -1) -> Moe:
    found = spec.layers[layer].ffn
    assert isinstance(found, Moe)
    return found


# --- published models


def test_llama_3_2() -> None:
    spec = spec_from_config(LLAMA_3_2_1B)
    assert (len(spec.layers), spec.vocab_size, spec.tied_head) == (16, 128256, True)
    rope = mixer(spec).rope
    assert rope is not None
    assert rope.theta == 500000.0
    assert rope.scaling == Llama3Scaling(32.0, 8192, 1.0, 4.0)
    assert spec.layers[0].ffn == Dense(8192)


def test_qwen3_moe() -> None:
    spec = spec_from_config(QWEN3_30B_A3B)
    assert spec.moe_layers == tuple(range(48))
    assert (mixer(spec).qk_norm, mixer(spec).head_dim, mixer(spec).window) == ("head", 128, 0)
    assert moe(spec).router == Router(8, "softmax", normalize=True)
    assert (moe(spec).experts.count, moe(spec).experts.width) == (128, 768)


def test_deepseek_v3() -> None:
    spec = spec_from_config(DEEPSEEK_V3)
    assert spec.moe_layers == tuple(range(3, 61))
    attention = spec.layers[0].mixer
    assert isinstance(attention, LatentAttention)
    assert attention.rope.pairs
    assert attention.scale == pytest.approx((0.1 * math.log(40) + 1) ** 2 / math.sqrt(192))
    assert attention.rope.scaling == YarnScaling(40.0, 4096, 32.0, 1.0, True, 1.0)
    assert moe(spec).router == Router(8, "sigmoid", 8, 4, 2, normalize=True, scale=2.5, choice_bias=True)
    assert moe(spec).shared is not None
    assert spec.context_length == 163840


def test_kimi_k2_is_a_deepseek_v3_of_other_sizes() -> None:
    spec = spec_from_config(KIMI_K2_THINKING)
    assert spec == spec_from_config(KIMI_K2_THINKING | {"model_type": "deepseek_v3"})
    assert spec.family == "deepseek_v3"
    attention = spec.layers[0].mixer
    assert isinstance(attention, LatentAttention)
    assert attention.rope.scaling == YarnScaling(64.0, 4096, 1.0, 1.0, True, 1.0)
    assert moe(spec).router == Router(8, "sigmoid", normalize=True, scale=2.827, choice_bias=True)
    assert (moe(spec).experts.count, spec.moe_layers[0]) == (384, 1)


def test_deepseek_v2_lite() -> None:
    spec = spec_from_config(DEEPSEEK_V2_LITE)
    attention = spec.layers[0].mixer
    assert isinstance(attention, LatentAttention)
    assert attention.q_lora_rank == 0
    assert moe(spec).router == Router(8, "softmax")
    shared = moe(spec).shared
    assert shared is not None
    assert shared.width == 2 * 2048


def test_gpt_oss() -> None:
    spec = spec_from_config(GPT_OSS_20B)
    assert [mixer(spec, layer).window for layer in range(4)] == [128, 0, 128, 0]
    attention = mixer(spec)
    assert attention.sinks
    assert attention.q_bias
    assert attention.o_bias
    assert attention.rope is not None
    assert attention.rope.scaling == YarnScaling(32.0, 4096, 32.0, 1.0, False, 0.1 * math.log(32) + 1)
    assert moe(spec).experts.activation == Activation("clamped_silu", 1.702, 7.0)
    assert moe(spec).router == Router(4, "softmax_topk", linear_bias=True)


def test_mixtral_always_normalises() -> None:
    spec = spec_from_config(MIXTRAL_8X7B)
    assert moe(spec).router == Router(2, "softmax", normalize=True)
    assert mixer(spec).head_dim == 128


def test_granite_scales() -> None:
    spec = spec_from_config(GRANITE_MOE)
    assert (spec.embedding_scale, spec.residual_scale, spec.logit_scale) == (12.0, 0.22, 1 / 6)
    assert mixer(spec).scale == 0.015625


def test_qwen2_moe_gates_its_shared_expert() -> None:
    shared = moe(spec_from_config(QWEN2_MOE)).shared
    assert shared is not None
    assert (shared.width, shared.gated) == (5632, True)


# --- spellings


def test_rope_theta_may_stand_inside_rope_parameters_alone() -> None:
    config = {name: value for name, value in LLAMA_3_2_1B.items() if name not in ("rope_theta", "rope_scaling")}
    parameters = {**LLAMA_3_2_1B["rope_scaling"], "rope_theta": 500000.0}
    assert spec_from_config(config | {"rope_parameters": parameters}) == spec_from_config(LLAMA_3_2_1B)


@pytest.mark.parametrize(("family", "theta"), [("llama", 10000.0), ("mixtral", 1e6)])
def test_rope_theta_has_the_familys_default(family: str, theta: float) -> None:
    config = {**MIXTRAL_8X7B, "model_type": family, "rope_theta": None}
    rope = mixer(spec_from_config(config)).rope
    assert rope is not None
    assert rope.theta == theta


def test_head_dim_and_key_heads_have_defaults() -> None:
    config = LLAMA_3_2_1B | {"head_dim": None, "num_key_value_heads": None}
    assert (mixer(spec_from_config(config)).head_dim, mixer(spec_from_config(config)).kv_heads) == (64, 32)


def test_architecture_stands_in_for_an_absent_model_type() -> None:
    config = {name: value for name, value in LLAMA_3_2_1B.items() if name != "model_type"}
    assert spec_from_config(config) == spec_from_config(LLAMA_3_2_1B)


def test_layers_without_experts() -> None:
    config = QWEN3_30B_A3B | {"decoder_sparse_step": 2, "mlp_only_layers": [3, 5], "num_hidden_layers": 8}
    assert spec_from_config(config).moe_layers == (1, 7)


def test_windows_by_layer_type_and_by_position() -> None:
    qwen2 = {**LLAMA_3_2_1B, "model_type": "qwen2", "num_hidden_layers": 4, "sliding_window": 64}
    assert [mixer(spec_from_config(qwen2), layer).window for layer in range(4)] == [0, 0, 0, 0]
    late = qwen2 | {"use_sliding_window": True, "max_window_layers": 3}
    assert [mixer(spec_from_config(late), layer).window for layer in range(4)] == [0, 0, 0, 64]
    typed = late | {"layer_types": ["full_attention", "sliding_attention", "full_attention", "full_attention"]}
    assert [mixer(spec_from_config(typed), layer).window for layer in range(4)] == [0, 64, 0, 0]
    mistral = {**qwen2, "model_type": "mistral"}
    assert [mixer(spec_from_config(mistral), layer).window for layer in range(4)] == [64, 64, 64, 64]


@pytest.mark.parametrize(
    ("scaling", "expected"),
    [
        ({"type": "linear", "factor": 4}, LinearScaling(4.0)),
        ({"rope_type": "default"}, None),
        ({"type": "dynamic", "factor": 2.0}, None),
        ({"type": "yarn", "factor": 4.0}, YarnScaling(4.0, 131072, 32.0, 1.0, True, 0.1 * math.log(4) + 1)),
        (
            {"type": "yarn", "factor": 4.0, "attention_factor": 1.5, "original_max_position_embeddings": 1024},
            YarnScaling(4.0, 1024, 32.0, 1.0, True, 1.5),
        ),
        (
            {"type": "longrope", "short_factor": [1.0] * 32, "long_factor": [2.0] * 32, "factor": 1.0},
            LongScaling((1.0,) * 32, (2.0,) * 32, 131072, 1.0),
        ),
    ],
)
def test_rope_scalings(scaling: dict[str, Any], expected: object) -> None:
    rope = mixer(spec_from_config(LLAMA_3_2_1B | {"rope_scaling": scaling})).rope
    assert rope is not None
    assert rope.scaling == expected


def test_yarn_stretches_the_context() -> None:
    scaling = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 131072}
    assert spec_from_config(LLAMA_3_2_1B | {"rope_scaling": scaling}).context_length == 4 * 131072


# --- refusals


@pytest.mark.parametrize(
    ("model_type", "words"),
    [("qwen3moe", "Did you mean qwen3_moe or"), ("mamba", "deepseek_v2, deepseek_v3")],
)
def test_an_unknown_family_is_named_and_the_known_listed(model_type: str, words: str) -> None:
    with pytest.raises(UnsupportedError) as caught:
        spec_from_config(LLAMA_3_2_1B | {"model_type": model_type})
    assert repr(model_type) in caught.value.message
    assert words in caught.value.remedy
    assert all(name in caught.value.remedy for name in FAMILIES)


def test_a_config_that_names_no_family_is_refused() -> None:
    with pytest.raises(CorruptFileError, match="model_type"):
        spec_from_config({})


@pytest.mark.parametrize(
    ("config", "change", "words"),
    [
        (LLAMA_3_2_1B, {"hidden_act": "gelu"}, "hidden_act = 'gelu'"),
        (LLAMA_3_2_1B, {"rope_scaling": {"type": "spiral"}}, "rope_type = 'spiral'"),
        (LLAMA_3_2_1B, {"partial_rotary_factor": 0.5}, "partial_rotary_factor = 0.5"),
        (LLAMA_3_2_1B, {"rope_parameters": {"full_attention": {"rope_theta": 1e4}}}, "other layers"),
        (LLAMA_3_2_1B, {"layer_types": ["linear_attention"] * 16}, "'linear_attention'"),
        (LLAMA_3_2_1B, {"layer_types": ["sliding_attention"] * 16}, "'sliding_attention'"),
        (GPT_OSS_20B, {"layer_types": ["full_attention"]}, "1 types of layers for 24 layers"),
        (MIXTRAL_8X7B | {"sliding_window": 9}, {"layer_types": ["full_attention"] * 32}, "mixes layer_types"),
        (DEEPSEEK_V3, {"scoring_func": "softmax"}, "scoring_func = 'softmax'"),
        (DEEPSEEK_V3, {"topk_method": "greedy"}, "topk_method = 'greedy'"),
        (DEEPSEEK_V3, {"moe_layer_freq": 2}, "moe_layer_freq = 2"),
        (DEEPSEEK_V2_LITE, {"norm_topk_prob": True}, "norm_topk_prob = True"),
        (QWEN2_MOE, {"use_sliding_window": True}, "use_sliding_window = True"),
        (MIXTRAL_8X7B, {"num_local_experts": 0}, "without experts"),
    ],
)
def test_a_setting_that_is_not_implemented_is_refused_by_name(
    config: dict[str, Any], change: dict[str, Any], words: str
) -> None:
    spec_from_config(config)
    with pytest.raises(UnsupportedError) as caught:
        spec_from_config(config | change)
    assert words in caught.value.message


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"hidden_size": None}, "lacks hidden_size"),
        ({"num_hidden_layers": "16"}, "num_hidden_layers in config.json must be a whole number"),
        ({"num_hidden_layers": 0}, "num_hidden_layers must be positive"),
        ({"num_hidden_layers": 10**9}, "layers are more than"),
        ({"num_attention_heads": 0}, "num_attention_heads must be positive"),
        ({"num_key_value_heads": 5}, "32 heads cannot share 5"),
        ({"vocab_size": True}, "vocab_size"),
        ({"rms_norm_eps": "small"}, "rms_norm_eps"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings"),
        ({"rope_scaling": [1, 2]}, "rope_scaling in config.json must be an object"),
        ({"rope_scaling": {"type": "linear"}}, "rope_scaling in config.json lacks factor"),
        ({"rope_scaling": {"type": "yarn", "factor": 0}}, "factor must be positive"),
        ({"rope_theta": 0.5}, "rope_theta must be larger than one"),
        ({"layer_types": "full"}, "layer_types"),
    ],
)
def test_a_value_that_cannot_be_is_refused_by_name(change: dict[str, Any], words: str) -> None:
    with pytest.raises(CorruptFileError) as caught:
        spec_from_config(LLAMA_3_2_1B | change)
    assert words in caught.value.message


PUBLISHED = [
    LLAMA_3_2_1B, QWEN3_30B_A3B, DEEPSEEK_V3, DEEPSEEK_V2_LITE, KIMI_K2_THINKING, GPT_OSS_20B, MIXTRAL_8X7B,
    GRANITE_MOE, QWEN3_NEXT_80B_A3B, QWEN3_5_35B_A3B, QWEN3_5_35B_A3B["text_config"], KIMI_LINEAR_48B_A3B,
]  # fmt: skip
VALUES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([0, 1, -1, 2, 3, 1 << 31, 10**400])
    | st.floats()
    | st.text(max_size=4)
    | st.lists(st.integers(), max_size=3)
    | st.dictionaries(
        st.sampled_from(
            ["type", "factor", "rope_theta", "mscale", "mscale_all_dim", "original_max_position_embeddings"]
        ),
        st.sampled_from(["yarn", "longrope", "linear", 0, 1, 2.0, -1, 1e300, None]),
    )
)


@settings(max_examples=400, deadline=None)
@given(config=st.sampled_from(PUBLISHED), data=st.data())
def test_any_value_of_any_field_gives_a_spec_or_a_sentence(config: dict[str, Any], data: st.DataObject) -> None:
    changes = data.draw(st.dictionaries(st.sampled_from(sorted(config)), VALUES, min_size=1, max_size=3))
    changes.setdefault("num_hidden_layers", 2)
    with suppress(FreetokenError):
        spec_from_config(config | changes)
