"""Tiny random models of every family, as settings for transformers. At least one case a family, one for every quirk.

Sizes are of two kinds: `ROUND` fills packed tiles exactly, `ODD` leaves ragged tiles, heads and experts everywhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Case:
    """A model: `family` is the model_type, `settings` go to transformers' configuration class.

    Checkpoints that transformers would not write are described by `fused`, experts of a layer in one tensor, `apart`,
    one an expert, and `wrapped`, the decoder being one part of several; with `prefix` all of it lies under that one.
    `renamed` are parts of tensor names (regular expressions) and what stands there instead.
    """

    name: str
    family: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0
    fused: bool = False
    apart: bool = False
    wrapped: bool = False
    prefix: str = ""
    renamed: tuple[tuple[str, str], ...] = ()


COMMON = {
    "vocab_size": 160,
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 96,
    "max_position_embeddings": 512,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "tie_word_embeddings": False,
}

ODD = {
    "vocab_size": 139,
    "hidden_size": 60,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "intermediate_size": 52,
}

HEAD = {"head_dim": 16}

ODD_HEAD = {"head_dim": 10}

THETA = {"rope_type": "default", "rope_theta": 300.0}


def rope(kind: str, **settings: Any) -> dict[str, Any]:
    """`rope_parameters` of one kind; the contexts are so short that the tests' positions reach the scaling."""
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 5000.0, **settings}}


def growing() -> dict[str, Any]:
    """Positions by which queries grow; made anew for every model, since some of transformers' classes add to them."""
    yarn = {"factor": 16.0, "original_max_position_embeddings": 32, "mscale": 1.0, "mscale_all_dim": 1.0}
    return rope("yarn", **yarn, llama_4_scaling_beta=0.3)


def growing_linearly() -> dict[str, Any]:
    """The same without yarn."""
    return rope("linear", factor=4.0, original_max_position_embeddings=16, llama_4_scaling_beta=0.7)


BIASES = {"attention_bias": True}

GRANITE = {"embedding_multiplier": 3.0, "residual_multiplier": 0.4, "attention_multiplier": 0.3, "logits_scaling": 5.0}

EIGHT = {"num_experts": 8, "num_experts_per_tok": 3}

SEVEN = {"num_experts": 7, "num_experts_per_tok": 3}

LOCAL_EIGHT = {"num_local_experts": 8, "num_experts_per_tok": 3}

LOCAL_SEVEN = {"num_local_experts": 7, "num_experts_per_tok": 3}
