"""What a family is: how config.json becomes a spec, and how its checkpoints name their tensors. Data only.

Every value that may differ between models of a family is a `Key` of config.json; what is the same for all is a
constant. A new family is a new record, at most a new rule.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from engine.spec.families.attention_rules import AttentionRule, CompressedRule, LatentRule
from engine.spec.families.config import Key, key
from engine.spec.families.expert_rules import MoeRule
from engine.spec.families.layer_rules import RecurrentRule, SinglePartRule
from engine.spec.names import Names
from engine.spec.residual import PRE_NORM, Residual

HIDDEN = key("hidden_size", "d_model")
DENSE_WIDTH = key("intermediate_size")
NORM_EPS = key("rms_norm_eps", default=1e-6)
HIDDEN_ACT = key("hidden_act", default="silu")
SILU = {"silu": "silu", "swish": "silu"}  # names of activations in config.json, and ours
GELU_TANH = {"gelu_pytorch_tanh": "gelu_tanh", "gelu_new": "gelu_tanh"}
GATED = {**SILU, **GELU_TANH, "gelu": "gelu"}


@dataclass(frozen=True)
class StreamsRule:
    """A residual stream that is several (`engine.spec.streams`)."""

    count: Key
    iterations: Key
    eps: Key
    weighed_at_the_end: bool = True


@dataclass(frozen=True)
class StreamRule:
    """A stream that is normed where parts read it: by what it is multiplied then, and what each kind of part makes."""

    attention: tuple[Key, Key]
    recurrent: tuple[Key, Key]
    ffn: tuple[Key, Key]


@dataclass(frozen=True)
class SharedKeysRule:
    """The last `count` layers read the keys and values of the last layer before them that has the same window.

    Where they are `doubled`, their feed-forward parts are twice as wide as those of the others.
    """

    count: Key
    doubled: Key | bool = False


@dataclass(frozen=True)
class LayerInputsRule:
    """What every layer adds at its end; a width of 0: nothing."""

    width: Key
    vocab_size: Key


@dataclass(frozen=True)
class NormRule:
    """The norms of the residual stream. Where the field `rms_eps` is there, they are of the root mean square."""

    kind: str = "rms"
    bias: Key | bool = False
    rms_eps: Key | None = None


@dataclass(frozen=True)
class Family:
    """One family.

    `only` lists, for fields whose other values would need what is not here, the values that are. `tested` are the
    codecs of its weights, or of its experts', in which tests/parity compares it with transformers. `also` are other
    values of `model_type` under which the same architecture is published. `inside` names the object of config.json
    that describes the decoder where there is more than a decoder; without such an object it is config.json itself.
    `windowed` is the attention of the layers with a window, which the window of `mixer` tells, where it is another one.
    `unrouted` is the attention of the layers without experts that have no window, where it is another one.
    `hidden_act` names the activation of every feed-forward part without one of its own; `activations` are the names
    that the family knows, and ours. With `embedding_root` embeddings are multiplied by the root of the hidden size too.
    `defaults` are fields that config.json may lack, as the family's own code has them; a null is as good as no object.
    `also_defaults` are further ones under some of the other names.
    With `paired` config.json counts two of our layers as one: the first has shared and routed experts, what the routed
    ones make being added behind the second, and the second is dense.
    """

    name: str
    architecture: str
    names: Names
    mixer: AttentionRule | LatentRule | CompressedRule
    windowed: AttentionRule | None = None
    unrouted: AttentionRule | None = None
    moe: MoeRule | None = None
    dense_width: Key | None = DENSE_WIDTH  # None: every layer has experts
    dense_bias: Key | bool = False
    norm_eps: Key | float = NORM_EPS
    final_norm_eps: Key | float = 0.0  # 0: norm_eps
    norm: NormRule = NormRule()
    residual: Residual | StreamRule = PRE_NORM
    recurrent_residual: Residual | None = None  # of layers that keep a state, where theirs is another
    streams: StreamsRule | None = None
    embedding_scale: Key | float = 1.0
    embedding_root: Key | bool = False
    residual_scale: Key | float = 1.0
    logit_scale: Key | float = 1.0
    logit_divisor: Key | float = 1.0
    logit_softcap: Key | float = 0.0
    shared_keys: SharedKeysRule | None = None
    layer_inputs: LayerInputsRule | None = None
    defaults: Mapping[str, Any] = field(default_factory=dict)
    head_bias: Key | bool = False
    only: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    tested: tuple[str, ...] = ("f32",)
    also: tuple[str, ...] = ()
    also_defaults: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    recurrent: RecurrentRule | None = None
    single_part: SinglePartRule | None = None
    hidden_act: Key = HIDDEN_ACT
    activations: Mapping[str, str] = field(default_factory=lambda: SILU)
    inside: str = ""
    paired: bool = False
