"""A real model: SmolLM2-135M-Instruct out of its GGUF file, dense and made sparse, against transformers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer

from engine import _native
from engine.files.conversion.convert import convert
from engine.files.conversion.job import Recipe
from engine.files.ftw.opening import Ftw, open_model
from engine.files.sources.upcycle import Upcycle
from tests.bench.random_moe import smollm2_gguf
from tests.bench.reference import load_dense_llama

from .check import Floats, batch, greedy, page_table
from .prepare import native, no_tokenizer
from .tiny import GREEDY_TOKENS, Truth

# Of log-probabilities, after 30 layers whose activations are rounded to 16 bits a block. Measured: 0.006 and 0.004.
TOLERANCE = 0.02
PROMPT = "The capital of France is Paris. The capital of Italy is Rome. The capital of Spain is"


@dataclass(frozen=True)
class Demo:
    """The dense model, the sparse one made of it, and what transformers computes in f32."""

    dense: Ftw
    sparse: Ftw
    truth: Truth


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Demo:
    folder, source = tmp_path_factory.mktemp("smollm2"), smollm2_gguf()
    for name, upcycle in (("dense", None), ("sparse", Upcycle())):
        convert(source, folder / name, write_tokenizer=no_tokenizer, pack=_native.pack_rows, recipe=Recipe(upcycle))
    return Demo(open_model(folder / "dense"), open_model(folder / "sparse"), _truth(source))


@torch.no_grad()
def _truth(source: Path) -> Truth:
    tokenizer = AutoTokenizer.from_pretrained(str(source.parent), gguf_file=source.name)
    model = load_dense_llama(source)
    prompt = tokenizer(PROMPT, return_tensors="pt").input_ids
    logits = model(input_ids=prompt).logits[0].numpy()
    said = model.generate(prompt, max_new_tokens=GREEDY_TOKENS, min_new_tokens=GREEDY_TOKENS, do_sample=False)
    return Truth(tuple(prompt[0].tolist()), (), logits, tuple(said[0, prompt.shape[1] :].tolist()))


def log_probabilities(logits: Floats) -> Floats:
    return torch.from_numpy(logits).log_softmax(-1).numpy()


def logits_of(ftw: Ftw, truth: Truth) -> Floats:
    executor = native(ftw)
    pages, rows = page_table(executor, len(truth.prompt)), range(len(truth.prompt))
    return executor.step(batch(truth.prompt, 0, pages, rows))


@pytest.mark.long
def test_the_dense_model_agrees_with_transformers(demo: Demo) -> None:
    ours, theirs = logits_of(demo.dense, demo.truth), demo.truth.logits
    gap = np.abs(log_probabilities(ours) - log_probabilities(theirs))
    assert gap.max() <= TOLERANCE
    assert greedy(native(demo.dense), demo.truth) == demo.truth.greedy


@pytest.mark.long
def test_the_sparse_model_agrees_with_the_dense_one(demo: Demo) -> None:
    sparse, dense = logits_of(demo.sparse, demo.truth), logits_of(demo.dense, demo.truth)
    assert np.abs(log_probabilities(sparse) - log_probabilities(dense)).max() <= TOLERANCE
    assert greedy(native(demo.sparse), demo.truth) == demo.truth.greedy
