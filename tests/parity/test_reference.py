"""The reference executor against transformers, and the proof that the comparison notices every axis."""

from __future__ import annotations

import numpy as np
import pytest

from engine.spec.families import FAMILIES, find_family

from .cases import CASES
from .check import TOLERANCE, agrees, differences, greedy, in_chunks, resumed
from .conftest import Models
from .prepare import reference
from .sabotage import AXES, sabotaged
from .sample import EVERY_CASE, first_with


def test_families_that_call_themselves_tested_have_a_case() -> None:
    covered = {find_family({"model_type": case.family}).name for case in CASES}
    assert {family.name for family in FAMILIES.values() if "f32" in family.tested} == covered


@pytest.mark.parametrize("name", EVERY_CASE)
def test_hidden_states_and_logits_are_those_of_transformers(models: Models, name: str) -> None:
    model = models(name)
    worst = max(differences(model.reference(), model.truth), key=lambda found: found.share)
    assert worst.share <= TOLERANCE, worst


@pytest.mark.parametrize("name", EVERY_CASE)
def test_greedy_tokens_are_those_of_transformers(models: Models, name: str) -> None:
    model = models(name)
    assert greedy(model.reference(), model.truth) == model.truth.greedy


@pytest.mark.parametrize("name", EVERY_CASE)
def test_chunks_and_single_tokens_give_the_logits_of_the_whole_prompt(models: Models, name: str) -> None:
    model = models(name)
    executor = model.reference()
    for sizes in ([1], [7, 1, 16, 5]):
        logits = in_chunks(executor, model.truth.prompt, sizes)
        assert np.abs(logits - model.truth.logits).max() <= TOLERANCE * np.abs(model.truth.logits).max()


@pytest.mark.parametrize("name", EVERY_CASE)
def test_a_prompt_goes_on_from_a_saved_state(models: Models, name: str) -> None:
    model = models(name)
    for at in (16, 32):
        expected = model.truth.logits[at:]
        for logits in resumed(model.reference(), model.reference(), model.truth.prompt, at):
            assert np.abs(logits - expected).max() <= TOLERANCE * np.abs(model.truth.logits).max()


@pytest.mark.parametrize("name", EVERY_CASE)
def test_conversion_keeps_every_bit(models: Models, name: str) -> None:
    model = models(name)
    for tensor in model.ftw.dense:
        np.testing.assert_array_equal(model.ftw_weights.dense(tensor), model.weights.dense(tensor), err_msg=tensor)
    for layer, decoder_layer in enumerate(model.spec.moe_layers):
        for expert in range(model.spec.layers[decoder_layer].ffn.experts.count):
            ours, theirs = model.ftw_weights.expert(layer, expert), model.weights.expert(layer, expert)
            assert ours.keys() == theirs.keys()
            for tensor in ours:
                np.testing.assert_array_equal(ours[tensor], theirs[tensor], err_msg=f"{layer}.{expert}.{tensor}")


@pytest.mark.parametrize(("axis", "name"), [(axis, first_with(axis)) for axis in AXES])
def test_a_change_on_every_axis_is_noticed(models: Models, axis: str, name: str) -> None:
    assert name, f"no model has the axis {axis}"
    model = models(name)
    changed = sabotaged(axis, model.spec, model.ftw_weights)
    assert changed is not None
    assert not agrees(reference(*changed), model.truth)


@pytest.mark.long
@pytest.mark.parametrize("name", [case.name for case in CASES])
def test_a_change_on_any_axis_of_any_model_is_noticed(models: Models, name: str) -> None:
    model = models(name)
    for axis in AXES:
        changed = sabotaged(axis, model.spec, model.ftw_weights)
        assert changed is None or not agrees(reference(*changed), model.truth), f"{axis} of {name}"
