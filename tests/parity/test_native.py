"""The native executor against transformers, and against itself: the same bits however the work is cut."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine import _native
from engine.files.conversion.convert import convert
from engine.files.ftw.opening import open_model
from tests.same_bits import assert_same_bits

from .check import TOLERANCE, agrees, differences, greedy, in_chunks, resumed, truth_of
from .conftest import Models, QuantisedModels
from .prepare import native, no_tokenizer, reference
from .report import QUANTISED_TOLERANCE
from .sabotage import SPEC_CHANGES
from .sample import EVERY_CASE, first_with
from .test_quantised import EACH


@pytest.mark.parametrize("name", EVERY_CASE)
def test_hidden_states_and_logits_are_those_of_transformers(models: Models, name: str) -> None:
    model = models(name)
    worst = max(differences(native(model.ftw), model.truth), key=lambda found: found.share)
    assert worst.share <= TOLERANCE, worst


@pytest.mark.parametrize("name", EVERY_CASE)
def test_greedy_tokens_are_those_of_transformers(models: Models, name: str) -> None:
    model = models(name)
    assert greedy(native(model.ftw), model.truth) == model.truth.greedy


@pytest.mark.parametrize("name", EVERY_CASE)
def test_chunks_and_single_tokens_give_the_bits_of_the_whole_prompt(models: Models, name: str) -> None:
    model = models(name)
    executor = native(model.ftw)
    whole = in_chunks(executor, model.truth.prompt, [len(model.truth.prompt)])
    for sizes in ([1], [7, 1, 16, 5], [30, 15]):
        assert_same_bits(in_chunks(executor, model.truth.prompt, sizes), whole)


@pytest.mark.parametrize("name", EVERY_CASE)
def test_a_prompt_that_goes_on_from_a_saved_state_has_the_bits_of_the_whole_prompt(models: Models, name: str) -> None:
    model = models(name)
    whole = in_chunks(native(model.ftw), model.truth.prompt, [len(model.truth.prompt)])
    for at in (16, 32):
        for logits in resumed(native(model.ftw), native(model.ftw), model.truth.prompt, at):
            assert_same_bits(logits, whole[at:])


@pytest.mark.parametrize("name", EVERY_CASE)
def test_threads_instruction_sets_and_pages_do_not_change_a_bit(models: Models, name: str) -> None:
    model = models(name)
    whole = in_chunks(native(model.ftw), model.truth.prompt, [len(model.truth.prompt)])
    for settings in ({"threads": 1}, {"page_tokens": 32}, *({"isa": isa} for isa in _native.isas())):
        assert_same_bits(in_chunks(native(model.ftw, **settings), model.truth.prompt, [20]), whole)


@pytest.mark.parametrize(("axis", "name"), [(axis, first_with(axis)) for axis in SPEC_CHANGES])
def test_a_change_on_every_axis_is_noticed_and_followed(models: Models, axis: str, name: str) -> None:
    """No longer what transformers says, but still what the reference says."""
    assert name, f"no model has the axis {axis}"
    model = models(name)
    changed = SPEC_CHANGES[axis](model.spec)
    assert changed is not None
    executor = native(model.ftw, changed)
    assert not agrees(executor, model.truth)
    assert agrees(executor, truth_of(reference(changed, model.ftw_weights), model.truth))


# --- integer codecs


@pytest.mark.parametrize(("family", "codec"), EACH)
def test_integer_codecs_stay_near_their_dequantised_twin(
    quantised_models: QuantisedModels, family: str, codec: str
) -> None:
    model = quantised_models(family, codec)
    worst = max(differences(native(model.ftw), model.truth), key=lambda found: found.share)
    assert worst.share <= QUANTISED_TOLERANCE, worst


@pytest.mark.parametrize(("family", "codec"), EACH)
def test_integer_codecs_give_the_same_bits_in_chunks(
    quantised_models: QuantisedModels, family: str, codec: str
) -> None:
    model = quantised_models(family, codec)
    executor = native(model.ftw)
    whole = in_chunks(executor, model.truth.prompt, [len(model.truth.prompt)])
    for sizes in ([1], [7, 1, 16, 5]):
        assert_same_bits(in_chunks(executor, model.truth.prompt, sizes), whole)
    assert_same_bits(in_chunks(native(model.ftw, isa="scalar", threads=1), model.truth.prompt, [11]), whole)


def test_a_conversion_by_the_native_packer_has_the_same_bytes(models: Models, tmp_path: Path) -> None:
    model = models("gpt_oss-odd")
    convert(model.checkpoint, tmp_path / "converted", write_tokenizer=no_tokenizer, pack=_native.pack_rows)
    again = open_model(tmp_path / "converted")
    assert again.manifest.dense == model.ftw.manifest.dense
    assert again.manifest.banks == model.ftw.manifest.banks
