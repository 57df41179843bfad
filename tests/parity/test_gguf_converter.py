"""GGUF files by llama.cpp's own converter become what the same weights in safetensors become, bit by bit.

The converter comes with llama.cpp's sources, not with the `gguf` package: FREETOKEN_CONVERTER names its
convert_hf_to_gguf.py. Without it test_gguf_written.py holds the reader to files by a writer of our own.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.files.conversion.convert import convert
from engine.files.ftw.opening import Ftw, open_model
from engine.program.weights import FtwWeights

from .cases import CASES
from .cases.latent import DEEPSEEK_YARN
from .codecs_numpy import pack_for_conversion, unpack
from .prepare import Prepared, no_tokenizer, prepare

CONVERTER = os.environ.get("FREETOKEN_CONVERTER", "")
pytestmark = pytest.mark.skipif(not CONVERTER, reason="FREETOKEN_CONVERTER names no convert_hf_to_gguf.py")

LOGARITHMS = ("delta.a_log", "mamba.a_log")  # the file has -exp of them

# By case, settings that the converter or llama.cpp takes for granted.
CONVERTED: dict[str, dict[str, Any]] = {
    "llama": {},
    "llama-linear-rope": {},
    "qwen2-odd-yarn": {},
    "qwen3": {},
    "granite-biased": {},
    "qwen2_moe": {"norm_topk_prob": False},
    "qwen3_moe": {},
    "mixtral": {},
    "olmoe": {},
    "granitemoe": {},
    "granitemoe-odd-tied": {},
    "gpt_oss": {"swiglu_limit": 7.0},
    "deepseek_v2": {},
    "deepseek_v3": {},
    "deepseek_v3-groups-yarn": {"rope_parameters": {**DEEPSEEK_YARN["rope_parameters"], "mscale": 1.0}},
    "glm4_moe": {},
    "dots1": {},
    "minimax_m2": {},
    "ernie4_5_moe": {},
    "exaone_moe": {},
    "qwen3_next": {},
    "qwen3_5_moe": {},
    "granitemoehybrid": {},
    "granitemoehybrid-dense": {},
    "granitemoehybrid-odd-rope-limits": {"time_step_limit": [0.0, float("inf")], "position_embedding_type": "nope"},
    "lfm2_moe": {"tie_word_embeddings": True, "routed_scaling_factor": 1.0},
    "jamba": {},
    "nemotron_h": {},
    "nemotron_h-latent": {},
}
UNBOUNDED = ("granitemoehybrid", "nemotron_h")  # whose files name a context of 2^20 tokens
BY_NAME = {case.name: case for case in CASES}


@dataclass(frozen=True)
class Twins:
    """A model converted from safetensors, and the GGUF file that llama.cpp makes of these."""

    model: Prepared
    file: Path


@pytest.fixture(scope="session")
def twins(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Twins]:
    """The twins of every case, by one run of the converter."""
    folder = tmp_path_factory.mktemp("converted")
    made: dict[str, Twins] = {}
    arguments: list[str] = []
    for name, settings in CONVERTED.items():
        case = BY_NAME[name]
        model = prepare(replace(case, settings={**case.settings, **settings}), folder / name)
        made[name] = Twins(model, folder / f"{name}.gguf")
        arguments += [str(as_published(model.checkpoint, folder / f"{name}-published")), str(made[name].file)]
    program = Path(__file__).with_name("run_converter.py")
    done = subprocess.run([sys.executable, program, CONVERTER, *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == {}
    return made


def as_published(checkpoint: Path, folder: Path) -> Path:
    """A copy whose config says what published ones do and transformers leaves to its code."""
    shutil.copytree(checkpoint, folder)
    config = json.loads((folder / "config.json").read_text())
    if config["model_type"] in ("granitemoehybrid", "jamba"):
        named = {"linear_attention": "mamba", "full_attention": "attention"}
        config["layer_types"] = [named.get(kind, kind) for kind in config.get("layer_types", [])]
    if config["model_type"] == "deepseek_v3":
        config["scoring_func"] = "sigmoid"
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize("name", CONVERTED)
def test_the_file_becomes_the_same_model(twins: dict[str, Twins], tmp_path: Path, name: str) -> None:
    twin = twins[name]
    convert(twin.file, tmp_path / "m", write_tokenizer=no_tokenizer, pack=pack_for_conversion)
    ours = open_model(tmp_path / "m")
    besides = {"context_length": 1 << 20} if ours.spec["family"] in UNBOUNDED else {}
    assert_same(ours, twin.model.ftw, besides)


def assert_same(ours: Ftw, theirs: Ftw, besides: dict[str, Any]) -> None:
    """The same spec but for what is given besides, and the same bits; logarithms to their last bit."""
    assert ours.spec == {**theirs.spec, **besides}
    mine, other = FtwWeights(ours, unpack), FtwWeights(theirs, unpack)
    assert ours.dense.keys() == theirs.dense.keys()
    for name in theirs.dense:
        if name.endswith(LOGARITHMS):
            np.testing.assert_allclose(mine.dense(name), other.dense(name), rtol=2e-6, atol=2e-7)
        else:
            np.testing.assert_array_equal(mine.dense(name), other.dense(name), err_msg=name)
    assert [bank.layers for bank in ours.banks] == [bank.layers for bank in theirs.banks]
    for one, another in zip(ours.banks, theirs.banks, strict=True):
        assert [bytes(one.record(i)) for i in range(one.count)] == [bytes(another.record(i)) for i in range(one.count)]
