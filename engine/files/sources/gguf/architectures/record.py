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
    layers that have none, and with `first` its first value counts. `listed` keeps it a list, a value a layer.
    """

    name: str
    default: Any = REQUIRED
    largest: bool = False
    listed: bool = False
    first: bool = False


# What was done to a tensor on its way into the file, and is undone (`engine.files.sources.gguf.undo`).
ONE_ROW = ("one row",)  # a matrix of one row became a vector
BY_HEAD = ("by head",)  # [heads * rows, cols] became [heads, rows, cols]
FLAT = ("flat",)  # a vector became a matrix
Q_PAIRS, K_PAIRS = ("pairs of q",), ("pairs of k",)  # rows of a head that rotate together became neighbours
LOGARITHM = ("logarithm",)  # a became -exp(a), or exp(a)
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

    `config` names the metadata behind each config field (`a.b` is the field b of an object a), `constants` what every
    model of it has, `words` what a metadata value stands for, absent ones for nothing, `ratios` fields that are one key
    divided by another, `by_window` what a list has for layers with a window, or without. `doubled` are true where the
    last of a list is twice the first. `flags` are true where there is a tensor, in some layer or outside, `lacking`
    where a layer has the first tensor and not the second, `widths` the rows of the first tensor of that name, and
    `kinds` lists that call every layer after the first of the named tensors that it has.

    A `latent` architecture describes heads that share a latent key; a `partial` one may rotate a part of each head, as
    many values as the key `rotated` says. With `proportional` layers that see everything have a rope of their own, of
    which a part turns. `root_width` is the number of layers of the model that scales scores by hidden_size / heads and
    not by the width of a head. `far` is what models have besides whose context is of 2^20 tokens or more.

    With `window_rope` layers with a window have a rope of their own, which nothing stretches. `window_pattern` says,
    over and over, which layers have a window where the file does not. `gates` is the tensor that opens the values of a
    head together, or one by one. A stem that is `renamed` has another name in layers that have the tensor with it.
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
    words: Mapping[str, tuple[Key, Mapping[Any, Any]]] = field(default_factory=lambda: _NOTHING)
    ratios: Mapping[str, tuple[str, str]] = field(default_factory=lambda: _NOTHING)
    by_window: Mapping[str, tuple[Key, bool]] = field(default_factory=lambda: _NOTHING)
    doubled: Mapping[str, str] = field(default_factory=lambda: _NOTHING)
    flags: Mapping[str, str] = field(default_factory=lambda: _NOTHING)
    lacking: Mapping[str, tuple[str, str]] = field(default_factory=lambda: _NOTHING)
    widths: Mapping[str, str] = field(default_factory=lambda: _NOTHING)
    kinds: Mapping[str, tuple[tuple[str, str], ...]] = field(default_factory=lambda: _NOTHING)
    renamed: Mapping[str, tuple[str, str]] = field(default_factory=lambda: _NOTHING)
    latent: bool = False
    partial: bool = False
    rotated: str = "rope.dimension_count"
    proportional: bool = False
    window_rope: bool = False
    window_pattern: tuple[bool, ...] = ()
    gates: str | None = None
    root_width: int | None = None
    far: Mapping[str, Any] = field(default_factory=lambda: _NOTHING)


OUTER_TENSORS = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
ROPE_FACTORS = "rope_freqs.weight"
LONG_FACTORS, SHORT_FACTORS = "rope_factors_long.weight", "rope_factors_short.weight"
GROWTH = "attention.temperature_scale"  # how fast queries grow
WINDOWS = Key("attention.sliding_window_pattern", None, listed=True)
WINDOW_WORDS = {True: "sliding_attention", False: "full_attention"}
LAYER_TYPES = {"layer_types": (WINDOWS, WINDOW_WORDS)}

CHOICE_BIAS_ENDING = ".exp_probs_b.bias"
SIGMOID_SCORES = 2  # the value of `expert_gating_func`
# What an architecture is called here whose files have these; the last that holds counts.
WITH_EXPERTS = "with experts"
WITH_SHARED_EXPERTS = "with shared experts"
WITH_SIGMOID = "with sigmoid scores"
WITH_GROWTH = "with growing queries"
