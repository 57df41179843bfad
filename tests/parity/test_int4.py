"""Models of 4-bit integers in groups, columns in orders of their own included, against twins that hold their values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from engine import _native
from engine.files.conversion.convert import convert
from engine.files.ftw.opening import Ftw, open_model
from engine.spec.layout import ORDER

from .cases import QUANTISED_CASES
from .check import TOLERANCE, agrees, differences, greedy, in_chunks, truth_of
from .codecs_numpy import pack_for_conversion
from .device import on_device, ordered
from .int4_vendors import INT4
from .layout_weights import LayoutWeights
from .prepare import Prepared, native, no_tokenizer
from .test_sim import assert_all_three_worked, assert_same_in_chunks
from .tiny import build, open_truth
from .vendors import quantise_folder

ROUNDED_TOLERANCE = 5e-4  # activations are rounded to 16 bits a block, a few times a layer
MOVED = [name for name, (layout, _) in INT4.items() if layout.moved]
Int4Models = Callable[[str], Prepared]


@pytest.fixture(scope="module")
def int4_models(tmp_path_factory: pytest.TempPathFactory) -> Int4Models:
    """A tiny qwen3_moe by its name in INT4, ready to run."""
    ready: dict[str, Prepared] = {}

    def get(name: str) -> Prepared:
        if name not in ready:
            folder = tmp_path_factory.mktemp(name)
            twin, source, converted = folder / "twin", folder / "quantised", folder / "converted"
            build(QUANTISED_CASES["qwen3_moe"], twin)
            quantise_folder(INT4[name][0].vendor, twin, source)
            convert(source, converted, write_tokenizer=no_tokenizer, pack=pack_for_conversion)
            ready[name] = Prepared(twin, open_truth(twin), LayoutWeights(twin), open_model(converted))
        return ready[name]

    return get


@pytest.mark.parametrize("name", INT4)
def test_the_reference_agrees_with_the_dequantised_twin(int4_models: Int4Models, name: str) -> None:
    model = int4_models(name)
    worst = max(differences(model.reference(), model.truth), key=lambda found: found.share)
    assert worst.share <= TOLERANCE, worst
    assert greedy(model.reference(), model.truth) == model.truth.greedy


@pytest.mark.parametrize("name", INT4)
def test_fields_codecs_and_values_are_kept(int4_models: Int4Models, name: str) -> None:
    """The rows of gate and up may have moved, and the columns of down with them: their product tells nothing of it."""
    model = int4_models(name)
    layout, codec = INT4[name]
    fields = {field.name: field.shape.codec for field in model.ftw.banks[0].fields}
    apart = {"gate": codec, "up": codec, "down": codec, "gate.order": "f32", "up.order": "f32"}
    assert fields == (apart if layout.moved else {"gate_up": codec, "down": codec})
    for key in ("q", "k", "v", "o"):
        weight = f"layers.1.attn.{key}"
        np.testing.assert_array_equal(model.ftw_weights.dense(weight), model.weights.dense(weight), err_msg=key)
    for expert in range(6):
        ours, theirs = model.ftw_weights.expert(1, expert), model.weights.expert(1, expert)
        for rows in ("gate", "up"):
            product, expected = (w["down"].astype(np.float64) @ w[rows].astype(np.float64) for w in (ours, theirs))
            np.testing.assert_allclose(product, expected, rtol=0, atol=1e-12 * np.abs(expected).max())
            np.testing.assert_array_equal(np.sort(ours[rows], axis=0), np.sort(theirs[rows], axis=0))


@pytest.mark.parametrize("name", INT4)
def test_the_native_executor_agrees_with_the_twin_and_with_the_reference(int4_models: Int4Models, name: str) -> None:
    model = int4_models(name)
    executor = native(model.ftw)
    for truth in (model.truth, truth_of(model.reference(), model.truth)):
        worst = max(differences(executor, truth), key=lambda found: found.share)
        assert worst.share <= ROUNDED_TOLERANCE, worst
    assert greedy(executor, model.truth) == model.truth.greedy


@pytest.mark.parametrize("name", INT4)
def test_chunks_threads_and_instruction_sets_do_not_change_a_bit(int4_models: Int4Models, name: str) -> None:
    model = int4_models(name)
    whole = in_chunks(native(model.ftw), model.truth.prompt, [len(model.truth.prompt)])
    for settings in ({"threads": 1}, {"threads": 5}, *({"isa": isa} for isa in _native.isas())):
        for sizes in ([1], [20]):
            logits = in_chunks(native(model.ftw, **settings), model.truth.prompt, sizes)
            np.testing.assert_array_equal(logits.view(np.uint32), whole.view(np.uint32))


@pytest.mark.parametrize("name", MOVED)
def test_a_device_has_the_bits_of_the_native_executor(int4_models: Int4Models, name: str) -> None:
    """Dense products follow the orders there; experts, whose gate and up read in orders of their own, are the CPU's."""
    model = int4_models(name)
    assert ordered(model.ftw, 0)
    with on_device(model.ftw) as executor:
        assert_same_in_chunks(executor, model)
        assert_all_three_worked(executor, model)


@pytest.mark.parametrize("name", MOVED)
def test_an_order_that_is_ignored_is_noticed(int4_models: Int4Models, name: str) -> None:
    model = int4_models(name)
    changed = {f"without {order}": _without(model.ftw, order) for order in model.ftw.dense if order.endswith(ORDER)}
    assert len(changed) == 2 * (4 if INT4[name][0].group < 128 else 3)  # o reads 128 columns: one group has no order
    changed |= {f"without an expert's {order}": _without_in_records(model.ftw, order) for order in ("gate", "up")}
    for what, ftw in changed.items():
        assert not agrees(native(ftw), model.truth), what
        assert not agrees(replace(model, ftw=ftw).reference(), model.truth), what


def _without(ftw: Ftw, order: str) -> Ftw:
    return replace(ftw, dense={name: tensor for name, tensor in ftw.dense.items() if name != order})


def _without_in_records(ftw: Ftw, matrix: str) -> Ftw:
    banks = (
        replace(bank, fields=tuple(field for field in bank.fields if field.name != matrix + ORDER))
        for bank in ftw.banks
    )
    return replace(ftw, banks=tuple(banks))


LATENT = {
    "gptq-64-moved": ("f32", "f32"),
    "gptq-128": ("f32", "int4_128z"),
    "awq-64": ("f32", "int4_32z"),
    "packed-32": ("f32", "int4_32"),
}


@pytest.mark.parametrize("name", LATENT)
def test_keys_and_values_of_latent_attention_come_out_of_integers(name: str, tmp_path: Path) -> None:
    """Keys are kept transposed, head by head, and so as f32; values stay as they are unless their columns moved."""
    twin, source, converted = tmp_path / "twin", tmp_path / "quantised", tmp_path / "converted"
    build(QUANTISED_CASES["deepseek_v3"], twin)
    quantise_folder(replace(INT4[name][0].vendor, wanted=r"\.kv_b_proj\.weight$"), twin, source)
    convert(source, converted, write_tokenizer=no_tokenizer, pack=pack_for_conversion)
    model = Prepared(twin, open_truth(twin), LayoutWeights(twin), open_model(converted))
    for key, codec in zip(("k_up", "v_up"), LATENT[name], strict=True):
        weight = f"layers.1.attn.{key}"
        assert model.ftw.dense[weight].codec == codec
        np.testing.assert_array_equal(model.ftw_weights.dense(weight), model.weights.dense(weight), err_msg=key)
    assert all(found.share <= TOLERANCE for found in differences(model.reference(), model.truth))
    assert all(found.share <= ROUNDED_TOLERANCE for found in differences(native(model.ftw), model.truth))
    assert greedy(native(model.ftw), model.truth) == model.truth.greedy


@pytest.mark.parametrize("name", ["gptq-64-moved", "packed-32"])
def test_the_native_packer_gives_the_same_bytes(
    int4_models: Int4Models, name: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    model = int4_models(name)
    source = model.checkpoint.parent / "quantised"
    dest = tmp_path_factory.mktemp("native") / "converted"
    convert(source, dest, write_tokenizer=no_tokenizer)
    again = open_model(dest)
    assert again.manifest.dense == model.ftw.manifest.dense
    assert again.manifest.banks == model.ftw.manifest.banks
