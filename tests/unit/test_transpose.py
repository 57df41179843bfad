"""Tensors that a checkpoint keeps the other way round: values move, and 8-bit floats keep their scales if they can."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from engine.base.errors import CorruptFileError, UnsupportedError
from engine.files.codecs import FORMS
from engine.files.conversion.gather import Gather
from engine.files.sources.tensors import MemoryTensor, SourceTensor
from engine.spec.layout import Matrix, Piece
from tests.parity.codecs_numpy import pack, unpack
from tests.parity.raw_numpy import random_raw
from tests.unit.int4_layouts import as_awq, as_gptq, as_packed, random_grouped
from tests.unit.quantised import presented, random_fp8, random_scales, random_weights, values


def gathered(tensor: SourceTensor, matrix: Matrix, step: int) -> torch.Tensor:
    """The values of a matrix, read `step` rows at a time."""
    gather = Gather({"w": tensor})
    parts = [gather.rows(matrix, start, min(start + step, matrix.rows)) for start in range(0, matrix.rows, step)]
    shape = (matrix.rows, matrix.cols)
    return values(MemoryTensor(gather.form(matrix), shape, np.concatenate(parts)))


def heads(rows: int, cols: int, count: int, width: int, stride: int, first: int = 0) -> Matrix:
    """`count` runs of `width` rows of a tensor [rows, cols], each transposed, above each other."""
    starts = [first + head * stride for head in range(count)]
    assert starts[-1] + width <= rows
    pieces = tuple(Piece("w", transpose=True, col_start=start, col_stop=start + width) for start in starts)
    return Matrix("m", count * cols, width, pieces)


def expected(weights: torch.Tensor, matrix: Matrix) -> torch.Tensor:
    return torch.cat([weights[piece.col_start : piece.col_stop].T for piece in matrix.pieces])


@pytest.mark.parametrize("step", [1, 48, 1000])
@pytest.mark.parametrize(
    ("rows", "width", "stride", "block", "form"),
    [
        (512, 128, 256, 128, "fp8"),  # every head's rows are a block of scales
        (512, 256, 256, 128, "fp8"),  # two blocks
        (512, 64, 256, 128, "fp8"),  # half a block
        (448, 96, 224, 128, "f32"),  # the second head begins within a block
        (300, 130, 150, 300, "fp8"),  # one scale for all rows
        (512, 128, 256, 1, "f32"),  # a scale for every row
    ],
)
def test_8_bit_floats_of_heads(
    tmp_path: Path, step: int, rows: int, width: int, stride: int, block: int, form: str
) -> None:
    weight, scale = random_fp8(rows, 200), random_scales(-(-rows // block), 2 if block == 128 else 1)
    tensor = presented(tmp_path, {"l.weight": weight, "l.weight_scale_inv": scale})["l.weight"]
    spread = scale.repeat_interleave(block, 0)[:rows].repeat_interleave(128 if block == 128 else 200, 1)[:, :200]
    matrix = heads(rows, 200, 2, width, stride)
    assert Gather({"w": tensor}).form(matrix) == form
    assert torch.equal(gathered(tensor, matrix, step), expected(weight.float() * spread, matrix))


def test_experts_that_are_kept_as_in_by_out(tmp_path: Path) -> None:
    weight, scale = random_fp8(3, 256, 260), random_scales(3, 2, 3)
    tensor = presented(tmp_path, {"e.up": weight, "e.up_scale_inv": scale})["e.up"]
    spread = scale.repeat_interleave(128, 1).repeat_interleave(128, 2)[..., :260]
    for first in (0, 1):  # gate and up in turn
        matrix = Matrix("m", 130, 256, (Piece("w", index=2, transpose=True, start=first, step=2),))
        ours = gathered(tensor, matrix, 48)
        assert torch.equal(ours, (weight.float() * spread)[2].T[first::2])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_plain_values(tmp_path: Path, dtype: torch.dtype) -> None:
    weights = random_weights(60, 50).to(dtype)
    tensor = presented(tmp_path, {"l.weight": weights})["l.weight"]
    matrix = heads(60, 50, 3, 12, 20, first=4)
    assert torch.equal(gathered(tensor, matrix, 7), expected(weights.float(), matrix))


def test_blocks_of_other_codecs_are_refused_by_name() -> None:
    gather = Gather({"w": MemoryTensor("q8_0", (32, 32), np.zeros((32, 34), np.uint8))})
    with pytest.raises(UnsupportedError, match="tensor w is in q8_0, and would have to be transposed"):
        gather.form(heads(32, 32, 1, 32, 32))


# --- what has to be plain first --------------------------------------------------------------------------------------


def plain(matrix: Matrix) -> Matrix:
    return replace(matrix, pieces=tuple(replace(piece, plain=True) for piece in matrix.pieces))


@pytest.mark.parametrize("form", sorted(name for name, form in FORMS.items() if form.block > 1))
def test_every_form_is_transposed_by_its_values(form: str) -> None:
    raw = random_raw(form, 96, 256, np.random.default_rng(0))
    tensor = MemoryTensor(form, (96, 256), raw)
    matrix = plain(heads(96, 256, 2, 20, 40, first=4))
    assert Gather({"w": tensor}).form(matrix) == "f32"
    decoded = torch.from_numpy(unpack(FORMS[form].codec, 96, 256, pack(form, raw, 256).reshape(-1)))
    for step in (7, 1000):
        assert torch.equal(gathered(tensor, matrix, step), expected(decoded, matrix))


@pytest.mark.parametrize("layout", ["gptq", "packed", "awq"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_columns_in_an_order_are_put_back(tmp_path: Path, layout: str, dtype: torch.dtype) -> None:
    moved = layout != "awq"
    stored = random_grouped(96, 256, 64, moved=moved, lowest_zero=1, dtype=dtype)
    config: dict[str, object] = {"quant_method": layout, "bits": 4, "group_size": 64, "desc_act": True}
    if layout == "packed":
        named = as_packed(stored, symmetric=False, moved=True)
        config = {"quant_method": "compressed-tensors"}
    else:
        named = as_gptq(stored) if moved else as_awq(stored)
    tensors = presented(tmp_path, named, quantization=config)
    assert ("l.weight.order" in tensors) == moved
    gather = Gather({name.replace("l.weight", "w"): tensor for name, tensor in tensors.items()})
    turned = plain(heads(96, 256, 2, 20, 40, first=4))
    straight = plain(Matrix("v", 30, 256, (Piece("w", start=10, stop=20), Piece("w", start=50, stop=70))))
    for matrix, wanted in (
        (turned, expected(stored.values, turned)),
        (straight, torch.cat([stored.values[10:20], stored.values[50:70]])),
    ):
        assert gather.form(matrix) == "f32"
        assert set(gather.files(matrix)) == set(tensors["l.weight"].files)
        assert np.array_equal(gather.rows(matrix, 0, matrix.rows).view(np.float32), wanted.numpy())


def test_a_scale_that_is_no_number_is_told_with_tensor_and_row() -> None:
    raw = random_raw("q8_0", 32, 64, np.random.default_rng(0))
    raw[21, 34:36] = np.frombuffer(np.float16("inf").tobytes(), np.uint8)
    gather = Gather({"w": MemoryTensor("q8_0", (32, 64), raw)})
    with pytest.raises(CorruptFileError, match="tensor w cannot be used: row 21, block 1") as caught:
        gather.rows(plain(heads(32, 64, 1, 16, 16, first=10)), 0, 64)
    assert caught.value.remedy


def test_a_form_without_a_reader_is_still_refused() -> None:
    gather = Gather({"w": MemoryTensor("i8", (32, 32), np.zeros((32, 32), np.uint8))})
    with pytest.raises(UnsupportedError, match="tensor w is in i8"):
        gather.form(plain(heads(32, 32, 1, 32, 32)))
