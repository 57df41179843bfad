"""Checkpoints of 4-bit integers in groups: every layout gives the values that its format's description gives."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from compressed_tensors.compressors.pack_quantized import PackedQuantizationCompressor
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.files.sources.quantised import stripes
from engine.files.sources.tensors import SourceTensor
from tests.unit.int4_layouts import (
    Grouped,
    Tensors,
    as_awq,
    as_gptq,
    as_packed,
    awq_by_hand,
    gptq_by_hand,
    random_grouped,
)
from tests.unit.quantised import presented, random_weights, values

FORMS = {32: ("int4_32z", "int4_32"), 64: ("int4_32z", "int4_32"), 128: ("int4_128z",) * 2, 256: ("int4_128z",) * 2}


def gptq_config(group: int, **settings: Any) -> dict[str, Any]:
    return {"quant_method": "gptq", "bits": 4, "group_size": group, "desc_act": False, "sym": False, **settings}


def awq_config(group: int, **settings: Any) -> dict[str, Any]:
    return {"quant_method": "awq", "bits": 4, "group_size": group, "zero_point": True, "version": "gemm", **settings}


def packed_config(group: int, **weights: Any) -> dict[str, Any]:
    described = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": group, **weights}
    return {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": described}},
    }


def in_input_order(tensors: dict[str, SourceTensor] | Any, name: str = "l.weight") -> torch.Tensor:
    """The values of a tensor with its columns put back."""
    stored = values(tensors[name])
    if f"{name}.order" not in tensors:
        return stored
    order = tensors[f"{name}.order"]
    assert (order.form, order.shape) == ("f32", (stored.shape[1],))
    columns = order.read(0, 1).view(np.float32).reshape(-1)
    assert sorted(columns) == list(range(len(columns)))
    out = torch.empty_like(stored)
    out[:, torch.from_numpy(columns).long()] = stored
    return out


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("version", ["gptq", "gptq_v2"])
@pytest.mark.parametrize("moved", [False, True])
@pytest.mark.parametrize("group", [32, 64, 128, 256])
def test_gptq(tmp_path: Path, group: int, moved: bool, version: str, dtype: torch.dtype) -> None:
    scales = dtype if dtype != torch.float32 else torch.bfloat16
    matrix = random_grouped(40, 256, group, moved=moved, lowest_zero=version == "gptq", dtype=scales)
    named = as_gptq(matrix, version=version)
    named["l.scales"] = named["l.scales"].to(dtype)
    config = gptq_config(group if group < 256 else -1, desc_act=moved, checkpoint_format=version)
    tensors = presented(tmp_path, named, quantization=config)
    assert tensors.keys() == {"l.weight"} | ({"l.weight.order"} if moved and group < 256 else set())
    assert (tensors["l.weight"].form, tensors["l.weight"].shape) == (FORMS[group][0], (40, 256))
    by_hand = gptq_by_hand(named, less_one=version == "gptq")
    assert torch.equal(in_input_order(tensors), by_hand)
    assert torch.equal(by_hand, matrix.values)


@pytest.mark.parametrize("moved", [False, True])
@pytest.mark.parametrize("group", [32, 64, 128, 256])
def test_gptq_that_is_symmetric_needs_no_zero_points(tmp_path: Path, group: int, moved: bool) -> None:
    matrix = random_grouped(24, 256, group, symmetric=True, moved=moved)
    config = gptq_config(group, sym=True, desc_act=moved)
    tensors = presented(tmp_path, as_gptq(matrix), quantization=config)
    assert tensors["l.weight"].form == FORMS[group][1]
    assert torch.equal(in_input_order(tensors), matrix.values)


def test_a_stored_zero_point_of_15_is_16_unless_words_were_subtracted_at_once(tmp_path: Path) -> None:
    matrix = random_grouped(16, 128, 128, lowest_zero=1)
    named = as_gptq(matrix)
    named["l.qzeros"] = torch.full_like(named["l.qzeros"], -1)
    tensors = presented(tmp_path, named, quantization=gptq_config(128))
    assert torch.equal(
        values(tensors["l.weight"]), Grouped(matrix.codes, matrix.scales, matrix.zeros * 0 + 16, matrix.index).values
    )


def test_gptqmodel_takes_one_off_every_zero_point_of_a_word_at_once(tmp_path: Path) -> None:
    matrix = random_grouped(16, 128, 32)
    assert (matrix.zeros == 0).any()
    named = as_gptq(matrix, version="gptq_v2")
    named["l.qzeros"] -= 0x11111111  # wraps, and a zero borrows from its neighbour
    config = gptq_config(32, meta={"quantizer": ["gptqmodel:2.1.0"]})
    assert torch.equal(values(presented(tmp_path, named, quantization=config)["l.weight"]), matrix.values)


def test_columns_that_keep_their_order_have_none(tmp_path: Path) -> None:
    matrix = random_grouped(16, 128, 32, lowest_zero=1)
    named = as_gptq(matrix)
    del named["l.g_idx"]
    tensors = presented(tmp_path, named, quantization=gptq_config(32))
    assert tensors.keys() == {"l.weight"}
    assert torch.equal(values(tensors["l.weight"]), matrix.values)


def test_modules_with_settings_of_their_own_are_read_by_what_they_hold(tmp_path: Path) -> None:
    matrix = random_grouped(16, 128, 32, moved=True, lowest_zero=1)
    config = gptq_config(128, sym=True, dynamic={"+:.*": {"group_size": 32, "sym": False, "desc_act": True}})
    tensors = presented(tmp_path, as_gptq(matrix), quantization=config)
    assert torch.equal(in_input_order(tensors), matrix.values)


def auto_round_config(**settings: Any) -> dict[str, Any]:
    return {"quant_method": "auto-round", "bits": 4, "group_size": 32, "sym": False, "data_type": "int", **settings}


@pytest.mark.parametrize("packing", [None, "auto_round:auto_gptq", "auto_gptq"])
def test_auto_round_in_the_layout_of_gptq(tmp_path: Path, packing: str | None) -> None:
    """Without g_idx; zero points are stored less one, taken off a whole word as the packing sums its values."""
    matrix = random_grouped(16, 128, 32)
    assert (matrix.zeros == 0).any()
    named = as_gptq(matrix, version="gptq_v2")
    named["l.qzeros"] -= 0x11111111
    del named["l.g_idx"]
    config = auto_round_config(**({"packing_format": packing} if packing else {}))
    tensors = presented(tmp_path, named, quantization=config)
    assert tensors.keys() == {"l.weight"}
    assert torch.equal(values(tensors["l.weight"]), matrix.values)


@pytest.mark.parametrize("packing", ["auto_round:auto_awq", "auto_awq"])
def test_auto_round_in_the_layout_of_awq(tmp_path: Path, packing: str) -> None:
    matrix = random_grouped(48, 128, 32)
    config = auto_round_config(packing_format=packing)
    assert torch.equal(values(presented(tmp_path, as_awq(matrix), quantization=config)["l.weight"]), matrix.values)


def test_auto_round_has_settings_of_single_modules(tmp_path: Path) -> None:
    """A last group that is short tells groups of 96 from others only by what config.json says of the module."""
    one, other = random_grouped(16, 256, 96, lowest_zero=1), random_grouped(16, 256, 32, symmetric=True)
    named = as_gptq(one) | as_gptq(other, prefix="other.") | {"plain.weight": random_weights(8, 8)}
    named = {name: tensor for name, tensor in named.items() if not name.endswith("g_idx")}
    own = {"l": {"group_size": 96, "sym": False}, "plain": {"bits": 16, "data_type": "float"}}
    tensors = presented(tmp_path, named, quantization=auto_round_config(sym=True, extra_config=own))
    assert (tensors["l.weight"].form, tensors["other.weight"].form) == ("int4_32z", "int4_32")
    assert torch.equal(values(tensors["l.weight"]), one.values)
    assert torch.equal(values(tensors["other.weight"]), other.values)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("group", [32, 64, 128, 256])
def test_awq(tmp_path: Path, group: int, dtype: torch.dtype) -> None:
    matrix = random_grouped(48, 256, group, dtype=dtype)
    named = as_awq(matrix)
    tensors = presented(tmp_path, named, quantization=awq_config(group))
    assert tensors.keys() == {"l.weight"}
    assert (tensors["l.weight"].form, tensors["l.weight"].shape) == (FORMS[group][0], (48, 256))
    by_hand = awq_by_hand(named, group)
    assert torch.equal(values(tensors["l.weight"]), by_hand)
    assert torch.equal(by_hand, matrix.values)


def test_awq_is_known_by_its_shapes_and_by_old_names_of_its_settings(tmp_path: Path) -> None:
    matrix = random_grouped(48, 128, 64)
    for number, config in enumerate((None, {"w_bit": 4, "q_group_size": 64, "version": "GEMM"})):
        folder = tmp_path / str(number)
        folder.mkdir()
        tensors = presented(folder, as_awq(matrix), quantization=config)
        assert torch.equal(values(tensors["l.weight"]), matrix.values)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize(("strategy", "group"), [("group", 32), ("group", 64), ("group", 128), ("channel", None)])
def test_packed_ints_of_compressed_tensors(
    tmp_path: Path, strategy: str, group: int | None, symmetric: bool, dtype: torch.dtype
) -> None:
    arguments = QuantizationArgs(num_bits=4, type="int", strategy=strategy, group_size=group, symmetric=symmetric)
    groups = 256 // group if group else 1
    state = {
        "weight": random_weights(44, 256) / 20,
        "weight_scale": (torch.rand(44, groups) / 50 + 0.01).bfloat16().to(dtype),
        "weight_zero_point": torch.randint(-8, 8, (44, groups)).to(torch.int8),
    }
    if symmetric:
        del state["weight_zero_point"]
    scheme = QuantizationScheme(targets=["Linear"], weights=arguments)
    kept = PackedQuantizationCompressor.compress(state, scheme)
    twin = PackedQuantizationCompressor.decompress({**kept, "weight_scale": kept["weight_scale"].float()}, scheme)
    config = packed_config(0)
    config["config_groups"]["group_0"]["weights"] = arguments.model_dump(mode="json")
    tensors = presented(tmp_path, {f"l.{name}": tensor for name, tensor in kept.items()}, quantization=config)
    assert tensors.keys() == {"l.weight"}
    assert tensors["l.weight"].form == FORMS[group or 256][symmetric]
    assert torch.equal(values(tensors["l.weight"]), twin["weight"])


@pytest.mark.parametrize("symmetric", [True, False])
def test_packed_ints_of_experts_in_one_tensor(tmp_path: Path, symmetric: bool) -> None:
    experts = [random_grouped(20, 64, 32, symmetric=symmetric, seed=seed) for seed in range(3)]
    each = [as_packed(matrix, symmetric=symmetric, prefix="e.up_proj_") for matrix in experts]
    named = {name: torch.stack([tensors[name] for tensors in each]) for name in each[0]}
    named["e.up_proj_weight_shape"] = torch.tensor([3, 20, 64])
    tensor = presented(tmp_path, named, quantization=packed_config(32))["e.up_proj"]
    assert tensor.shape == (3, 20, 64)
    assert torch.equal(values(tensor), torch.cat([matrix.values for matrix in experts]))
    whole = tensor.read(0, 60)
    for start, stop in ((0, 1), (19, 21), (37, 60), (59, 60)):
        assert (tensor.read(start, stop) == whole[start:stop]).all()


@pytest.mark.parametrize("group", [32, 64, 128])
@pytest.mark.parametrize("symmetric", [True, False])
def test_packed_ints_whose_columns_have_moved(tmp_path: Path, group: int, symmetric: bool) -> None:
    matrix = random_grouped(44, 256, group, symmetric=symmetric, moved=True)
    named = as_packed(matrix, symmetric=symmetric, moved=True)
    tensors = presented(tmp_path, named, quantization=packed_config(group, symmetric=symmetric, actorder="group"))
    assert torch.equal(in_input_order(tensors), matrix.values)


def test_an_index_that_was_never_set_moves_nothing(tmp_path: Path) -> None:
    matrix = random_grouped(16, 128, 32, symmetric=True)
    named = as_packed(matrix, symmetric=True) | {"l.weight_g_idx": torch.full((128,), -1, dtype=torch.int32)}
    tensors = presented(tmp_path, named, quantization=packed_config(32))
    assert torch.equal(in_input_order(tensors), matrix.values)


def test_zero_points_that_are_not_packed(tmp_path: Path) -> None:
    matrix = random_grouped(20, 128, 32)
    named = as_packed(matrix, symmetric=True)
    named["l.weight_zero_point"] = torch.from_numpy((matrix.zeros - 8).astype(np.int8))
    tensors = presented(tmp_path, named, quantization=packed_config(32, symmetric=False))
    assert torch.equal(values(tensors["l.weight"]), matrix.values)


# --- any shape -------------------------------------------------------------------------------------------------------


@st.composite
def matrices(draw: st.DrawFn) -> tuple[Grouped, int, bool]:
    """Ragged rows, last groups that are short, any order."""
    group = draw(st.sampled_from([32, 64, 96, 128, 160, 256]))
    cols = 32 * draw(st.integers(1, 14))
    rows = 8 * draw(st.integers(1, 6))
    moved = draw(st.booleans())
    symmetric = draw(st.booleans())
    dtype = draw(st.sampled_from([torch.float16, torch.bfloat16]))
    seed = draw(st.integers(0, 2**30))
    matrix = random_grouped(rows, cols, group, symmetric=symmetric, moved=moved, lowest_zero=1, dtype=dtype, seed=seed)
    return matrix, group, symmetric


@settings(max_examples=60, deadline=None)
@given(matrices(), st.sampled_from(["gptq", "awq", "packed"]), st.data())
def test_any_shape_group_and_range_of_rows(
    tmp_path_factory: pytest.TempPathFactory, drawn: tuple[Grouped, int, bool], layout: str, data: st.DataObject
) -> None:
    matrix, group, symmetric = drawn
    moved = not np.array_equal(matrix.order, np.arange(len(matrix.index)))
    named: Tensors
    if layout == "gptq":
        named, config = as_gptq(matrix), gptq_config(group, desc_act=moved, sym=symmetric)
    elif layout == "awq":
        matrix = Grouped(matrix.codes, matrix.scales, matrix.zeros, np.sort(matrix.index))
        named, config = as_awq(matrix), awq_config(group)
    else:
        named = as_packed(matrix, symmetric=symmetric, moved=moved)
        config = packed_config(group, symmetric=symmetric)
    tensors = presented(tmp_path_factory.mktemp("any"), named, quantization=config)
    assert torch.equal(in_input_order(tensors), matrix.values)
    rows = len(matrix.codes)
    whole = tensors["l.weight"].read(0, rows)
    bounds = sorted(data.draw(st.lists(st.integers(0, rows), min_size=2, max_size=6, unique=True)))
    for start, stop in itertools.pairwise(bounds):
        assert np.array_equal(tensors["l.weight"].read(start, stop), whole[start:stop])


@pytest.mark.parametrize("layout", ["gptq", "awq"])
@pytest.mark.parametrize("stripe_bytes", [1, 3000, 20_000])
def test_columns_are_read_in_stripes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: str, stripe_bytes: int
) -> None:
    """Rows asked for a few at a time, as packing does: nothing is read twice, and no more than a stripe is held."""
    monkeypatch.setattr(stripes, "STRIPE_BYTES", stripe_bytes)
    matrix = random_grouped(200, 256, 64, lowest_zero=1)
    named = as_gptq(matrix) if layout == "gptq" else as_awq(matrix)
    named.pop("l.g_idx", None)
    config = gptq_config(64) if layout == "gptq" else awq_config(64)
    tensor = presented(tmp_path, named, quantization=config)["l.weight"]
    reads: list[int] = []
    (file,) = tensor.files
    read = file.read
    monkeypatch.setattr(file, "read", lambda start, out: (reads.append(out.nbytes), read(start, out))[1])
    parts = [tensor.read(start, min(start + 16, 200)) for start in range(0, 200, 16)]
    whole = presented(tmp_path, named, quantization=config)["l.weight"].read(0, 200)
    assert np.array_equal(np.concatenate(parts), whole)
    assert sum(reads) <= sum(part.nbytes for part in named.values()) + 1024  # zero points of eight rows share a word
