"""Rope's frequencies against those that transformers computes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from engine.program.lowering.angles import rope_table
from engine.spec.attention import Attention
from engine.spec.families import spec_from_config

YARN = {"rope_type": "yarn", "original_max_position_embeddings": 512}
SCALINGS: dict[str, dict[str, Any]] = {
    "default": {"rope_type": "default"},
    "linear": {"rope_type": "linear", "factor": 4.0},
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 512,
    },
    "yarn": {**YARN, "factor": 8.0},
    "yarn not rounded": {**YARN, "factor": 8.0, "truncate": False},
    "yarn, own ramp": {**YARN, "factor": 8.0, "beta_fast": 16.0, "beta_slow": 2.0},
    "yarn, steep ramp": {**YARN, "factor": 8.0, "beta_fast": 1.0, "beta_slow": 1.0, "truncate": False},
    "yarn, two scales": {**YARN, "factor": 8.0, "mscale": 0.7, "mscale_all_dim": 1.3},
    "yarn, attention factor": {**YARN, "factor": 8.0, "attention_factor": 1.7},
    "yarn, small": {**YARN, "factor": 0.5},
    "longrope": {
        "rope_type": "longrope",
        "factor": 8.0,
        "short_factor": [1.0 + i / 32 for i in range(32)],
        "long_factor": [1.5 + i for i in range(32)],
        "original_max_position_embeddings": 512,
    },
}
CONTEXT = 4096


def config(scaling: dict[str, Any], theta: float) -> dict[str, Any]:
    return {
        "model_type": "llama",
        "vocab_size": 32,
        "hidden_size": 256,
        "intermediate_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "max_position_embeddings": CONTEXT,
        "rope_parameters": {**scaling, "rope_theta": theta},
    }


@pytest.mark.parametrize("theta", [10000.0, 500000.0])
@pytest.mark.parametrize("name", SCALINGS)
def test_frequencies_are_those_of_transformers(name: str, theta: float) -> None:
    settings = config(SCALINGS[name], theta)
    theirs = LlamaConfig(**{key: value for key, value in settings.items() if key != "model_type"})
    compute = ROPE_INIT_FUNCTIONS.get(SCALINGS[name]["rope_type"], LlamaRotaryEmbedding.compute_default_rope_parameters)
    frequencies, magnitude = compute(theirs, seq_len=CONTEXT)
    mixer = spec_from_config(settings).layers[0].mixer
    assert isinstance(mixer, Attention)
    assert mixer.rope is not None
    table = rope_table(mixer.rope, CONTEXT)
    np.testing.assert_allclose(table.inv_freq, frequencies.numpy(), rtol=1e-6)
    assert table.scale == pytest.approx(magnitude, rel=1e-6)


def test_longrope_takes_its_factors_by_the_context() -> None:
    mixer = spec_from_config(config(SCALINGS["longrope"], 10000.0)).layers[0].mixer
    assert isinstance(mixer, Attention)
    assert mixer.rope is not None
    short, long = rope_table(mixer.rope, 512), rope_table(mixer.rope, 513)
    ratio = np.asarray(short.inv_freq) / np.asarray(long.inv_freq)
    expected = [(1.5 + i) / (1.0 + i / 32) for i in range(32)]
    np.testing.assert_allclose(ratio, expected, rtol=1e-5)


def test_frequencies_are_f32_values() -> None:
    mixer = spec_from_config(config(SCALINGS["yarn"], 10000.0)).layers[0].mixer
    assert isinstance(mixer, Attention)
    assert mixer.rope is not None
    values = rope_table(mixer.rope, CONTEXT).inv_freq
    assert [float(np.float32(value)) for value in values] == list(values)
