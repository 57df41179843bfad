"""Models with quantised experts, from GGUF files and vendors' libraries, against dequantised twins in transformers."""

from __future__ import annotations

import numpy as np
import pytest

from engine.spec.families import FAMILIES

from .check import TOLERANCE, differences, greedy
from .conftest import QuantisedModels

EACH = [(family.name, codec) for family in FAMILIES.values() for codec in family.tested if codec != "f32"]


@pytest.mark.parametrize(("family", "codec"), EACH)
def test_the_reference_agrees_with_the_dequantised_twin(
    quantised_models: QuantisedModels, family: str, codec: str
) -> None:
    model = quantised_models(family, codec)
    fields = {field.name: field.shape.codec for field in model.ftw.banks[0].fields if not field.shape.vector}
    assert fields == {"gate_up": codec, "down": codec}
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
