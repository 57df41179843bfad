"""fp8 and mxfp8 checkpoints: every layout of scales gives the values that the vendors' own decoders give."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from compressed_tensors.compressors.mxfp8 import MXFP8QuantizationCompressor
from compressed_tensors.compressors.naive_quantized import FloatQuantizationCompressor
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from transformers.integrations.finegrained_fp8 import Fp8Dequantize

from engine import _native
from engine.base.errors import CorruptFileError, UnsupportedError
from tests.unit.checkpoints import MIXTRAL, mixtral_tensors
from tests.unit.converting import run
from tests.unit.quantised import (
    presented,
    random_bytes,
    random_fp8,
    random_scales,
    random_weights,
    values,
    write_quantised,
)

DEEPSEEK = {"quant_method": "fp8", "weight_block_size": [128, 128]}


def by_hand(weight: torch.Tensor, scale: torch.Tensor, rows: int = 1, cols: int = 1) -> torch.Tensor:
    """weight * scale in f32, a scale holding for a block of rows and columns."""
    spread = scale.float().repeat_interleave(rows, -2).repeat_interleave(cols, -1)
    return (weight.float() * spread[..., : weight.shape[-2], : weight.shape[-1]]).flatten(0, -2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_blocks_equal_what_transformers_dequantises(tmp_path: Path, dtype: torch.dtype) -> None:
    weight, scale = random_fp8(256, 384), random_scales(2, 3).to(dtype)
    tensors = presented(tmp_path, {"l.weight": weight, "l.weight_scale_inv": scale}, quantization=DEEPSEEK)
    assert tensors.keys() == {"l.weight"}
    assert (tensors["l.weight"].form, tensors["l.weight"].shape) == ("fp8", (256, 384))
    expected = Fp8Dequantize(None)._dequantize_one(weight, scale, output_dtype=torch.float32)
    assert torch.equal(values(tensors["l.weight"]), expected)


@pytest.mark.parametrize(("rows", "cols"), [(1, 1), (17, 129), (127, 100), (130, 260), (200, 128), (129, 96)])
def test_ragged_edges_take_the_scale_of_their_block(tmp_path: Path, rows: int, cols: int) -> None:
    weight, scale = random_fp8(rows, cols), random_scales(-(-rows // 128), -(-cols // 128))
    tensors = presented(tmp_path, {"l.weight": weight, "l.weight_scale_inv": scale})
    assert torch.equal(values(tensors["l.weight"]), by_hand(weight, scale, 128, 128))


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("weight_scale", ()),
        ("weight_scale", (1,)),
        ("weight_scale", (1, 1)),
        ("scale_weight", ()),
        ("qscale_weight", ()),
        ("weight_scale_inv", (1,)),
        ("weight_scale", (48,)),
        ("weight_scale", (48, 1)),
        ("scale", (48, 1)),
    ],
)
def test_scales_of_the_tensor_and_of_rows(tmp_path: Path, name: str, shape: tuple[int, ...]) -> None:
    weight, scale = random_fp8(48, 200), random_scales(*shape)
    tensors = presented(tmp_path, {"l.weight": weight, f"l.{name}": scale})
    assert torch.equal(values(tensors["l.weight"]), weight.float() * scale.reshape(-1, 1))


@pytest.mark.parametrize(
    ("strategy", "extra"), [("tensor", {}), ("channel", {}), ("block", {"block_structure": [128, 128]})]
)
def test_compressed_tensors_float_quantized(tmp_path: Path, strategy: str, extra: dict[str, Any]) -> None:
    arguments = QuantizationArgs(num_bits=8, type="float", strategy=strategy, symmetric=True, **extra)
    scheme = QuantizationScheme(targets=["Linear"], weights=arguments)
    weight = random_weights(192, 320)
    blocks = {"tensor": (1,), "channel": (192, 1), "block": (2, 3)}[strategy]
    state = {"weight": weight, "weight_scale": (random_scales(*blocks) / 4).bfloat16()}
    kept = FloatQuantizationCompressor.compress(state, scheme)
    twin = FloatQuantizationCompressor.decompress({**kept, "weight_scale": kept["weight_scale"].float()}, scheme)
    quantization = {
        "quant_method": "compressed-tensors",
        "format": "float-quantized",
        "config_groups": {"group_0": {"weights": arguments.model_dump(mode="json")}},
        "ignore": ["lm_head"],
    }
    named = {f"m.{name}": tensor for name, tensor in kept.items()}
    tensors = presented(tmp_path, {**named, "m.input_scale": torch.tensor(0.5)}, quantization=quantization)
    assert tensors.keys() == {"m.weight", "m.input_scale"}
    assert torch.equal(values(tensors["m.weight"]), twin["weight"])


def test_e8m0_scales_of_blocks(tmp_path: Path) -> None:
    weight, exponents = random_fp8(256, 300), random_bytes(2, 3, low=100, high=140)
    tensors = presented(tmp_path, {"l.weight": weight, "l.scale": exponents.view(torch.float8_e8m0fnu)})
    scale = torch.exp2(exponents.float() - 127)
    assert tensors["l.weight"].form == "fp8"
    assert torch.equal(values(tensors["l.weight"]), by_hand(weight, scale, 128, 128))


def test_the_smallest_e8m0_scale_is_subnormal(tmp_path: Path) -> None:
    weight, exponents = random_fp8(4, 32), torch.tensor([[0], [1], [127], [254]], dtype=torch.uint8)
    tensors = presented(tmp_path, {"l.weight": weight, "l.weight_scale": exponents})
    scale = exponents.view(torch.float8_e8m0fnu).float()
    assert scale[0, 0] == 2.0**-127
    assert torch.equal(values(tensors["l.weight"]), weight.float() * scale)


@pytest.mark.parametrize("lead", [(), (3,)])
def test_blocks_with_dimensions_of_one_between(tmp_path: Path, lead: tuple[int, ...]) -> None:
    """As ModelOpt writes scales of blocks (FP8_PB_WO)."""
    weight, scale = random_fp8(*lead, 256, 384), random_scales(*lead, 2, 1, 3, 1)
    config = {"quant_method": "modelopt", "quant_algo": "FP8_PB_WO"}
    tensors = presented(tmp_path, {"l.weight": weight, "l.weight_scale": scale}, quantization=config)
    assert tensors["l.weight"].form == "fp8"
    assert torch.equal(values(tensors["l.weight"]), by_hand(weight, scale.reshape(*lead, 2, 3), 128, 128))


@pytest.mark.parametrize("shape", [(), (3,), (3, 1), (3, 1, 1), (3, 40), (3, 40, 1)])
def test_experts_in_one_tensor_with_scales_of_each_or_of_rows(tmp_path: Path, shape: tuple[int, ...]) -> None:
    weight, scale = random_fp8(3, 40, 160), random_scales(*shape)
    tensors = presented(tmp_path, {"l.experts.down_proj": weight, "l.experts.down_proj_scale_inv": scale})
    spread = scale.reshape(*shape, *[1] * (3 - len(shape))) if shape else scale
    assert tensors.keys() == {"l.experts.down_proj"}
    assert torch.equal(values(tensors["l.experts.down_proj"]), (weight.float() * spread).flatten(0, 1))


@pytest.mark.parametrize("name", ["gate_up_proj_scale_inv", "gate_up_proj_scale", "gate_up_proj_weight_scale"])
def test_experts_in_one_tensor_with_blocks(tmp_path: Path, name: str) -> None:
    weight, scale = random_fp8(3, 200, 260), random_scales(3, 2, 3)
    named = {"e.gate_up_proj": weight, f"e.{name}": scale, "e.gate_up_proj_activation_scale": torch.ones(3)}
    tensors = presented(tmp_path, named, quantization=DEEPSEEK)
    assert tensors.keys() == {"e.gate_up_proj", "e.gate_up_proj_activation_scale"}
    assert torch.equal(values(tensors["e.gate_up_proj"]), by_hand(weight, scale, 128, 128))


@pytest.mark.parametrize("kind", ["u8", "e8m0"])
def test_mxfp8_keeps_its_powers_of_two(tmp_path: Path, kind: str) -> None:
    weight, exponents = random_fp8(40, 192), random_bytes(40, 6, low=90, high=140)
    stored = exponents if kind == "u8" else exponents.view(torch.float8_e8m0fnu)
    tensors = presented(tmp_path, {"l.weight": weight, "l.weight_scale": stored})
    assert tensors["l.weight"].form == "mxfp8"
    assert torch.equal(values(tensors["l.weight"]), by_hand(weight, torch.exp2(exponents.float() - 127), 1, 32))


def test_mxfp8_of_compressed_tensors(tmp_path: Path) -> None:
    arguments = QuantizationArgs(
        num_bits=8, type="float", strategy="group", group_size=32, symmetric=True, scale_dtype=torch.uint8
    )
    scheme = QuantizationScheme(targets=["Linear"], weights=arguments)
    scales = torch.exp2(torch.round(random_weights(64, 4)) - 7)
    kept = MXFP8QuantizationCompressor.compress({"weight": random_weights(64, 128), "weight_scale": scales}, scheme)
    tensors = presented(tmp_path, {f"m.{name}": tensor for name, tensor in kept.items()})
    twin = MXFP8QuantizationCompressor.decompress(kept, scheme)["weight"].float()
    assert torch.equal(values(tensors["m.weight"]), by_hand(kept["weight"], scales, 1, 32))
    assert torch.equal(values(tensors["m.weight"]), twin)


def test_blocks_of_32_by_32_powers_of_two_become_mxfp8(tmp_path: Path) -> None:
    weight, exponents = random_fp8(2, 50, 64), random_bytes(2, 2, 2, low=100, high=140)
    quantization = {"quant_method": "mxfp8", "weight_block_size": [32, 32]}
    tensors = presented(tmp_path, {"e.up": weight, "e.up_scale_inv": exponents}, quantization=quantization)
    assert tensors["e.up"].form == "mxfp8"
    assert torch.equal(values(tensors["e.up"]), by_hand(weight, torch.exp2(exponents.float() - 127), 32, 32))


def test_row_ranges_equal_that_part_of_the_whole(tmp_path: Path) -> None:
    named = {"e.up": random_fp8(3, 200, 300), "e.up_scale_inv": random_scales(3, 2, 3)}
    tensor = presented(tmp_path, named, quantization=DEEPSEEK)["e.up"]
    whole = tensor.read(0, 600)
    for start, stop in ((0, 1), (127, 129), (199, 201), (150, 450), (599, 600)):
        assert (tensor.read(start, stop) == whole[start:stop]).all()


def test_scales_may_lie_in_another_file_and_unquantised_layers_stay(tmp_path: Path) -> None:
    weight, scale, router = random_fp8(128, 128), random_scales(1, 1), random_weights(4, 128).bfloat16()
    first = {"l.weight": weight, "l.bias": random_weights(128), "router.weight": router}
    tensors = presented(tmp_path, first, {"l.weight_scale_inv": scale}, quantization=DEEPSEEK)
    assert {name: tensor.form for name, tensor in tensors.items()} == {
        "l.weight": "fp8",
        "l.bias": "f32",
        "router.weight": "bf16",
    }
    assert [file.path.name for file in tensors["l.weight"].files] == ["0.safetensors", "1.safetensors"]
    assert torch.equal(values(tensors["l.weight"]), weight.float() * scale)


def test_scales_of_activations_and_of_the_cache_go_with_no_matrix(tmp_path: Path) -> None:
    extra = ("q_proj.input_scale", "q_proj.input_scale_ub", "k_proj.k_scale", "attn.k_scale", "k_proj.output_scale")
    named = {f"self_attn.{name}": torch.tensor(1.0) for name in extra}
    weight = {"q.weight": random_fp8(8, 8), "q.weight_scale": torch.tensor(0.5)}
    found = presented(tmp_path, named | weight, quantization={"quant_method": "modelopt"})
    assert found.keys() == {"q.weight", *named}


def test_without_quantised_tensors_nothing_changes(tmp_path: Path) -> None:
    named = {"l.weight": torch.ones(2, 2), "l.k_scale": torch.ones(2), "router.scale": torch.ones(3)}
    assert presented(tmp_path, named, quantization={"quant_method": "bitsandbytes"}).keys() == named.keys()


def test_scales_that_are_zero_or_negative_are_kept(tmp_path: Path) -> None:
    weight, scale = random_fp8(3, 130), torch.tensor([[-2.0], [0.0], [1.5]])
    tensors = presented(tmp_path, {"l.weight": weight, "l.weight_scale": scale})
    assert torch.equal(values(tensors["l.weight"]), weight.float() * scale)


@pytest.mark.parametrize("spoilt", [float("nan"), float("inf")])
def test_a_scale_that_is_no_number_is_refused_when_packed(tmp_path: Path, spoilt: float) -> None:
    named = {"l.weight": random_fp8(4, 130), "l.weight_scale": torch.tensor([1.0, 1.0, spoilt, 1.0])}
    with pytest.raises(ValueError, match="row 2"):
        values(presented(tmp_path, named)["l.weight"])


REFUSED: dict[str, tuple[dict[str, torch.Tensor], str]] = {
    "no scale": ({"l.weight": random_fp8(4, 4)}, r"l\.weight .*no scale"),
    "experts without scale": ({"e.up": random_fp8(2, 4, 4)}, r"e\.up .*no scale"),
    "no weight": ({"l.weight_scale_inv": torch.ones(1, 1)}, r"l\.weight_scale_inv but not l\.weight"),
    "grid of another size": (
        {"l.weight": random_fp8(256, 256), "l.weight_scale_inv": torch.ones(3, 2)},
        r"l\.weight_scale_inv \(f32 \[3, 2\]\) does not fit l\.weight",
    ),
    "experts of another count": (
        {"e.up": random_fp8(3, 8, 8), "e.up_scale_inv": torch.ones(2)},
        r"e\.up_scale_inv",
    ),
    "scale of integers": (
        {"l.weight": random_fp8(8, 8), "l.weight_scale": torch.ones(8, 1, dtype=torch.int32)},
        r"l\.weight_scale \(i32",
    ),
    "two scales": (
        {"l.weight": random_fp8(8, 8), "l.weight_scale": torch.ones(1), "l.weight_scale_inv": torch.ones(1, 1)},
        r"both l\.weight_scale",
    ),
    "narrow blocks": (
        {"l.weight": random_fp8(64, 256), "l.weight_scale_inv": torch.ones(1, 4)},
        r"l\.weight has a scale for every 64 columns",
    ),
    "zero points": (
        {"l.weight": random_fp8(8, 8), "l.weight_scale": torch.ones(1), "l.weight_zero_point": torch.zeros(1)},
        r"l\.weight_zero_point",
    ),
    "smoothed inputs": (
        {"l.weight": random_fp8(8, 8), "l.weight_scale": torch.ones(1), "l.pre_quant_scale": torch.ones(8)},
        r"l\.pre_quant_scale",
    ),
    "a vector": ({"n.weight": random_fp8(8), "n.weight_scale": torch.ones(1)}, r"n\.weight .*no matrix"),
    "e5m2": (
        {"l.weight": random_fp8(8, 8).view(torch.float8_e5m2), "l.weight_scale": torch.ones(1)},
        r"l\.weight .*f8_e5m2",
    ),
    "e4m3fnuz": (
        {"l.weight": random_fp8(8, 8).view(torch.float8_e4m3fnuz), "l.weight_scale": torch.ones(1)},
        r"l\.weight .*f8_e4m3fnuz",
    ),
    "scaled floats": ({"l.weight": torch.ones(8, 8), "l.weight_scale": torch.ones(1)}, r"l\.weight .*f32"),
    "eight-bit integers": (
        {"l.weight": torch.ones(8, 8, dtype=torch.int8), "l.weight_scale": torch.ones(8, 1)},
        r"l\.weight .*i8",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_makes_no_sense_is_refused_by_name(tmp_path: Path, name: str) -> None:
    tensors, words = REFUSED[name]
    with pytest.raises((CorruptFileError, UnsupportedError), match=words):
        presented(tmp_path, tensors)


@pytest.mark.parametrize(
    ("quantization", "words"),
    [
        ({"quant_method": "bitsandbytes"}, "bitsandbytes.*compressed-tensors"),
        ({"quant_method": 8}, "quant_method is 8"),
        ({"quant_method": "fp8", "weight_block_size": [128]}, "no block size"),
        ({"quant_method": "fp8", "weight_block_size": [0, 128]}, "no block size"),
        ({"quant_method": "compressed-tensors", "transform_config": {"config_groups": {}}}, "transform_config"),
        ({"quant_method": "compressed-tensors", "sparsity_config": {"format": "sparse-bitmask"}}, "sparsity_config"),
    ],
)
def test_descriptions_that_cannot_be_followed_are_refused(
    tmp_path: Path, quantization: dict[str, Any], words: str
) -> None:
    named = {"l.weight": random_fp8(256, 256), "l.weight_scale_inv": torch.ones(2, 2)}
    with pytest.raises((CorruptFileError, UnsupportedError), match=words):
        presented(tmp_path, named, quantization=quantization)


def test_the_tensors_decide_where_the_description_says_otherwise(tmp_path: Path) -> None:
    weight, scale = random_fp8(256, 256), random_scales(256, 1)
    tensors = presented(tmp_path, {"l.weight": weight, "l.weight_scale": scale}, quantization=DEEPSEEK)
    assert torch.equal(values(tensors["l.weight"]), weight.float() * scale)


def with_quantised_head(folder: Path, scale: torch.Tensor) -> torch.Tensor:
    """A mixtral checkpoint whose head alone is quantised; returns the head."""
    tensors = {name: torch.from_numpy(values) for name, values in mixtral_tensors().items()}
    head = random_fp8(*tensors["lm_head.weight"].shape)
    quantization = {"quantization_config": {"quant_method": "compressed-tensors", "format": "float-quantized"}}
    folder.mkdir()
    write_quantised(
        folder, [tensors | {"lm_head.weight": head}, {"lm_head.weight_scale": scale}], MIXTRAL | quantization
    )
    return head


def test_a_conversion_keeps_the_values(tmp_path: Path) -> None:
    scale = random_scales(MIXTRAL["vocab_size"], 1)
    head = with_quantised_head(tmp_path / "source", scale)
    tensor = run(tmp_path / "source", tmp_path / "dest").dense["head"]
    assert tensor.codec == "fp8"
    kept = _native.unpack(tensor.codec, tensor.rows, tensor.cols, tensor.data)
    assert torch.equal(torch.from_numpy(kept), head.float() * scale)


def test_a_conversion_names_the_tensor_of_a_bad_scale(tmp_path: Path) -> None:
    scale = torch.ones(MIXTRAL["vocab_size"], 1)
    scale[70] = float("inf")
    with_quantised_head(tmp_path / "source", scale)
    with pytest.raises(CorruptFileError, match=r"lm_head\.weight.*70") as caught:
        run(tmp_path / "source", tmp_path / "dest")
    assert caught.value.remedy
    assert not (tmp_path / "dest").exists()
