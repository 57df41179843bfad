"""config.json of families with plain experts to spec: published models, their sizes, and layers of several kinds."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from engine.base.errors import CorruptFileError, UnsupportedError
from engine.spec.families import spec_from_config
from engine.spec.feed_forward import Dense, Moe
from tests.unit.published_routed import (
    DOTS_LLM1,
    ERNIE_4_5_21B_A3B,
    GLM_4_5_AIR,
    HUNYUAN_A13B,
    MIMO_V2_FLASH,
    MINIMAX_M2,
)
from tests.unit.spec_parts import attention, parameters


@pytest.mark.parametrize(
    ("config", "published"),
    [
        (GLM_4_5_AIR, 106e9),
        (MINIMAX_M2, 229e9),
        (ERNIE_4_5_21B_A3B, 21.8e9),
        (DOTS_LLM1, 142e9),
        (HUNYUAN_A13B, 80e9),
        (MIMO_V2_FLASH, 309e9),
    ],
    ids=["glm4_moe", "minimax_m2", "ernie4_5_moe", "dots1", "hunyuan_v1_moe", "mimo_v2_flash"],
)
def test_published_models_have_as_many_parameters_as_their_publishers_count(
    config: dict[str, Any], published: float
) -> None:
    assert parameters(spec_from_config(config)) == pytest.approx(published, rel=0.01)


def test_mimos_layers_with_a_window_attend_in_a_way_of_their_own() -> None:
    spec = spec_from_config(MIMO_V2_FLASH)
    everywhere, windowed = attention(spec, 0), attention(spec, 1)
    assert Counter(layer.mixer for layer in spec.layers) == {everywhere: 9, windowed: 39}
    assert (everywhere.kv_heads, everywhere.sinks, everywhere.window) == (4, False, 0)
    assert (windowed.kv_heads, windowed.sinks, windowed.window) == (8, True, 129)  # 128 before the one that attends
    for mixer, theta in ((everywhere, 5e6), (windowed, 1e4)):
        assert mixer.rope is not None
        assert (mixer.rope.theta, mixer.rope.dim) == (theta, 64)
        assert (mixer.head_dim, mixer.v_dim, mixer.value_scale) == (192, 128, 0.707)
    assert [isinstance(layer.ffn, Dense) for layer in spec.layers] == [True] + [False] * 47


def test_positions_in_the_old_form_are_those_in_the_new() -> None:
    kinds = {
        "full_attention": {"rope_type": "default", "rope_theta": 5000000, "partial_rotary_factor": 0.334},
        "sliding_attention": {"rope_type": "default", "rope_theta": 10000, "partial_rotary_factor": 0.334},
    }
    assert spec_from_config({**MIMO_V2_FLASH, "rope_parameters": kinds}) == spec_from_config(MIMO_V2_FLASH)


def test_positions_of_an_unlisted_kind_are_refused() -> None:
    kinds = {"full_attention": {"rope_type": "default", "rope_theta": 5000000}}
    with pytest.raises(UnsupportedError, match="other positions for other layers"):
        spec_from_config({**MIMO_V2_FLASH, "rope_parameters": kinds})


def test_hunyuan_stretches_theta_and_norms_after_rope() -> None:
    mixer = attention(spec_from_config(HUNYUAN_A13B), 0)
    assert mixer.rope is not None
    assert mixer.rope.theta == pytest.approx(10000 * 1000 ** (128 / 126))
    assert mixer.qk_norm == "head_after"


def test_lists_hold_a_number_for_every_layer() -> None:
    spec = spec_from_config({**HUNYUAN_A13B, "moe_topk": [8] * 31 + [4]})
    assert [layer.ffn.router.top_k for layer in spec.layers if isinstance(layer.ffn, Moe)] == [8] * 31 + [4]
    with pytest.raises(CorruptFileError, match="moe_topk"):
        spec_from_config({**HUNYUAN_A13B, "moe_topk": [8] * 31})


def test_ernie_has_experts_in_a_range_of_layers() -> None:
    spec = spec_from_config({**ERNIE_4_5_21B_A3B, "moe_layer_start_index": 3, "moe_layer_end_index": 25})
    assert spec.moe_layers == tuple(range(3, 26))
    assert spec_from_config({**ERNIE_4_5_21B_A3B, "moe_layer_end_index": -1}) == spec_from_config(ERNIE_4_5_21B_A3B)


def test_ernie_refuses_another_least_sum_of_weights() -> None:
    with pytest.raises(UnsupportedError, match="moe_norm_min"):
        spec_from_config({**ERNIE_4_5_21B_A3B, "moe_norm_min": 0.01})


def test_mimo_has_to_say_which_layers_have_a_window() -> None:
    unlisted = {name: value for name, value in MIMO_V2_FLASH.items() if name != "hybrid_layer_pattern"}
    with pytest.raises(CorruptFileError, match="lacks layer_types"):
        spec_from_config(unlisted)


KOLIBRI1 = {
    **{"model_type": "kolibri1", "vocab_size": 128000, "hidden_size": 2560, "num_hidden_layers": 50},
    **{"num_attention_heads": 48, "num_key_value_heads": 4, "max_position_embeddings": 262144, "sliding_window": 513},
}


def test_kolibri_sees_everything_in_every_fifth_layer_and_rotates_nothing_there() -> None:
    spec = spec_from_config(KOLIBRI1)
    seeing = [layer for layer in range(50) if not attention(spec, layer).window]
    assert seeing == list(range(4, 50, 5))
    assert [layer for layer in range(50) if attention(spec, layer).rope is None] == seeing
    with pytest.raises(CorruptFileError, match="sliding_window"):
        spec_from_config({**KOLIBRI1, "sliding_window": None})


def test_flint_has_to_say_which_layers_have_a_window() -> None:
    with pytest.raises(CorruptFileError, match="lacks layer_types"):
        spec_from_config({**KOLIBRI1, "model_type": "flint", "intermediate_size": 6144})


def test_a_list_of_settings_is_refused_for_one_of_them() -> None:
    with pytest.raises(UnsupportedError, match="attn_type_list"):
        spec_from_config({**MINIMAX_M2, "attn_type_list": [0, *[1] * 61]})


def test_minimax_counts_the_values_that_are_rotated() -> None:
    rope = attention(spec_from_config(MINIMAX_M2), 0).rope
    assert rope is not None
    assert (rope.theta, rope.dim) == (5e6, 64)
