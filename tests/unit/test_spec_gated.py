"""config.json of families with gates of heads, and of latent attention elsewhere, to spec: published models."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from engine.base.errors import UnsupportedError
from engine.spec.attention import Attention, LatentAttention
from engine.spec.families import spec_from_config
from engine.spec.feed_forward import Activation, Dense, Moe
from engine.spec.rope import Growth, Llama3Scaling
from tests.unit.published_gated import (
    FAR,
    FOURTH,
    LAGUNA_XS_2,
    MISTRAL_SMALL_4,
    NEAR,
    STEP_3_5_FLASH,
    YOUTU_LLM_2B,
)
from tests.unit.spec_parts import parameters


@pytest.mark.parametrize(
    ("config", "published"),
    [(STEP_3_5_FLASH, 196.8e9), (LAGUNA_XS_2, 33.4e9), (MISTRAL_SMALL_4, 119e9), (YOUTU_LLM_2B, 1.96e9)],
    ids=["step3p5", "laguna", "mistral4", "youtu"],
)
def test_published_models_have_as_many_parameters_as_their_publishers_count(
    config: dict[str, Any], published: float
) -> None:
    assert parameters(spec_from_config(config)) == pytest.approx(published, rel=0.01)


def test_steps_layers_with_a_window_have_heads_and_positions_of_their_own() -> None:
    spec = spec_from_config(STEP_3_5_FLASH)
    far, near = spec.layers[0].mixer, spec.layers[1].mixer
    assert isinstance(far, Attention)
    assert isinstance(near, Attention)
    assert Counter(layer.mixer for layer in spec.layers) == {far: 12, near: 33}
    assert (far.heads, far.kv_heads, far.window, far.head_gates) == (64, 8, 0, True)
    assert (near.heads, near.kv_heads, near.window, near.head_gates) == (96, 8, 512, True)
    assert far.rope is not None
    assert near.rope is not None
    assert (far.rope.theta, far.rope.dim, far.rope.scaling) == (5e6, 64, Llama3Scaling(2.0, 131072, 1.0, 32.0))
    assert (near.rope.theta, near.rope.dim, near.rope.scaling) == (1e4, 128, None)


def test_step_caps_what_silu_makes_in_its_last_layers() -> None:
    layers = spec_from_config(STEP_3_5_FLASH).layers
    assert [isinstance(layer.ffn, Dense) for layer in layers] == [True] * 3 + [False] * 42
    moe = [layer.ffn for layer in layers if isinstance(layer.ffn, Moe)]
    assert [part.experts.activation.limit for part in moe] == [0.0] * 40 + [7.0] * 2
    assert moe[-1].shared_activation == Activation("capped_silu", limit=16.0)
    assert moe[0].shared_activation == moe[0].experts.activation == Activation()


def test_step_as_transformers_writes_it_is_the_same_model() -> None:
    published = {name: value for name, value in STEP_3_5_FLASH.items() if name not in ("rope_theta", "rope_scaling")}
    far = {**STEP_3_5_FLASH["rope_scaling"], "rope_theta": 5e6, "partial_rotary_factor": 0.5}
    own = {str(layer): {"num_attention_heads": 96} for layer, kind in enumerate(FOURTH[:45]) if kind == NEAR}
    written = {
        **{name: value for name, value in published.items() if name != "attention_other_setting"},
        "layer_types": FOURTH[:45],
        "mlp_layer_types": ["dense"] * 3 + ["sparse"] * 42,
        "num_key_value_heads": 8,
        "per_layer_config": own,
        "rope_parameters": {FAR: far, NEAR: {"rope_theta": 1e4, "partial_rotary_factor": 1.0}},
    }
    assert spec_from_config(written) == spec_from_config(STEP_3_5_FLASH)
    seeing = {"model_type": "step3p7", "text_config": written, "vision_config": {}}
    assert spec_from_config(seeing) == spec_from_config(STEP_3_5_FLASH)


@pytest.mark.parametrize(
    ("config", "change"),
    [
        (STEP_3_5_FLASH, {"use_head_wise_attn_gate": False}),
        (STEP_3_5_FLASH, {"yarn_only_types": [FAR, NEAR]}),
        (STEP_3_5_FLASH, {"sink": True}),
        (LAGUNA_XS_2, {"gating": False}),
        (LAGUNA_XS_2, {"moe_router_logit_softcapping": 30.0}),
    ],
)
def test_what_is_not_done_is_refused_by_name(config: dict[str, Any], change: dict[str, Any]) -> None:
    (name,) = change
    with pytest.raises(UnsupportedError, match=name):
        spec_from_config({**config, **change})


def test_lagunas_layers_have_heads_by_list_and_gates_of_heads_or_of_values() -> None:
    far, near = (spec_from_config(LAGUNA_XS_2).layers[layer].mixer for layer in (0, 1))
    assert isinstance(far, Attention)
    assert isinstance(near, Attention)
    assert (far.heads, near.heads, far.gate_activation, far.head_gates) == (48, 64, "softplus", True)
    by_value = spec_from_config({**LAGUNA_XS_2, "gating": "per-element"}).layers[0].mixer
    assert isinstance(by_value, Attention)
    assert not by_value.head_gates


def test_mistrals_queries_grow_where_positions_say_so() -> None:
    mixer = spec_from_config(MISTRAL_SMALL_4).layers[0].mixer
    assert isinstance(mixer, LatentAttention)
    assert mixer.growth == Growth(0.1, 8192, 0)
    text = MISTRAL_SMALL_4["text_config"]
    told = {name: value for name, value in text.items() if name != "rope_parameters"}
    assert spec_from_config(told) == spec_from_config(text)  # what transformers takes for granted
