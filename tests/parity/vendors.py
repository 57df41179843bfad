"""Checkpoints quantised by the vendors' own libraries, beside twins that hold the values these libraries read back."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from compressed_tensors.compressors.base import BaseCompressor
from compressed_tensors.compressors.mxfp4 import MXFP4PackedCompressor
from compressed_tensors.compressors.mxfp8 import MXFP8QuantizationCompressor
from compressed_tensors.compressors.naive_quantized import FloatQuantizationCompressor
from compressed_tensors.compressors.nvfp4 import NVFP4PackedCompressor
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam
from safetensors.torch import load_file, save_file
from transformers import FineGrainedFP8Config
from transformers.integrations.finegrained_fp8 import Fp8Dequantize, Fp8Quantize
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Vendor:
    """One way of publishing a model: what config.json says, which tensors are quantised, and by what.

    `quantise(name, values)` returns the tensors to store for a weight, by name, and the values read back from them.
    """

    config: Mapping[str, Any]
    wanted: str
    quantise: Callable[[str, torch.Tensor], tuple[Tensors, torch.Tensor]]


def quantise_folder(vendor: Vendor, twin: Path, dest: Path) -> None:
    """Writes the f32 checkpoint `twin` to `dest`, quantised, and puts the values read back into `twin`."""
    dest.mkdir()
    stored: Tensors = {}
    for path in sorted(twin.glob("*.safetensors")):
        exact = load_file(path)
        for name, values in exact.items():
            if re.search(vendor.wanted, name):
                tensors, exact[name] = vendor.quantise(name, values)
                stored |= tensors
            else:
                stored[name] = values
        save_file(exact, path, metadata={"format": "pt"})
    save_file(stored, dest / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((twin / "config.json").read_text()) | {"quantization_config": dict(vendor.config)}
    (dest / "config.json").write_text(json.dumps(config))


class _Fp8Blocks:
    """Blocks of 128 x 128, by transformers; a matrix of no whole blocks stays as it is."""

    quantization_config = FineGrainedFP8Config(weight_block_size=(128, 128))

    def __call__(self, name: str, values: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
        stored = Fp8Quantize(self).convert({name: values})
        if len(stored) == 1:
            return stored, values
        weight, scale = stored.values()
        return stored, Fp8Dequantize(self)._dequantize_one(weight, scale, output_dtype=torch.float32)


@dataclass(frozen=True)
class _CompressedTensors:
    """Groups of values that share a scale, by compressed-tensors. Its bf16 holds every value exactly."""

    compressor: type[BaseCompressor]
    arguments: QuantizationArgs

    def __call__(self, name: str, values: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
        stem = name.removesuffix("weight")
        kept, dequantised = self.compress(values)
        return {stem + part: tensor for part, tensor in kept.items()}, dequantised

    def compress(self, values: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
        """The stored parts of a matrix, and the values read back from them."""
        scheme = QuantizationScheme(targets=["Linear"], weights=self.arguments)
        groups = values.unflatten(-1, (-1, self.arguments.group_size or values.shape[-1]))
        state, factor = {"weight": values}, None
        if self.arguments.strategy == "tensor_group":
            # a power of two: then it does not matter which product with it is rounded
            factor = torch.exp2(torch.floor(torch.log2(generate_gparam(values.min(), values.max()))))
            state["weight_global_scale"] = factor
        state["weight_scale"], _ = calculate_qparams(groups.amin(-1), groups.amax(-1), self.arguments, factor)
        kept = self.compressor.compress(state, scheme)
        return kept, self.compressor.decompress(kept, scheme)["weight"].float()


def _floats(bits: int, strategy: str, group_size: int | None, scale_dtype: torch.dtype) -> QuantizationArgs:
    return QuantizationArgs(
        num_bits=bits, type="float", strategy=strategy, group_size=group_size, symmetric=True, scale_dtype=scale_dtype
    )


_NVFP4 = _CompressedTensors(NVFP4PackedCompressor, _floats(4, "tensor_group", 16, torch.float8_e4m3fn))
_MXFP4 = _CompressedTensors(MXFP4PackedCompressor, _floats(4, "group", 32, torch.uint8))
FP8_ROWS = _CompressedTensors(FloatQuantizationCompressor, _floats(8, "channel", None, torch.float32))
_MXFP8 = _CompressedTensors(MXFP8QuantizationCompressor, _floats(8, "group", 32, torch.uint8))


def _as_gpt_oss(name: str, values: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    """Experts [E, in, out] as OpenAI publishes them: blocks and scales of [E, out, in], read back by transformers."""
    experts, _, rows = values.shape
    kept, _ = _MXFP4.compress(values.transpose(1, 2).flatten(0, 1))
    scales = kept["weight_scale"].reshape(experts, rows, -1)
    blocks = kept["weight_packed"].reshape(*scales.shape, 16)
    dequantised = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32)
    return {f"{name}_blocks": blocks, f"{name}_scales": scales}, dequantised


def _modelopt_nvfp4(name: str, values: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    """The same numbers under ModelOpt's names, with a factor where compressed-tensors has a divisor."""
    kept, dequantised = _NVFP4.compress(values)
    stem = name.removesuffix("weight")
    stored = {f"{stem}weight": kept["weight_packed"], f"{stem}weight_scale": kept["weight_scale"]}
    stored[f"{stem}weight_scale_2"] = (1 / kept["weight_global_scale"]).reshape(())
    return stored | {f"{stem}input_scale": torch.tensor(0.25)}, dequantised


PUBLISHED_AS = (  # by DeepSeek, what transformers writes in another way
    (r"^model\.", ""),
    (r"^embed_tokens\.", "embed."),
    (r"^hc_head\.hc_", "hc_head_"),
    (r"\.attn\.norm\.", ".attn.kv_norm."),
)


def _as_deepseek_v4(name: str, values: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    """Experts in four bits, projections of whole blocks in eight, scales that are powers of two; its own names."""
    stored = name
    for theirs, published in PUBLISHED_AS:
        stored = re.sub(theirs, published, stored)
    scaled = f"{stored.removesuffix('weight')}scale"
    if ".experts." in name:
        kept, _ = _MXFP4.compress(values)
        codes, scales = kept["weight_packed"], kept["weight_scale"]
        blocks = codes.reshape(1, *scales.shape, 16)
        dequantised = convert_moe_packed_tensors(blocks, scales[None], dtype=torch.float32)[0].T.contiguous()
        return {stored: codes.view(torch.int8), scaled: scales.view(torch.float8_e8m0fnu)}, dequantised
    if not re.search(r"\.attn\.w\w+\.weight$", name) or any(size % 128 for size in values.shape):
        return {stored: values}, values
    tiles = values.unflatten(1, (-1, 128)).unflatten(0, (-1, 128))
    powers = torch.exp2(torch.ceil(torch.log2(tiles.abs().amax((1, 3), keepdim=True) / 448)))
    eighths = (tiles / powers).to(torch.float8_e4m3fn)
    scales = powers[:, 0, :, 0].to(torch.float8_e8m0fnu)
    dequantised = (eighths.float() * powers).flatten(2).flatten(0, 1)
    return {stored: eighths.flatten(2).flatten(0, 1), scaled: scales}, dequantised


def compressed(format_name: str, scheme: _CompressedTensors) -> dict[str, Any]:
    """The quantization_config that compressed-tensors writes for a model whose matrices are all of one scheme."""
    weights = {"targets": ["Linear"], "weights": scheme.arguments.model_dump(mode="json")}
    return {
        "quant_method": "compressed-tensors",
        "format": format_name,
        "config_groups": {"group_0": weights},
        "ignore": ["lm_head"],
    }


_MODELOPT = {"quant_method": "modelopt", "quant_algo": "NVFP4"}
_FP8 = {"quant_method": "fp8", "weight_block_size": [128, 128], "activation_scheme": "dynamic"}
_LINEARS = r"\.((shared_)?experts(\.\d+)?|self_attn)\.\w*_proj\w*\.weight$"
_INDEXED_LINEARS = _LINEARS + r"|\.indexer\.w(q_b|k)\.weight$"
# Qwen leaves alone what gives the strengths of updates and their decay.
_QWEN_LINEARS = r"\.(shared_expert|experts\.\d+|self_attn|linear_attn)\.(?!in_proj_[ab])\w*proj\w*\.weight$"
_NEMOTRON_LINEARS = r"\.mixer\.((shared_)?experts\.(\d+\.)?)?\w+_proj\.weight$"
_MINIMAX_LINEARS = r"\.(experts\.\d+\.w\d|self_attn\.\w_proj)\.weight$"
_EXPERTS = r"\.experts\.\d+\.\w+\.weight$"
_FUSED = r"\.experts\.(gate_up|down)_proj$"

# By family and the codec that the experts' layout becomes.
VENDORS: Mapping[tuple[str, str], Vendor] = {
    ("qwen3_moe", "fp8"): Vendor(_FP8, _LINEARS, _Fp8Blocks()),
    ("qwen3_next", "fp8"): Vendor(_FP8, _QWEN_LINEARS, _Fp8Blocks()),
    ("qwen3_5_moe", "fp8"): Vendor(_FP8, _QWEN_LINEARS, _Fp8Blocks()),
    ("qwen3_5_moe", "nvfp4"): Vendor(_MODELOPT, _EXPERTS, _modelopt_nvfp4),
    ("nemotron_h", "fp8"): Vendor(_FP8, _NEMOTRON_LINEARS, _Fp8Blocks()),
    ("nemotron_h", "nvfp4"): Vendor(_MODELOPT, _EXPERTS, _modelopt_nvfp4),
    ("deepseek_v3", "fp8"): Vendor(_FP8, _LINEARS, _Fp8Blocks()),
    ("qwen3_moe", "mxfp8"): Vendor(compressed("mxfp8-quantized", _MXFP8), _LINEARS, _MXFP8),
    ("qwen3_moe", "nvfp4"): Vendor(compressed("nvfp4-pack-quantized", _NVFP4), _LINEARS, _NVFP4),
    ("mixtral", "nvfp4"): Vendor(_MODELOPT, _EXPERTS, _modelopt_nvfp4),
    ("deepseek_v32", "fp8"): Vendor(_FP8, _INDEXED_LINEARS, _Fp8Blocks()),
    ("mimo_v2_flash", "fp8"): Vendor(_FP8, _LINEARS, _Fp8Blocks()),
    ("glm_moe_dsa", "fp8"): Vendor(_FP8, _INDEXED_LINEARS, _Fp8Blocks()),
    ("glm_moe_dsa", "nvfp4"): Vendor(_MODELOPT, _EXPERTS, _modelopt_nvfp4),
    ("glm4_moe", "nvfp4"): Vendor(_MODELOPT, _EXPERTS, _modelopt_nvfp4),
    ("glm4_moe", "fp8"): Vendor(compressed("float-quantized", FP8_ROWS), _LINEARS, FP8_ROWS),
    ("minimax_m2", "fp8"): Vendor(_FP8, _MINIMAX_LINEARS, _Fp8Blocks()),
    ("minimax_m2", "nvfp4"): Vendor(_MODELOPT, _EXPERTS, _modelopt_nvfp4),
    ("deepseek_v4", "mxfp4"): Vendor({**_FP8, "fmt": "e4m3", "scale_fmt": "ue8m0"}, "", _as_deepseek_v4),
    ("gpt_oss", "mxfp4"): Vendor({"quant_method": "mxfp4"}, _FUSED, _as_gpt_oss),
}
