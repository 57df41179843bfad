"""What an architecture of GGUF files is: how its metadata and tensors become a Hugging Face config and tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

REQUIRED = object()
_NOTHING: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True)
class Key:
    """A metadata key below the architecture's name; `default` of REQUIRED makes its absence an error.

    A list, as for layers that differ, must hold one value throughout; with `largest` it may hold zeros besides, for
    layers that have none. `listed` keeps it a list, a value a layer.
    """

    name: str
    default: Any = REQUIRED
    largest: bool = False
    listed: bool = False


# What was done to a tensor on its way into the file, and is undone (`engine.files.sources.gguf.undo`).
ONE_ROW = ("one row",)  # a matrix of one row became a vector
BY_HEAD = ("by head",)  # [heads * rows, cols] became [heads, rows, cols]
FLAT = ("flat",)  # a vector became a matrix
Q_PAIRS, K_PAIRS = ("pairs of q",), ("pairs of k",)  # rows of a head that rotate together became neighbours
LOGARITHM = ("logarithm",)  # a became -exp(a)
PLUS_ONE = ("plus one",)  # one was added
# Value heads, all of a key head and then those of the next, became rounds of one of every key head.
TILED_ROWS, TILED_COLS = ("tiled rows",), ("tiled columns",)
TILED_VALUES = ("tiled values",)  # the same where a head has one row


@dataclass(frozen=True)
class Architecture:
    """One row of the table.

    A tensor `blk.3.attn_q.weight` is looked up by its stem `attn_q` and keeps its suffix; a name with `{expert}` stands
    for one index of a fused [experts, rows, cols] tensor. `stems` are the tensors of a layer, `exact` those whose
    suffix changes too, `outer` those outside the layers, `stacked` tensors made of several fused ones by rows. `undo`
    says, by stem or exact name, what was done to the tensors on their way into the file.

    `config` names the metadata behind each config field, `constants` what every model of it has, `words` what a
    metadata value is called, `ratios` fields that are one key divided by another. `flags` are true where some layer has
    a tensor, `widths` the rows of the first tensor of that name, and `kinds` lists that call every layer after the
    first of the named tensors that it has.

    A `latent` architecture describes heads that share a latent key; a `partial` one may rotate a part of each head.
    """

    model_type: str
    hf_class: str
    config: Mapping[str, Key]
    stems: Mapping[str, str]
    constants: Mapping[str, Any] = field(default_factory=lambda: _NOTHING)
    exact: Mapping[str, str] = field(default_factory=lambda: _NOTHING)
    outer: Mapping[str, str] = field(default_factory=lambda: _NOTHING)
    stacked: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: _NOTHING)
    undo: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: _NOTHING)
    words: Mapping[str, tuple[Key, Mapping[Any, str]]] = field(default_factory=lambda: _NOTHING)
    ratios: Mapping[str, tuple[str, str]] = field(default_factory=lambda: _NOTHING)
    flags: Mapping[str, str] = field(default_factory=lambda: _NOTHING)
    widths: Mapping[str, str] = field(default_factory=lambda: _NOTHING)
    kinds: Mapping[str, tuple[tuple[str, str], ...]] = field(default_factory=lambda: _NOTHING)
    latent: bool = False
    partial: bool = False


OUTER_TENSORS = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
ROPE_FACTORS = "rope_freqs.weight"

# The value of `expert_gating_func` that stands for sigmoid scores, and what such an architecture is called here.
SIGMOID_SCORES = 2
WITH_SIGMOID = "{name} with sigmoid scores"
WITH_EXPERTS = "{name} with experts"
