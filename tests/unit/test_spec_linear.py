"""MiniMax-01, LongCat-Flash and Ling: settings under both sets of names, and what a schema refuses of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from engine.base.errors import CorruptFileError, UnsupportedError
from engine.spec.attention import Attention, LatentAttention
from engine.spec.families import spec_from_config
from engine.spec.feed_forward import Dense, Moe
from engine.spec.recurrent import DeltaNet, LinearAttention
from engine.spec.residual import Residual
from engine.spec.schema import Spec

BASE: dict[str, Any] = {
    "vocab_size": 40,
    "hidden_size": 24,
    "num_attention_heads": 4,
    "num_hidden_layers": 3,
    "intermediate_size": 20,
    "max_position_embeddings": 64,
    "num_experts_per_tok": 2,
}
MINIMAX = {
    **BASE,
    "model_type": "minimax",
    "num_key_value_heads": 2,
    "head_dim": 8,
    "num_local_experts": 4,
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    "full_attn_alpha_factor": 3.5,
    "linear_attn_alpha_factor": 2.5,
    "mlp_beta_factor": 0.5,
}
OLD_NAMES = {
    "layer_types": ("attn_type_list", [0, 1, 0]),
    "full_attn_alpha_factor": ("layernorm_full_attention_alpha", 3.5),
    "linear_attn_alpha_factor": ("layernorm_linear_attention_alpha", 2.5),
    "mlp_beta_factor": ("layernorm_mlp_beta", 0.5),
}
LONGCAT = {
    **BASE,
    "model_type": "longcat_flash",
    "num_layers": 2,
    "q_lora_rank": 6,
    "kv_lora_rank": 12,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "v_head_dim": 8,
    "ffn_hidden_size": 20,
    "expert_ffn_hidden_size": 10,
    "n_routed_experts": 5,
    "zero_expert_num": 3,
    "moe_topk": 2,
}
LING = {
    **BASE,
    "model_type": "bailing_hybrid",
    "kv_lora_rank": 12,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "v_head_dim": 8,
    "head_dim": 8,
    "num_experts": 8,
    "moe_intermediate_size": 10,
    "layer_group_size": 3,
}


def spec_of(config: dict[str, Any], **changes: Any) -> Spec:
    return spec_from_config({**config, **changes})


def test_minimax_has_the_same_settings_under_its_publishers_names() -> None:
    old = {name: value for name, value in MINIMAX.items() if name not in OLD_NAMES} | dict(OLD_NAMES.values())
    assert spec_of(old, model_type="minimax_text_01", postnorm=True) == spec_of(MINIMAX)


def test_minimax_decays_more_slowly_in_later_layers_and_scales_the_stream_by_kinds_of_parts() -> None:
    first, second, third = spec_of(MINIMAX).layers
    assert isinstance(first.mixer, LinearAttention)
    assert isinstance(third.mixer, LinearAttention)
    assert (first.mixer.slope, third.mixer.slope) == pytest.approx((1.00001, 1.5e-5), rel=1e-5)
    assert first.residual == third.residual == Residual("normed", attn_keep=2.5, ffn_add=0.5)
    assert second.residual == Residual("normed", attn_keep=3.5, ffn_add=0.5)


def test_minimax_rotates_as_many_values_as_rotary_dim_says() -> None:
    mixer = spec_of(MINIMAX, rotary_dim=4).layers[1].mixer
    assert isinstance(mixer, Attention)
    assert mixer.rope is not None
    assert mixer.rope.dim == 4


@pytest.mark.parametrize("changes", [{"attn_type_list": [0, 2, 0]}, {"attn_type_list": [0, 1]}])
def test_marks_that_are_not_one_a_layer_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(CorruptFileError, match="marks 3 layers"):
        spec_of({name: value for name, value in MINIMAX.items() if name != "layer_types"}, **changes)


@pytest.mark.parametrize(
    ("config", "changes"),
    [
        (MINIMAX, {"postnorm": False}),
        (MINIMAX, {"shared_intermediate_size": 8}),
        (LONGCAT, {"zero_expert_type": "drop"}),
        (LONGCAT, {"mla_scale_q_lora": False}),
        (LING, {"score_function": "softmax"}),
    ],
)
def test_settings_that_would_need_something_new_are_refused_by_name(
    config: dict[str, Any], changes: dict[str, Any]
) -> None:
    with pytest.raises(UnsupportedError, match=next(iter(changes))):
        spec_of(config, **changes)


def test_longcat_has_two_layers_for_each_of_its_own_and_scales_its_latents() -> None:
    spec = spec_of(LONGCAT)
    assert [type(layer.ffn) for layer in spec.layers] == [Moe, Dense] * 2
    moe, mixer = spec.layers[0].ffn, spec.layers[0].mixer
    assert isinstance(moe, Moe)
    assert isinstance(mixer, LatentAttention)
    assert (moe.deferred, moe.experts.count, moe.zero, moe.choices) == (True, 5, 3, 8)
    assert mixer.latent_scale == pytest.approx(2**0.5)
    assert mixer.scale == pytest.approx(12**-0.5 * 2)


def test_what_is_deferred_needs_a_layer_behind_that_defers_nothing() -> None:
    spec = spec_of(LONGCAT)
    with pytest.raises(CorruptFileError, match="defers"):
        replace(spec, layers=spec.layers[:1])
    with pytest.raises(CorruptFileError, match="defers"):
        replace(spec, layers=(spec.layers[0], spec.layers[0], spec.layers[1]))


def test_lings_decays_are_bounded_where_the_setting_says_so() -> None:
    bounds = []
    for changes in ({}, {"kda_lower_bound": -3.0}, {"kda_safe_gate": False}):
        mixer = spec_of(LING, **changes).layers[0].mixer
        assert isinstance(mixer, DeltaNet)
        bounds.append(mixer.decay_bound)
    assert bounds == [-5.0, -3.0, 0.0]
    with pytest.raises(CorruptFileError, match="bounded by 1"):
        spec_of(LING, kda_lower_bound=1.0)


@pytest.mark.parametrize("config", [MINIMAX, LONGCAT, LING])
def test_a_spec_is_read_back_as_it_was_written(config: dict[str, Any]) -> None:
    spec = spec_of(config)
    assert Spec.from_json(spec.to_json()) == spec
