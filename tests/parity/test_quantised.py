"""Models with quantised experts, from GGUF files and vendors' libraries, against dequantised twins in transformers."""

from __future__ import annotations

import numpy as np
import pytest

from engine.spec.families import FAMILIES

from .check import TOLERANCE, differences, greedy
from .conftest import QuantisedModels

PAIRS = [(family.name, codec) for family in FAMILIES.values() for codec in family.tested if codec != "f32"]
FIRST = {codec: family for family, codec in reversed(PAIRS)}
EACH = [pytest.param(*pair, marks=() if FIRST[pair[1]] == pair[0] else pytest.mark.long) for pair in PAIRS]
"""Every codec of every family; the default tests have each codec once."""


@pytest.mark.parametrize(("family", "codec"), EACH)
def test_the_reference_agrees_with_the_dequantised_twin(
    quantised_models: QuantisedModels, family: str, codec: str
) -> None:
    model = quantised_models(family, codec)
    fields = {field.name: field.shape.codec for field in model.ftw.banks[0].fields if not field.shape.vector}
    assert fields == ({"up": codec, "down": codec} if family == "nemotron_h" else {"gate_up": codec, "down": codec})
    worst = max(differences(model.reference(), model.truth), key=lambda found: found.share)
    assert worst.share <= TOLERANCE, worst
    assert greedy(model.reference(), model.truth) == model.truth.greedy


@pytest.mark.parametrize(("family", "codec"), EACH)
def test_conversion_keeps_the_values_of_every_block(quantised_models: QuantisedModels, family: str, codec: str) -> None:
    model = quantised_models(family, codec)
    for layer in range(2):
        for expert in range(6):
            ours, theirs = model.ftw_weights.expert(layer, expert), model.weights.expert(layer, expert)
            for tensor in theirs:
                np.testing.assert_array_equal(ours[tensor], theirs[tensor], err_msg=f"{layer}.{expert}.{tensor}")
    for name in model.ftw.dense:
        np.testing.assert_array_equal(model.ftw_weights.dense(name), model.weights.dense(name), err_msg=name)


def test_8_bit_floats_stay_what_they_are_when_latent_keys_are_transposed(quantised_models: QuantisedModels) -> None:
    dense = quantised_models("deepseek_v3", "fp8").ftw.dense
    assert {dense[f"layers.0.attn.{name}"].codec for name in ("q", "k_up", "v_up", "o")} == {"fp8"}


@pytest.mark.parametrize("family", ["qwen3_next", "qwen3_5_moe"])
def test_8_bit_floats_stay_what_they_are_when_delta_nets_are_cut_by_heads(
    quantised_models: QuantisedModels, family: str
) -> None:
    dense = quantised_models(family, "fp8").ftw.dense
    assert {dense[f"layers.0.delta.{name}"].codec for name in ("q", "k", "v", "gate", "o")} == {"fp8"}
    assert {dense[f"layers.1.attn.{name}"].codec for name in ("q", "gate", "o")} == {"fp8"}
    assert {dense[f"layers.0.delta.{name}"].codec for name in ("beta", "decay")} == {"f32"}


def test_8_bit_floats_stay_what_they_are_when_the_input_of_a_state_space_is_cut(
    quantised_models: QuantisedModels,
) -> None:
    dense = quantised_models("nemotron_h", "fp8").ftw.dense
    assert {dense[f"layers.1.mamba.{name}"].codec for name in ("gate", "in", "step", "o")} == {"fp8"}
    assert {dense[f"layers.0.shared.{name}"].codec for name in ("up", "down")} == {"fp8"}
