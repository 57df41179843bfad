"""Checkpoints of 4-bit integers that cannot be read, or not without a loss: each is refused by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from engine.base.errors import CorruptFileError, UnsupportedError
from engine.files.sources.quantised.int4 import exact_halves
from tests.unit.int4_layouts import Tensors, as_awq, as_gptq, as_packed, random_grouped
from tests.unit.quantised import presented, values

GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False, "sym": False}
MOVED = {**GPTQ, "desc_act": True}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True, "version": "gemm"}
AUTO_ROUND = {"quant_method": "auto-round", "bits": 4, "group_size": 32, "sym": False}
MATRIX = random_grouped(16, 128, 32, lowest_zero=1)


def packed_config(**weights: Any) -> dict[str, Any]:
    described = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32, "symmetric": False, **weights}
    return {"quant_method": "compressed-tensors", "config_groups": {"g": {"weights": described}}}


def own_bits(bits: int) -> dict[str, Any]:
    """auto-round with other bits for the one matrix."""
    return {**AUTO_ROUND, "extra_config": {"l": {"bits": bits}}}


def gptq() -> Tensors:
    return as_gptq(MATRIX)


def awq() -> Tensors:
    return as_awq(MATRIX)


def packed() -> Tensors:
    return as_packed(MATRIX, symmetric=False)


def without(name: str) -> Callable[[Tensors], None]:
    def change(tensors: Tensors) -> None:
        del tensors[f"l.{name}"]

    return change


def cut(name: str, *shape: int) -> Callable[[Tensors], None]:
    def change(tensors: Tensors) -> None:
        tensors[f"l.{name}"] = tensors[f"l.{name}"][tuple(slice(size) for size in shape)].contiguous()

    return change


def cast(name: str, dtype: torch.dtype) -> Callable[[Tensors], None]:
    def change(tensors: Tensors) -> None:
        tensors[f"l.{name}"] = tensors[f"l.{name}"].to(dtype)

    return change


def as_is(_tensors: Tensors) -> None:
    """Nothing is changed: the settings are what is wrong."""


CORRUPT, UNSUPPORTED = CorruptFileError, UnsupportedError
PLANNED = [
    (gptq, without("scales"), GPTQ, CORRUPT, "l.weight is quantised to integers and has no scales"),
    (gptq, without("qzeros"), GPTQ, CORRUPT, "has no qzeros"),
    (gptq, without("qweight"), GPTQ, CORRUPT, r"has l\.\w+ but not l.weight"),
    (gptq, without("g_idx"), MOVED, CORRUPT, "l.weight has no g_idx, though config.json says"),
    (gptq, cut("g_idx", 64), GPTQ, UNSUPPORTED, "l.weight is quantised to integers of 8 bits"),
    (gptq, cut("qweight", 12), GPTQ, UNSUPPORTED, "l.weight is quantised to integers of 3 bits"),
    (
        gptq,
        cut("qweight", 16, 8),
        GPTQ,
        CORRUPT,
        r"l.scales \(f16 \[4, 16\]\) does not fit l.weight: it has to be \[4, 8\]",
    ),
    (gptq, cut("scales", 3), GPTQ, CORRUPT, r"l.qzeros \(i32 \[4, 2\]\) does not fit l.weight: it has to be \[3, 2\]"),
    (gptq, cut("qzeros", 4, 1), GPTQ, CORRUPT, r"l.qzeros \(i32 \[4, 1\]\) does not fit"),
    (gptq, cast("scales", torch.float64), GPTQ, CORRUPT, "l.scales .* of the type f16 or bf16 or f32"),
    (gptq, cast("qzeros", torch.int64), GPTQ, CORRUPT, "l.qzeros .* of the type i32"),
    (gptq, cast("g_idx", torch.int64), GPTQ, CORRUPT, "l.g_idx .* of the type i32"),
    (gptq, as_is, {**GPTQ, "bits": 3}, UNSUPPORTED, "integers of 3 bits; this release reads 4"),
    (gptq, as_is, {**GPTQ, "bits": 8}, UNSUPPORTED, "integers of 8 bits; this release reads 4"),
    (gptq, as_is, {**GPTQ, "bits": "4"}, CORRUPT, "bits of the quantisation is '4', not a whole number"),
    (gptq, as_is, {**GPTQ, "desc_act": 1}, CORRUPT, "desc_act of the quantisation is 1, not true or false"),
    (gptq, as_is, {**GPTQ, "checkpoint_format": "marlin"}, UNSUPPORTED, "the format 'marlin' of GPTQ"),
    (gptq, as_is, {**GPTQ, "is_marlin_format": True}, UNSUPPORTED, "the format 'marlin' of GPTQ"),
    (gptq, as_is, {**AUTO_ROUND, "bits": 2}, UNSUPPORTED, "integers of 2 bits; this release reads 4"),
    (gptq, as_is, own_bits(8), UNSUPPORTED, "l.weight is quantised to integers of 8 bits"),
    (gptq, as_is, {**AUTO_ROUND, "packing_format": "auto_round"}, UNSUPPORTED, "'auto_round' of auto-round.*auto_gptq"),
    (gptq, as_is, {**AUTO_ROUND, "packing_format": 4}, CORRUPT, "packing_format of the quantisation is 4, not a text"),
    (awq, without("scales"), AWQ, CORRUPT, "l.weight is quantised to integers and has no scales"),
    (awq, without("qzeros"), AWQ, CORRUPT, "has no qzeros"),
    (awq, as_is, {**AWQ, "bits": 8}, UNSUPPORTED, "integers of 8 bits"),
    (awq, as_is, {**AWQ, "version": "gemv_fast"}, UNSUPPORTED, "the version 'gemv_fast' of AWQ"),
    (awq, cut("qzeros", 3), AWQ, CORRUPT, r"l.qzeros \(i32 \[3, 2\]\) does not fit"),
    (awq, cut("qweight", 100), AWQ, UNSUPPORTED, "l.weight has rows of 100 values"),
    (packed, without("weight_scale"), packed_config(), CORRUPT, "l.weight is quantised to integers and has no scale"),
    (packed, without("weight_zero_point"), packed_config(), CORRUPT, "has no zero_point"),
    (packed, as_is, packed_config(num_bits=8), UNSUPPORTED, "integers of 8 bits"),
    (packed, cut("weight_scale", 15), packed_config(), CORRUPT, r"l.weight_scale \(f16 \[15, 4\]\) does not fit"),
    (packed, cut("weight_zero_point", 1), packed_config(), CORRUPT, r"l.weight_zero_point \(i32 \[1, 4\]\)"),
    (packed, cut("weight_packed", 16, 15), packed_config(), UNSUPPORTED, "l.weight has rows of 120 values"),
    (packed, cut("weight_packed", 16, 11), packed_config(), UNSUPPORTED, "l.weight has groups of 22 columns"),
    (packed, cut("weight_packed", 16, 8), packed_config(), UNSUPPORTED, "l.weight has groups of 16 columns"),
    (packed, cut("weight_scale", 16, 3), packed_config(), CORRUPT, "a scale for equal groups of 128 columns"),
    (packed, cut("weight_scale", 16, 1), packed_config(), CORRUPT, r"l.weight_zero_point .* \[2, 1\]"),
    (packed, cast("weight_shape", torch.float32), packed_config(), CORRUPT, "l.weight_shape .* of the type i64"),
]


@pytest.mark.parametrize(("layout", "change", "config", "error", "message"), PLANNED)
def test_what_headers_show_is_refused_before_anything_is_read(
    tmp_path: Path,
    layout: Callable[[], Tensors],
    change: Callable[[Tensors], None],
    config: dict[str, Any],
    error: type[Exception],
    message: str,
) -> None:
    named = layout()
    change(named)
    with pytest.raises(error, match=message):
        presented(tmp_path, named, quantization=config)


def test_the_unchanged_checkpoints_are_read(tmp_path: Path) -> None:
    for layout, config in ((gptq, GPTQ), (awq, AWQ), (packed, packed_config())):
        folder = tmp_path / layout.__name__
        folder.mkdir()
        assert torch.equal(values(presented(folder, layout(), quantization=config)["l.weight"]), MATRIX.values)


def set_value(name: str, place: tuple[int, ...], value: float) -> Callable[[Tensors], None]:
    def change(tensors: Tensors) -> None:
        tensors[f"l.{name}"][place] = value

    return change


def swap_groups(tensors: Tensors) -> None:
    index = tensors["l.g_idx"]
    index[0], index[127] = index[127].clone(), index[0].clone()


READ = [
    (gptq, set_value("g_idx", (5,), 4), MOVED, CORRUPT, "l.g_idx puts column 5 into group 4 of 4"),
    (gptq, set_value("g_idx", (5,), -1), MOVED, CORRUPT, "l.g_idx puts column 5 into group -1 of 4"),
    (gptq, set_value("g_idx", (5,), 3), MOVED, CORRUPT, "l.g_idx puts 31 columns into group 0 instead of 32"),
    (gptq, swap_groups, GPTQ, CORRUPT, "l.g_idx moves column 0, though config.json says"),
    (gptq, as_is, {**GPTQ, "sym": True}, CORRUPT, "l.weight has the zero point .* says that it is symmetric"),
    (gptq, set_value("scales", (1, 3), np.inf), GPTQ, ValueError, "row 3"),
    (gptq, set_value("scales", (1, 3), np.nan), GPTQ, ValueError, "row 3"),
    (packed, set_value("weight_shape", (1,), 120), packed_config(), CORRUPT, r"l.weight .* says \[16, 120\]"),
]


@pytest.mark.parametrize(("layout", "change", "config", "error", "message"), READ)
def test_what_only_the_bytes_show_is_refused_when_they_are_read(
    tmp_path: Path,
    layout: Callable[[], Tensors],
    change: Callable[[Tensors], None],
    config: dict[str, Any],
    error: type[Exception],
    message: str,
) -> None:
    named = layout()
    change(named)
    tensors = presented(tmp_path, named, quantization=config)
    with pytest.raises(error, match=message):
        values(tensors["l.weight"])


def test_unpacked_zero_points_beyond_4_bits_are_refused(tmp_path: Path) -> None:
    named = packed() | {"l.weight_zero_point": torch.full((16, 4), 8, dtype=torch.int8)}
    tensors = presented(tmp_path, named, quantization=packed_config())
    with pytest.raises(CorruptFileError, match=r"l.weight_zero_point holds the zero point 8 in row 0, which is no"):
        values(tensors["l.weight"])


# --- scales ----------------------------------------------------------------------------------------------------------


def halves_of(scales: torch.Tensor, kind: str) -> tuple[np.ndarray, np.ndarray]:
    raw = scales.view(torch.uint8).numpy()
    halves, factors = exact_halves(raw, kind, "l.weight", 40)
    return halves.view(np.float16).astype(np.float64), factors.astype(np.float64)


def test_scales_in_f16_stay_as_they_are() -> None:
    scales = torch.arange(2**16, dtype=torch.int32).to(torch.uint16).reshape(64, 1024)
    halves, factors = exact_halves(scales.view(torch.uint8).numpy(), "f16", "l.weight", 0)
    assert np.array_equal(halves, scales.numpy())
    assert (factors == 1).all()


@pytest.mark.parametrize("exponent", [-120, -60, -20, 0, 15, 60, 110])
def test_scales_in_bf16_are_exact_wherever_they_lie(exponent: int) -> None:
    """All mantissas over the 32 powers of two that binary16 has room for, both signs and zero."""
    mantissas = torch.arange(128) / 128 + 1
    powers = torch.exp2(torch.arange(-20, 12).float())
    scales = (powers[:, None] * mantissas).reshape(1, -1).double() * 2.0**exponent
    scales = torch.cat([scales, -scales, torch.zeros(1, 1)], 1).bfloat16()
    halves, factors = halves_of(scales, "bf16")
    assert np.array_equal(halves * factors[:, None], scales.double().numpy())
    assert (np.frexp(factors)[0] == 0.5).all()


def test_rows_of_zeros_and_of_tiny_scales_are_exact() -> None:
    scales = torch.tensor([[0.0, -0.0], [2.0**-133, 2.0**-126], [2.0**127, 2.0**120]]).bfloat16()
    halves, factors = halves_of(scales, "bf16")
    assert np.array_equal(halves * factors[:, None], scales.double().numpy())


@pytest.mark.parametrize(
    ("scales", "kind"),
    [
        (torch.tensor([[1.0, 2.0], [1.0, 2.0**-40]]).bfloat16(), "bf16"),  # too far apart
        (torch.tensor([[1.0, 2.0], [1.0, 1 + 2.0**-11]]), "f32"),  # too fine
        (torch.tensor([[1.0, 2.0], [1.0, 2.0**-149]]), "f32"),
    ],
)
def test_scales_that_would_lose_something_are_refused(scales: torch.Tensor, kind: str) -> None:
    with pytest.raises(UnsupportedError, match=r"The scales of row 41 of the tensor l\.weight"):
        halves_of(scales, kind)


@pytest.mark.parametrize("value", [torch.inf, -torch.inf, torch.nan])
def test_scales_that_are_no_numbers_reach_the_packer_as_such(value: float) -> None:
    halves, _ = halves_of(torch.tensor([[1.0, value], [value, value]]).bfloat16(), "bf16")
    assert np.array_equal(halves[:, 1], [value, value], equal_nan=True)
