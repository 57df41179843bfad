"""A model of any shape with random weights, made where it is measured: for routing that comes from a trace.

Its own router knows nothing and its experts are small; what it has of the model that was traced are the number of
layers and of experts, and how many of them a token uses.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from engine.files.conversion.convert import convert_job
from engine.files.conversion.job import Recipe, plan_job
from engine.files.ftw.manifest import Shape
from engine.files.source_file import Bytes, SourceFile
from engine.files.sources.checkpoint import Checkpoint
from engine.files.sources.tensors import SourceTensor
from engine.measure.example_rows import random_rows


@dataclass(frozen=True)
class RandomShape:
    """Sizes in the terms of `config.json`; those of the defaults make an expert's record one page of 4096 bytes."""

    layers: int
    experts: int
    top_k: int
    hidden_size: int = 64
    intermediate_size: int = 32  # of one expert
    heads: int = 2
    head_dim: int = 32
    vocab_size: int = 256
    context: int = 32768
    codec: str = "q4_0"  # of experts and attention

    @property
    def name(self) -> str:
        """What it is, as a provenance says it."""
        return f"random weights: {self.layers} layers, {self.experts} experts, {self.top_k} a token"


def write_random_model(shape: RandomShape, folder: Path) -> None:
    """Make the FTW folder `folder`. Errors: those of a conversion that have to do with the disk."""
    checkpoint = Checkpoint(
        name=shape.name, config=_config(shape), tensors=dict(_tensors(shape)), files=(), companions={}
    )
    convert_job(plan_job(checkpoint, RANDOM, without_tokenizer=True), folder, write_tokenizer=_no_tokenizer)


@dataclass(frozen=True)
class RandomRecipe(Recipe):
    """Nothing is changed, and the provenance says that weights are random."""

    @property
    def settings(self) -> dict[str, Any]:
        return {**super().settings, "random": True}


RANDOM = RandomRecipe()


@dataclass(frozen=True)
class RandomTensor:
    """Fulfils `engine.files.sources.tensors.SourceTensor`; its rows depend on its name alone."""

    name: str
    form: str
    shape: tuple[int, ...]

    @property
    def files(self) -> tuple[SourceFile, ...]:
        return ()

    def read(self, start: int, stop: int) -> Bytes:
        cols = self.shape[-1]
        rows = self.shape[0] if len(self.shape) > 1 else 1
        if self.name.endswith("norm.weight"):
            return np.ones((1, cols), np.float32).view(np.uint8)
        random = np.random.default_rng(zlib.crc32(self.name.encode()))
        return random_rows(Shape(self.form, rows, cols), random)[start:stop]


def _tensors(shape: RandomShape) -> Iterator[tuple[str, SourceTensor]]:
    def tensor(name: str, form: str, *sizes: int) -> tuple[str, SourceTensor]:
        return f"{name}.weight", RandomTensor(f"{name}.weight", form, sizes)

    hidden, width, heads = shape.hidden_size, shape.intermediate_size, shape.heads * shape.head_dim
    yield tensor("model.embed_tokens", "f32", shape.vocab_size, hidden)
    for layer in range(shape.layers):
        prefix = f"model.layers.{layer}."
        yield tensor(f"{prefix}input_layernorm", "f32", hidden)
        for name in ("q", "k", "v"):
            yield tensor(f"{prefix}self_attn.{name}_proj", shape.codec, heads, hidden)
        yield tensor(f"{prefix}self_attn.o_proj", shape.codec, hidden, heads)
        for name in ("q", "k"):
            yield tensor(f"{prefix}self_attn.{name}_norm", "f32", shape.head_dim)
        yield tensor(f"{prefix}post_attention_layernorm", "f32", hidden)
        yield tensor(f"{prefix}mlp.gate", "f32", shape.experts, hidden)
        for expert in range(shape.experts):
            for name in ("gate", "up"):
                yield tensor(f"{prefix}mlp.experts.{expert}.{name}_proj", shape.codec, width, hidden)
            yield tensor(f"{prefix}mlp.experts.{expert}.down_proj", shape.codec, hidden, width)
    yield tensor("model.norm", "f32", hidden)


def _config(shape: RandomShape) -> dict[str, Any]:
    return {
        "model_type": "qwen3_moe",
        "architectures": ["Qwen3MoeForCausalLM"],
        "vocab_size": shape.vocab_size,
        "hidden_size": shape.hidden_size,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.heads,
        "head_dim": shape.head_dim,
        "max_position_embeddings": shape.context,
        "intermediate_size": shape.intermediate_size * shape.top_k,
        "moe_intermediate_size": shape.intermediate_size,
        "num_experts": shape.experts,
        "num_experts_per_tok": shape.top_k,
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "rms_norm_eps": 1e-6,
        "rope_theta": 1e6,
        "hidden_act": "silu",
        "attention_bias": False,
        "tie_word_embeddings": True,
    }


def _no_tokenizer(metadata: Mapping[str, Any], folder: Path) -> None:
    raise AssertionError("a checkpoint without metadata has no tokenizer to write")
