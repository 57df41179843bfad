"""How config.json describes layers that keep a state, and layers of a single part. Data only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from engine.spec.families.attention_rules import HEAD_DIM, HEADS, LAYER_TYPES, NO_LAYERS
from engine.spec.families.config import Key
from engine.spec.families.state_spaces import StateRule


@dataclass(frozen=True)
class DeltaRule:
    """A gated delta net.

    With `channelwise` it decays by a factor of its own in every key channel, with `low_rank` too, and then that factor
    and the output's gate come through as many values as a head has. The logarithm of a factor is never below `bound`
    where config.json says that it is `bounded`. Where beta is doubled twice as much of a value is learned. `norm_eps`
    is a constant of the family's model code; 0: that of the model's norms.
    """

    key_heads: Key
    heads: Key
    k_dim: Key
    v_dim: Key
    kernel: Key
    gate_activation: str = "silu"
    low_rank: bool = False
    channelwise: bool = False
    bounded: Key | bool = False
    bound: Key | float = 0.0
    doubled_beta: Key | bool = False
    norm_eps: float = 0.0


@dataclass(frozen=True)
class LinearRule:
    """Attention without a softmax, whose heads forget the slower the later the layer.

    `norm_eps` is a constant of the family's model code, not of config.json.
    """

    heads: Key = HEADS
    head_dim: Key = HEAD_DIM
    norm_eps: float = 1e-6


@dataclass(frozen=True)
class RecurrentRule:
    """Which layers have the recurrent `mixer` instead of the family's attention.

    A list `types` gives a name for every layer, those of recurrent ones being in `names` and of others in `attending`;
    or a list `marks` a number, that of recurrent ones being 0; without them `numbers` lists the recurrent ones, from 1
    on; without any it is all but one of every `interval`: the last, or the one after `offset` others.
    """

    mixer: DeltaRule | LinearRule | StateRule
    names: tuple[str, ...]
    types: Key = LAYER_TYPES
    marks: Key = NO_LAYERS
    numbers: Key = NO_LAYERS
    interval: Key | int = 0
    offset: Key | None = None
    attending: tuple[str, ...] = ("attention", "full_attention")


Part = Literal["recurrent", "attention", "experts", "dense"]


@dataclass(frozen=True)
class SinglePartRule:
    """A model whose layers have one part each: a list `types`, or a string `pattern` of a letter a layer, says which.

    `meanings` are the names and letters of each kind of part.
    """

    types: Key
    pattern: Key
    meanings: Mapping[Part, tuple[str, ...]]
