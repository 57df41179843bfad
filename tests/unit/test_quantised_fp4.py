"""nvfp4 and mxfp4 checkpoints: every layout gives the values that the vendors' own decoders give."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from compressed_tensors.compressors.mxfp4 import MXFP4PackedCompressor
from compressed_tensors.compressors.nvfp4 import NVFP4PackedCompressor, unpack_fp4_from_uint8
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from transformers.integrations.finegrained_fp8 import Fp8Dequantize
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from engine.base.errors import CorruptFileError, UnsupportedError
from tests.unit.quantised import presented, random_bytes, random_weights, values

E4M3 = torch.float8_e4m3fn


def block_scales(*shape: int, seed: int = 1) -> torch.Tensor:
    """Every e4m3 scale that is a number and no less than zero, the subnormal ones among them."""
    return random_bytes(*shape, high=127, seed=seed).view(E4M3)


def unpacked(pairs: torch.Tensor) -> torch.Tensor:
    """e2m1 values [rows, cols] out of pairs [.., cols / 2], by compressed-tensors."""
    flat = pairs.view(torch.uint8).flatten(0, -2)
    return unpack_fp4_from_uint8(flat, flat.shape[0], flat.shape[1] * 2, dtype=torch.float32)


def nvfp4_by_hand(pairs: torch.Tensor, scale: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
    """(scale * value) * factor in f32; the first product is exact."""
    spread = scale.float().flatten(0, -2).repeat_interleave(16, -1)
    return (unpacked(pairs) * spread) * factor


def test_nvfp4_of_modelopt(tmp_path: Path) -> None:
    pairs, scale, factor = random_bytes(48, 96), block_scales(48, 12), torch.tensor(0.0123)
    named = {"l.weight": pairs, "l.weight_scale": scale, "l.weight_scale_2": factor, "l.input_scale": torch.ones(())}
    tensors = presented(tmp_path, named, quantization={"quant_method": "modelopt", "quant_algo": "NVFP4"})
    assert tensors.keys() == {"l.weight", "l.input_scale"}
    assert (tensors["l.weight"].form, tensors["l.weight"].shape) == ("nvfp4", (48, 192))
    assert torch.equal(values(tensors["l.weight"]), nvfp4_by_hand(pairs, scale, factor))


@pytest.mark.parametrize("divisor", [512.0, 2688.0 / 3.7])
def test_nvfp4_of_compressed_tensors_divides_by_its_global_scale(tmp_path: Path, divisor: float) -> None:
    arguments = QuantizationArgs(num_bits=4, type="float", strategy="tensor_group", group_size=16, symmetric=True)
    scheme = QuantizationScheme(targets=["Linear"], weights=arguments)
    state = {
        "weight": random_weights(64, 128),
        "weight_scale": block_scales(64, 8).float().clamp(min=1),
        "weight_global_scale": torch.tensor([divisor]),
    }
    kept = NVFP4PackedCompressor.compress(state, scheme)
    assert kept["weight_scale"].dtype == E4M3
    named = {f"m.{name}": tensor for name, tensor in kept.items()} | {"m.input_global_scale": torch.ones(1)}
    tensors = presented(
        tmp_path, named, quantization={"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized"}
    )
    assert tensors.keys() == {"m.weight", "m.input_global_scale"}
    ours = values(tensors["m.weight"])
    assert torch.equal(ours, nvfp4_by_hand(kept["weight_packed"], kept["weight_scale"], 1 / torch.tensor(divisor)))
    scale = kept["weight_scale"].float() / divisor
    theirs = unpacked(kept["weight_packed"]) * scale.repeat_interleave(16, -1)
    if divisor == 512.0:
        assert torch.equal(ours, theirs)
    else:  # the inverse is rounded once, and so is the product with it; theirs rounds the quotient and the product
        assert ulps_apart(ours, theirs) <= 2


def ulps_apart(first: torch.Tensor, second: torch.Tensor) -> int:
    """The largest distance of two tensors in steps of f32."""
    steps = [tensor.abs().numpy().view(np.int32).astype(np.int64) for tensor in (first, second)]
    return int(np.abs(steps[0] - steps[1]).max())


@pytest.mark.parametrize("shape", [(), (1,), (3,), (3, 1, 1)])
def test_nvfp4_of_experts_in_one_tensor(tmp_path: Path, shape: tuple[int, ...]) -> None:
    pairs, scale = random_bytes(3, 20, 32), block_scales(3, 20, 4)
    factor = 0.01 + torch.arange(max(1, int(np.prod(shape)))).reshape(shape) / 7
    named = {"e.up_proj": pairs, "e.up_proj_weight_scale": scale, "e.up_proj_weight_scale_2": factor}
    tensor = presented(tmp_path, named)["e.up_proj"]
    spread = factor.reshape(-1, 1).repeat_interleave(20, 0) if factor.numel() > 1 else factor.reshape(())
    assert tensor.shape == (3, 20, 64)
    assert torch.equal(values(tensor), nvfp4_by_hand(pairs, scale, spread))
    whole = tensor.read(0, 60)
    for start, stop in ((0, 1), (19, 21), (35, 60), (59, 60)):
        assert (tensor.read(start, stop) == whole[start:stop]).all()


def test_a_checkpoint_of_nvfp4_fp8_and_bf16(tmp_path: Path) -> None:
    named = {
        "a.weight": random_bytes(16, 32),
        "a.weight_scale": block_scales(16, 4),
        "a.weight_scale_2": torch.tensor(1.0),
        "b.weight": random_bytes(16, 64, high=127).view(E4M3),
        "b.weight_scale": torch.tensor(0.5),
        "lm_head.weight": torch.ones(16, 64, dtype=torch.bfloat16),
    }
    quantization = {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers": {"a": {}}}
    tensors = presented(tmp_path, named, quantization=quantization)
    assert {name: tensor.form for name, tensor in tensors.items()} == {
        "a.weight": "nvfp4",
        "b.weight": "fp8",
        "lm_head.weight": "bf16",
    }


def test_mxfp4_of_gpt_oss(tmp_path: Path) -> None:
    blocks, scales = random_bytes(3, 12, 2, 16), random_bytes(3, 12, 2, low=100, high=140)
    named = {"e.gate_up_proj_blocks": blocks, "e.gate_up_proj_scales": scales, "e.gate_up_proj_bias": torch.ones(3, 12)}
    tensors = presented(tmp_path, named, quantization={"quant_method": "mxfp4"})
    assert tensors.keys() == {"e.gate_up_proj_blocks", "e.gate_up_proj_bias"}
    tensor = tensors["e.gate_up_proj_blocks"]
    assert (tensor.form, tensor.shape) == ("mxfp4_pairs", (3, 12, 64))
    theirs = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32)
    assert torch.equal(values(tensor).reshape(3, 12, 64), theirs.transpose(1, 2))
    whole = tensor.read(0, 36)
    for start, stop in ((0, 1), (11, 13), (35, 36)):
        assert (tensor.read(start, stop) == whole[start:stop]).all()


def test_mxfp4_of_deepseek(tmp_path: Path) -> None:
    pairs, exponents = random_bytes(40, 64).view(torch.int8), random_bytes(40, 4, low=100, high=140)
    named = {"w1.weight": pairs, "w1.scale": exponents.view(torch.float8_e8m0fnu)}
    tensors = presented(tmp_path, named, quantization={"quant_method": "fp8", "weight_block_size": [128, 128]})
    assert tensors.keys() == {"w1.weight"}
    theirs = Fp8Dequantize(None)._dequantize_one(pairs, named["w1.scale"], output_dtype=torch.float32)
    assert torch.equal(values(tensors["w1.weight"]), theirs)


def test_pairs_of_the_type_f4(tmp_path: Path) -> None:
    pairs, exponents = random_bytes(8, 32), random_bytes(8, 2, low=100, high=140)
    named = {"l.weight": pairs.view(torch.float4_e2m1fn_x2), "l.weight_scale": exponents}
    tensor = presented(tmp_path, named)["l.weight"]
    assert (tensor.form, tensor.shape) == ("mxfp4_pairs", (8, 64))
    expected = unpacked(pairs) * torch.exp2(exponents.float() - 127).repeat_interleave(32, -1)
    assert torch.equal(values(tensor), expected)


def test_mxfp4_of_compressed_tensors(tmp_path: Path) -> None:
    arguments = QuantizationArgs(num_bits=4, type="float", strategy="group", group_size=32, symmetric=True)
    scheme = QuantizationScheme(targets=["Linear"], weights=arguments)
    scales = torch.exp2(torch.round(random_weights(32, 4)) - 1)
    kept = MXFP4PackedCompressor.compress({"weight": random_weights(32, 128), "weight_scale": scales}, scheme)
    tensors = presented(tmp_path, {f"m.{name}": tensor for name, tensor in kept.items()})
    assert tensors.keys() == {"m.weight"}
    theirs = MXFP4PackedCompressor.decompress(kept, scheme)["weight"].float()
    assert torch.equal(values(tensors["m.weight"]), theirs)


PAIRS = {"l.weight": random_bytes(8, 32)}
NVFP4 = PAIRS | {"l.weight_scale": block_scales(8, 4), "l.weight_scale_2": torch.ones(())}
MXFP4 = PAIRS | {"l.weight_scale": random_bytes(8, 2, low=100, high=140)}
GPT_OSS = {"e.up_blocks": random_bytes(2, 4, 2, 16), "e.up_scales": random_bytes(2, 4, 2, low=100, high=140)}
REFUSED: dict[str, tuple[dict[str, torch.Tensor], str]] = {
    "no global scale": (
        {name: tensor for name, tensor in NVFP4.items() if "scale_2" not in name},
        r"l\.weight .*no global scale",
    ),
    "two global scales": (NVFP4 | {"l.weight_global_scale": torch.ones(1)}, r"l\.weight .*two global scales"),
    "a global scale a row": (NVFP4 | {"l.weight_scale_2": torch.ones(8)}, r"l\.weight_scale_2 .*one value"),
    "a whole global scale": (NVFP4 | {"l.weight_scale_2": torch.ones(1, dtype=torch.int32)}, r"l\.weight_scale_2"),
    "nvfp4 scales of 32": (NVFP4 | {"l.weight_scale": block_scales(8, 2)}, r"l\.weight_scale .*\[8, 4\]"),
    "nvfp4 rows of half a block": (
        {"l.weight": random_bytes(8, 24), "l.weight_scale": block_scales(8, 3), "l.weight_scale_2": torch.ones(())},
        r"l\.weight has rows of 48",
    ),
    "smoothed inputs": (NVFP4 | {"l.pre_quant_scale": torch.ones(64)}, r"l\.pre_quant_scale"),
    "mxfp4 scales of 16": (MXFP4 | {"l.weight_scale": random_bytes(8, 4)}, r"l\.weight_scale .*\[8, 2\]"),
    "mxfp4 and a factor": (MXFP4 | {"l.weight_scale_2": torch.ones(())}, r"l\.weight_scale_2"),
    "no weight": ({"l.weight_scale_2": torch.ones(())}, r"l\.weight_scale_2 but not l\.weight"),
    "no packed weight": ({"l.weight_global_scale": torch.ones(1)}, r"l\.weight_global_scale but not l\.weight"),
    "packed and plain": (NVFP4 | {"l.weight_packed": random_bytes(8, 32)}, r"both l\.weight"),
    "packed alone": ({"l.weight_packed": random_bytes(8, 32)}, r"l\.weight_packed .*no scale"),
    "blocks without scales": ({"e.up_blocks": GPT_OSS["e.up_blocks"]}, r"e\.up_scales is missing"),
    "blocks of another size": (
        GPT_OSS | {"e.up_blocks": random_bytes(2, 4, 4, 8)},
        r"e\.up_blocks .*blocks of 16 bytes",
    ),
    "scales of another shape": (GPT_OSS | {"e.up_scales": random_bytes(2, 4, 1)}, r"e\.up_scales .*\[2, 4, 2\]"),
    "another scale for pairs": (PAIRS | {"l.weight_scale": torch.ones(8, 2)}, r"l\.weight .*l\.weight_scale \(f32"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_makes_no_sense_is_refused_by_name(tmp_path: Path, name: str) -> None:
    tensors, words = REFUSED[name]
    with pytest.raises((CorruptFileError, UnsupportedError), match=words):
        presented(tmp_path, tensors)


@pytest.mark.parametrize(
    "spoilt",
    [
        MXFP4 | {"l.weight_scale": torch.full((8, 2), 255, dtype=torch.uint8)},
        NVFP4 | {"l.weight_scale": torch.full((8, 4), 127, dtype=torch.uint8).view(E4M3)},
        NVFP4 | {"l.weight_scale_2": torch.tensor(float("nan"))},
        {"l.weight_packed": PAIRS["l.weight"], "l.weight_scale": NVFP4["l.weight_scale"]}
        | {"l.weight_global_scale": torch.zeros(1)},
    ],
)
def test_a_scale_that_is_no_number_is_refused_when_packed(tmp_path: Path, spoilt: dict[str, torch.Tensor]) -> None:
    with pytest.raises(ValueError, match="row 0"):
        values(presented(tmp_path, spoilt)["l.weight"])
