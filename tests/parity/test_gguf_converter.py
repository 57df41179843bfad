"""GGUF files by llama.cpp's own converter become what the same weights in safetensors become, bit by bit.

The converter comes with llama.cpp's sources, not with the `gguf` package: FREETOKEN_CONVERTER names its
convert_hf_to_gguf.py. Without it test_gguf_written.py holds the reader to files by a writer of our own.
"""

from __future__ import annotations

import json
import os
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
from .cases.case import THETA
from .cases.latent import DEEPSEEK_YARN, MISTRAL4
from .cases.residual import LONG
from .cases.sparse_attention import ODD_GLM5_NEXT
from .cases.windowed import FAR, NEAR, OTHER_THETA, STEP
from .codecs_numpy import pack_for_conversion, unpack
from .prepare import Prepared, no_tokenizer, prepare
from .published import as_published

CONVERTER = os.environ.get("FREETOKEN_CONVERTER", "")
pytestmark = pytest.mark.skipif(not CONVERTER, reason="FREETOKEN_CONVERTER names no convert_hf_to_gguf.py")

LOGARITHMS = ("delta.a_log", "mamba.a_log")  # the file has -exp of them

DEEPSEEK_SCALED = {"rope_parameters": {**DEEPSEEK_YARN["rope_parameters"], "mscale": 1.0}}
LONG_ROUND = {
    **LONG,
    **{name: [round(factor, 1) for factor in LONG[name]] for name in ("short_factor", "long_factor")},
    "short_mscale": 1.0,
    "long_mscale": 1.0,
}
LINEAR_FAR = {
    "rope_parameters": {
        "sliding_attention": {"rope_type": "default", "rope_theta": 300.0},
        "full_attention": {"rope_type": "linear", "rope_theta": 5000.0, "factor": 8.0},
    }
}
CHUNKS_OF_FOUR = {
    "attention_chunk_size": 8192,
    "floor_scale": 8192,
    "attn_scale": 0.1,
    "no_rope_layers": None,
    "no_rope_layer_interval": 4,
    "num_hidden_layers": 4,
    "rope_parameters": {
        "rope_type": "llama3",
        "rope_theta": 500000.0,
        "factor": 16.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 1.0,
        "original_max_position_embeddings": 8192,
    },
}

STEP_FAR = {
    **{"rope_type": "llama3", "rope_theta": 5e6, "factor": 2.0, "partial_rotary_factor": 0.5},
    **{"original_max_position_embeddings": 131072, "low_freq_factor": 1.0, "high_freq_factor": 32.0},
}
ONE_SHARE = {f"{part}_alpha_factor": 1.5 for part in ("full_attn", "linear_attn", "mlp")}
NO_SHARE = {f"{part}_beta_factor": 1.0 for part in ("full_attn", "linear_attn", "mlp")}

BY_NAME = {case.name: case for case in CASES}
LED_BY_DENSE = {
    "attention_bias": False,
    "shared_expert_combination_strategy": "average",
    "mlp_layer_types": ["dense", "sparse", "sparse"],
    "first_k_dense_replace": 1,
}

# By case, settings that the converter or llama.cpp takes for granted.
CONVERTED: dict[str, dict[str, Any]] = {
    "llama": {},
    "llama-linear-rope": {},
    "qwen2-odd-yarn": {},
    "qwen2": {"use_sliding_window": False, "layer_types": None},
    "qwen3": {},
    "qwen3-odd-biased": {},
    "mistral-window": {"sliding_window": None},
    "ministral3": {},
    "granite-biased": {},
    "qwen2_moe": {"norm_topk_prob": False},
    "qwen3_moe": {},
    "mixtral": {},
    "olmoe": {"clip_qkv": None},
    "granitemoe": {},
    "granitemoe-odd-tied": {},
    "gpt_oss": {"swiglu_limit": 7.0},
    "deepseek_v2": {},
    "deepseek_v3": {},
    "deepseek_v3-groups-yarn": DEEPSEEK_SCALED,
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
    "nemotron_h-dense": {},
    "arcee": {},
    "gemma": {},
    "gemma2": {"query_pre_attn_scalar": 16},
    "gemma3": {"query_pre_attn_scalar": 16, **LINEAR_FAR, "layer_types": None, "num_hidden_layers": 6},
    "gemma4-experts": {},
    "gemma4-inputs-shared-keys": {},
    "olmo2": {},
    "cohere2": {"tie_word_embeddings": True, "layer_types": None, "num_hidden_layers": 4},
    "phimoe": {"router_jitter_noise": 0.01, "rope_parameters": LONG_ROUND},
    "llama4": {**CHUNKS_OF_FOUR, "num_local_experts": 16},
    "llama4-odd-wrapped": {**CHUNKS_OF_FOUR, "num_local_experts": 128, "rope_parameters": THETA},
    "afmoe": {"global_attn_every_n_layers": 4, "num_hidden_layers": 4},
    "mimo_v2_flash": {
        "routed_scaling_factor": 1.0,
        "rope_parameters": {
            "full_attention": {**THETA, "partial_rotary_factor": 0.334},
            "sliding_attention": {"rope_type": "default", "rope_theta": 70.0, "partial_rotary_factor": 0.334},
        },
    },
    "hunyuan_v1_dense": {},
    "hunyuan_v1_moe": {"rope_parameters": THETA},
    "hy_v3": {},
    "bailing_moe_v2": {},
    "deepseek_v32": DEEPSEEK_SCALED,
    "glm_moe_dsa": {},
    "glm4_moe_lite": {},
    "glm4_moe_lite-odd-groups": {"attention_bias": False},
    "granitemoeshared": {},
    "granite_swa": {"layer_rope_theta": None},
    "granitemoe_swa": {"layer_rope_theta": None},
    "qwen3_5": {},
    "bailing_hybrid": {"rope_parameters": THETA},
    "solar_open": {},
    "cohere2_moe": {},
    "cohere2_moe-odd-sigmoid": LED_BY_DENSE,
    "dbrx": {},
    "dbrx-odd": {"ffn_config": {**BY_NAME["dbrx"].settings["ffn_config"], "ffn_hidden_size": 52}},
    "minimax_m3_vl-odd-published": {"swiglu_alpha": 1.702, "swiglu_limit": 7.0},
    "qwen3_vl_moe": {},
    "glm4": {},
    "glm4-odd": {"attention_bias": True},
    "phi3-odd-window": {},
    "step3p5": {"text_config": {**STEP, "rope_parameters": {FAR: STEP_FAR, NEAR: OTHER_THETA}}},
    "mistral4": {"rope_parameters": {**MISTRAL4["rope_parameters"], "llama_4_scaling_beta": 0.1}},
    "laguna": {},
    "laguna-odd-gates-of-values": {"layer_types": [FAR, NEAR, NEAR]},
    "mellum": {},
    "glm5_next": {},
    "glm5_next-odd-unbounded": {
        "text_config": {**ODD_GLM5_NEXT, "linear_num_heads": 6, "mlp_layer_types": ["dense", "sparse", "sparse"]}
    },
    "minimax": {**ONE_SHARE, **NO_SHARE},
}
UNBOUNDED = ("granitemoehybrid", "nemotron_h")  # whose files name a context of 2^20 tokens
APART = ("qwen3_vl_moe",)  # whose converter knows experts one by one, or turned over as transformers keeps none
# Families whose experts have other names in published checkpoints.
RENAMED = {
    "minimax": (
        (r"mlp\.(experts|gate)\.", r"block_sparse_moe.\1."),
        (r"(experts\.\d+)\.gate_proj", r"\1.w1"),
        (r"(experts\.\d+)\.down_proj", r"\1.w2"),
        (r"(experts\.\d+)\.up_proj", r"\1.w3"),
    )
}
# Families whose files are of another's architecture, which computes the same.
OTHERWISE = {"glm4_moe_lite": "deepseek_v3", "solar_open": "glm4_moe"}


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
        form: dict[str, Any] = {"wrapped": False, "prefix": "", "fused": False, "apart": case.apart or name in APART}
        form["renamed"] = RENAMED.get(name, case.renamed)
        model = prepare(replace(case, settings={**case.settings, **settings}, **form), folder / name)
        made[name] = Twins(model, folder / f"{name}.gguf")
        arguments += [str(as_published(model.checkpoint, folder / f"{name}-published", name)), str(made[name].file)]
    program = Path(__file__).with_name("run_converter.py")
    done = subprocess.run([sys.executable, program, CONVERTER, *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == {}
    return made


@pytest.mark.parametrize("name", CONVERTED)
def test_the_file_becomes_the_same_model(twins: dict[str, Twins], tmp_path: Path, name: str) -> None:
    twin = twins[name]
    convert(twin.file, tmp_path / "m", write_tokenizer=no_tokenizer, pack=pack_for_conversion)
    ours = open_model(tmp_path / "m")
    family = twin.model.ftw.spec["family"]
    besides = {"context_length": 1 << 20} if family in UNBOUNDED else {"family": OTHERWISE.get(family, family)}
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
