"""A case made ready: the checkpoint on disk, what transformers says, the converted model, and executors for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.files.codecs import CODECS
from engine.files.conversion.convert import convert
from engine.files.ftw.opening import Ftw, open_model
from engine.program.lowering.lower import lower
from engine.program.native import NativeExecutor
from engine.program.reference.executor import ReferenceExecutor
from engine.program.weights import FtwWeights, Weights
from engine.spec.schema import Spec
from tests.bench.random_moe import Codecs, random_moe
from tests.bench.shapes import Shape

from .cases import QUANTISED_CASES, Case
from .codecs_numpy import pack_for_conversion, unpack
from .int4_vendors import INT4_VENDORS
from .layout_weights import LayoutWeights
from .tiny import Truth, build, open_truth
from .vendors import VENDORS, quantise_folder


@dataclass(frozen=True)
class Prepared:
    """`weights` are cut straight out of the checkpoint, in a way of their own; `ftw` is the converted model."""

    checkpoint: Path
    truth: Truth
    weights: LayoutWeights
    ftw: Ftw

    @property
    def spec(self) -> Spec:
        return Spec.from_json(self.ftw.spec)

    @property
    def ftw_weights(self) -> FtwWeights:
        return FtwWeights(self.ftw, unpack)

    def reference(self) -> ReferenceExecutor:
        """The reference executor over the converted model."""
        return reference(self.spec, self.ftw_weights)


def prepare(case: Case, folder: Path) -> Prepared:
    """Build the case's model in `folder`, and convert it there."""
    checkpoint, converted = folder / "checkpoint", folder / "converted"
    truth = build(case, checkpoint)
    convert(checkpoint, converted, write_tokenizer=no_tokenizer, pack=pack_for_conversion)
    return Prepared(checkpoint, truth, LayoutWeights(checkpoint), open_model(converted))


SEEDS = {("qwen3_moe", "q5_1"): 1}
"""Where a router of the model of seed 0 chooses between experts 1e-4 apart: rounding of activations would decide."""


def prepare_quantised(family: str, codec: str, folder: Path) -> Prepared:
    """A model whose experts are in `codec`, converted; the values that it decodes to go to transformers as f32.

    It comes from a vendor's library, or as a vendor writes it, where there is one; else out of a GGUF file.
    """
    vendors = {**VENDORS, **INT4_VENDORS}
    checkpoint, converted = folder / "checkpoint", folder / "converted"
    if (family, codec) in vendors:
        source = folder / "quantised"
        build(QUANTISED_CASES[family], checkpoint)
        quantise_folder(vendors[family, codec], checkpoint, source)
    else:
        source = folder / "model.gguf"
        whole = CODECS[codec].cols_unit > 32  # blocks that hidden states are cut into
        shape = Shape(
            layers=2, hidden=256 if whole else 96, heads=4, kv_heads=2, head_dim=32, experts=6, top_k=2,
            intermediate=256 if whole else 64, vocab=160,
        )  # fmt: skip
        seed = SEEDS.get((family, codec), 0)
        random_moe(family, shape, Codecs(experts=codec), hf=checkpoint, gguf_file=source, tokenizer=False, seed=seed)
    convert(source, converted, write_tokenizer=no_tokenizer, pack=pack_for_conversion)
    return Prepared(checkpoint, open_truth(checkpoint), LayoutWeights(checkpoint), open_model(converted))


def reference(spec: Spec, weights: Weights) -> ReferenceExecutor:
    return ReferenceExecutor(lower(spec), weights)


def native(ftw: Ftw, spec: Spec | None = None, **settings: Any) -> NativeExecutor:
    """The native executor over a converted model, with keys and values kept in f32; `spec` replaces the model's."""
    program = lower(spec or Spec.from_json(ftw.spec))
    return NativeExecutor(program, ftw.dense, ftw.banks, **{"kv_dtype": "f32", "threads": 2, **settings})


def no_tokenizer(_metadata: Mapping[str, Any], _folder: Path) -> None:
    """The models here have no tokenizer."""
