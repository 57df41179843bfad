"""config.json of hybrid families to spec: published models, their sizes, spellings of one thing, and refusals."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.base.errors import CorruptFileError, FreetokenError, UnsupportedError
from engine.spec.attention import Attention
from engine.spec.families import spec_from_config
from engine.spec.feed_forward import Dense, Moe
from engine.spec.recurrent import Mamba, Mamba2, ShortConv
from engine.spec.schema import Spec
from tests.unit.published_hybrids import GRANITE_4_H_TINY, JAMBA_V0_1, LFM2_8B_A1B, NEMOTRON_3_NANO
from tests.unit.spec_parts import parameters

PUBLISHED = (GRANITE_4_H_TINY, LFM2_8B_A1B, JAMBA_V0_1, NEMOTRON_3_NANO)
INFINITE = {"__float__": "Infinity"}  # as transformers 5 writes it


@pytest.mark.parametrize(
    ("config", "published"),
    [(GRANITE_4_H_TINY, 6.94e9), (LFM2_8B_A1B, 8.34e9), (JAMBA_V0_1, 51.6e9), (NEMOTRON_3_NANO, 31.6e9)],
    ids=[config["model_type"] for config in PUBLISHED],
)
def test_published_models_have_as_many_parameters_as_their_publishers_count(
    config: dict[str, Any], published: float
) -> None:
    assert parameters(spec_from_config(config)) == pytest.approx(published, rel=0.005)


def test_granite_mixes_36_state_spaces_with_4_layers_of_attention_without_positions() -> None:
    spec = spec_from_config(GRANITE_4_H_TINY)
    mixers = Counter(layer.mixer for layer in spec.layers)
    assert mixers == {
        Mamba2(heads=48, head_dim=64, groups=1, state_dim=128, kernel=4, norm_eps=1e-5): 36,
        Attention(heads=12, kv_heads=4, head_dim=128, scale=0.0078125, rope=None): 4,
    }
    moe = spec.layers[0].ffn
    assert isinstance(moe, Moe)
    assert moe.shared is not None
    assert (moe.experts.count, moe.router.top_k, moe.shared.width) == (64, 6, 1024)


def test_a_granite_without_experts_has_what_others_share_as_its_feed_forward_part() -> None:
    spec = spec_from_config({**GRANITE_4_H_TINY, "num_local_experts": 0})
    assert {layer.ffn for layer in spec.layers} == {Dense(1024)}


def test_lfm2_has_short_convolutions_and_two_dense_layers_first() -> None:
    spec = spec_from_config(LFM2_8B_A1B)
    assert [isinstance(layer.mixer, ShortConv) for layer in spec.layers].count(True) == 18
    assert spec.layers[0].mixer == ShortConv(kernel=3)
    assert [isinstance(layer.ffn, Dense) for layer in spec.layers[:3]] == [True, True, False]


def test_jamba_attends_in_one_layer_of_eight_and_has_experts_in_every_other() -> None:
    spec = spec_from_config(JAMBA_V0_1)
    assert [i for i, layer in enumerate(spec.layers) if isinstance(layer.mixer, Attention)] == [4, 12, 20, 28]
    assert spec.moe_layers == tuple(range(1, 32, 2))
    assert spec.layers[0].mixer == Mamba(channels=8192, state_dim=16, step_rank=256, kernel=4, norm_eps=1e-6)
    assert spec_from_config({**JAMBA_V0_1, "mamba_dt_rank": "auto"}) == spec
    assert spec_from_config({**JAMBA_V0_1, "num_experts": 1}).moe_layers == ()


def test_nemotron_has_layers_of_one_part() -> None:
    spec = spec_from_config(NEMOTRON_3_NANO)
    kinds = Counter(type(layer.mixer or layer.ffn).__name__ for layer in spec.layers)
    assert kinds == {"Mamba2": 23, "Moe": 23, "Attention": 6}
    assert all((layer.mixer is None) != (layer.ffn is None) for layer in spec.layers)
    moe = next(layer.ffn for layer in spec.layers if isinstance(layer.ffn, Moe))
    assert not moe.experts.activation.is_gated
    assert Spec.from_json(spec.to_json()) == spec


def test_a_pattern_and_a_list_say_the_same() -> None:
    listed = {key: value for key, value in NEMOTRON_3_NANO.items() if key != "hybrid_override_pattern"}
    names = {"M": "linear_attention", "E": "moe", "*": "full_attention", "-": "mlp"}
    types = [names[letter] for letter in NEMOTRON_3_NANO["hybrid_override_pattern"]]
    assert spec_from_config({**listed, "layers_block_type": types}) == spec_from_config(NEMOTRON_3_NANO)


@pytest.mark.parametrize(
    ("limits", "bounds"),
    [([0.0, float("inf")], (0.0, 0.0)), ([0.001, INFINITE], (0.001, 0.0)), ([0, 2], (0.0, 2.0)), (None, (0.0, 0.0))],
)
def test_time_steps_are_bounded_above_unless_the_bound_is_infinite(limits: Any, bounds: tuple[float, float]) -> None:
    mixer = spec_from_config({**GRANITE_4_H_TINY, "time_step_limit": limits}).layers[0].mixer
    assert isinstance(mixer, Mamba2)
    assert (mixer.step_min, mixer.step_max) == bounds


@pytest.mark.parametrize(
    ("config", "change", "words"),
    [
        (GRANITE_4_H_TINY, {"position_embedding_type": "alibi"}, "position_embedding_type = 'alibi'"),
        (GRANITE_4_H_TINY, {"layer_types": ["rwkv"] * 40}, "layer of the type 'rwkv'"),
        (GRANITE_4_H_TINY, {"layer_types": ["mamba"] * 3}, "3 types of layers for 40 layers"),
        (JAMBA_V0_1, {"mamba_inner_layernorms": False}, "mamba_inner_layernorms = False"),
        (NEMOTRON_3_NANO, {"mlp_hidden_act": "silu"}, "mlp_hidden_act = 'silu'"),
        (NEMOTRON_3_NANO, {"mlp_bias": True}, "mlp_bias = True"),
        (NEMOTRON_3_NANO, {"hybrid_override_pattern": "ME?"}, "layer of the type '?'"),
    ],
)
def test_what_is_not_implemented_is_refused_by_name(config: dict[str, Any], change: dict[str, Any], words: str) -> None:
    with pytest.raises(UnsupportedError) as caught:
        spec_from_config({**config, **change})
    assert words in caught.value.message


@pytest.mark.parametrize(
    ("config", "change", "words"),
    [
        (GRANITE_4_H_TINY, {"time_step_limit": [0.1]}, "time_step_limit in config.json must be a lowest and a highest"),
        (GRANITE_4_H_TINY, {"time_step_limit": [0.5, 0.1]}, "time steps cannot lie between 0.5 and 0.1"),
        (GRANITE_4_H_TINY, {"time_step_limit": [0.0, -1]}, "time steps cannot be below -1"),
        (GRANITE_4_H_TINY, {"mamba_n_heads": 0}, "mamba_heads must be positive"),
        (GRANITE_4_H_TINY, {"mamba_n_groups": 5}, "48 heads cannot share 5 groups"),
        (GRANITE_4_H_TINY, {"mamba_d_conv": 1}, "a convolution must see more than 1 tokens"),
        (GRANITE_4_H_TINY, {"layer_types": []}, "does not say which layers attend"),
        (JAMBA_V0_1, {"attn_layer_offset": 8}, "speaks of layer 8 of every 8"),
        (NEMOTRON_3_NANO, {"hybrid_override_pattern": ""}, "lists 0 layers"),
    ],
)
def test_a_value_that_cannot_be_is_refused_by_name(config: dict[str, Any], change: dict[str, Any], words: str) -> None:
    with pytest.raises(CorruptFileError) as caught:
        spec_from_config({**config, **change})
    assert words in caught.value.message


VALUES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([0, 1, -1, 2, 3, 1 << 31, 10**400, "auto", "rope", "mamba", [0.0, INFINITE], ["mamba", "moe"]])
    | st.floats()
    | st.text(max_size=4)
    | st.lists(st.integers() | st.floats() | st.just(INFINITE), max_size=3)
    | st.dictionaries(st.sampled_from(["type", "__float__"]), st.sampled_from(["Infinity", "yarn", 0]))
)


@settings(max_examples=300, deadline=None)
@given(config=st.sampled_from(PUBLISHED), data=st.data())
def test_any_value_of_any_field_gives_a_spec_or_a_sentence(config: dict[str, Any], data: st.DataObject) -> None:
    changes = data.draw(st.dictionaries(st.sampled_from(sorted(config)), VALUES, min_size=1, max_size=3))
    with suppress(FreetokenError):
        spec_from_config({**config, **changes})
