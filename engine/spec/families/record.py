"""What a family is: how config.json becomes a spec, and how its checkpoints name their tensors. Data only.

Every value that may differ between models of a family is a `Key` of config.json; what is the same for all is a
constant. A new family is a new record, at most a new rule.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from engine.spec.families.config import Key, key
from engine.spec.families.indexers import IndexRule
from engine.spec.families.state_spaces import StateRule
from engine.spec.names import Names
from engine.spec.residual import PRE_NORM, Residual

WINDOW = key("sliding_window", default=0)
HIDDEN = key("hidden_size", "d_model")
HEADS = key("num_attention_heads", "n_heads")
KV_HEADS = key("num_key_value_heads", default=0)  # 0: as many as heads
HEAD_DIM = key("head_dim", default=0)  # 0: hidden_size / heads
Q_LORA_RANK = key("q_lora_rank", default=0)
KV_LORA_RANK = key("kv_lora_rank")
NOPE_DIM, ROPE_DIM, V_DIM = key("qk_nope_head_dim"), key("qk_rope_head_dim"), key("v_head_dim")
ATTENTION_BIAS = key("attention_bias", default=False)
DENSE_WIDTH = key("intermediate_size")
NO_LAYERS = Key((), ())
LAYER_TYPES = key("layer_types", default=())
NORM_EPS = key("rms_norm_eps", default=1e-6)
HIDDEN_ACT = key("hidden_act", default="silu")
SILU = {"silu": "silu", "swish": "silu"}  # names of activations in config.json, and ours
GELU_TANH = {"gelu_pytorch_tanh": "gelu_tanh", "gelu_new": "gelu_tanh"}
GATED = {**SILU, **GELU_TANH, "gelu": "gelu"}

SLIDING, FULL = "sliding_attention", "full_attention"
SLIDING_ALL, SLIDING_LATE, SLIDING_EVEN, SLIDING_MOST, SLIDING_LISTED = "all", "late", "even", "most", "listed"


@dataclass(frozen=True)
class RopeRule:
    """`theta` is the default where config.json names none. Without `part` heads are rotated whole, with it that share
    of their first values; `dim` counts these where no share is named. `when` names a field and the value that switches
    it on; None: always on.

    A list `by_layer` gives every layer a theta of its own, 0 where nothing is rotated.
    Where layers of several types have positions of their own, `kind` is the type these are of. In the old form of
    config.json the positions that have `own_theta` are not scaled; the others are described as in any model.
    """

    theta: Key | float = 10000.0
    pairs: Key | bool = False
    part: Key | None = None
    dim: Key | None = None
    when: tuple[str, str] | None = None
    kind: str = ""
    own_theta: Key | None = None
    by_layer: Key = NO_LAYERS


@dataclass(frozen=True)
class WindowRule:
    """Which layers attend to a sliding window of `size` tokens (absent: none do).

    `typed`: a list `layer_types` decides, layer by layer. Without it `layers` does: all of them, the late ones (from
    `max_window_layers` on), the even ones (the first, the third and so on), most: all but the last of every
    `interval`, or listed: those of a list that has to be there. `before`, where it is there, counts the tokens without
    the one that attends, and wins over `size`.

    With `chunked` the size is that of chunks, which no token sees beyond. A list `marked` of ones, and of zeros where a
    layer sees everything, wins over all of this; `name` is what `layer_types` calls the others.
    The first `first` layers see everything, and are not counted for what the most are. With `ends_full` the last layer
    does, whatever the list says.
    """

    size: Key = WINDOW
    enabled: Key | bool = True
    typed: bool = False
    first: Key | int = 0
    layers: str = SLIDING_ALL
    interval: Key | int = 0
    before: Key | int = 0
    chunked: bool = False
    marked: Key = NO_LAYERS
    name: str = SLIDING
    ends_full: bool = False


@dataclass(frozen=True)
class GrowthRule:
    """Queries that grow with the position, as `engine.spec.rope.Growth` has it, where they are `enabled` to."""

    rate: Key
    every: Key
    ahead: int = 0
    enabled: Key | bool = True


@dataclass(frozen=True)
class QueryExpertsRule:
    """Pairs of query and output matrices, of which a token chooses some; the number of heads follows from these."""

    count: Key
    top_k: Key


@dataclass(frozen=True)
class AttentionRule:
    """Grouped-query attention; without `rope` nothing is rotated.

    Scores are multiplied by `scale`; without it they are divided by the root of `score_width`, or else of the head's
    width. `v_dim` is 0 where values are as wide as keys. There is no `qk_norm` unless it is also `normed`.
    """

    heads: Key = HEADS
    kv_heads: Key = KV_HEADS
    head_dim: Key = HEAD_DIM
    v_dim: Key | int = 0
    scale: Key | float | None = None
    value_scale: Key | float = 1.0
    score_width: Key | None = None
    softcap: Key | float = 0.0
    clip: Key | float = 0.0
    qk_norm: str = "none"
    normed: Key | bool = True
    qkv_bias: Key | bool = False
    o_bias: Key | bool = False
    sinks: Key | bool = False
    rope: RopeRule | None = RopeRule()
    window: WindowRule | None = None
    gated: bool = False
    growth: GrowthRule | None = None
    index: IndexRule | None = None
    v_norm: bool = False
    v_from_k: Key | bool = False
    experts: QueryExpertsRule | None = None


@dataclass(frozen=True)
class LatentRule:
    """Multi-head latent attention; without `rope` nothing is rotated.

    `norm_eps` is a constant of the family's model code, not of config.json. With `gated` every head's output has a
    gate. With `scaled_latents` both latents are as long as the hidden state would be: each is multiplied by the root of
    the hidden state's width over its own.
    """

    heads: Key = HEADS
    q_lora_rank: Key = Q_LORA_RANK
    kv_lora_rank: Key = KV_LORA_RANK
    nope_dim: Key = NOPE_DIM
    rope_dim: Key = ROPE_DIM
    v_dim: Key = V_DIM
    bias: Key | bool = ATTENTION_BIAS
    norm_eps: float = 1e-6
    rope: RopeRule | None = RopeRule(pairs=True)
    gated: bool = False
    index: IndexRule | None = None
    scaled_latents: bool = False


@dataclass(frozen=True)
class CompressedRule:
    """Attention to a window and to compressed entries (`engine.spec.compressed`).

    A list `types` says what each layer sees, or a list `ratios` how many tokens its entries stand for. `theta` is that
    of layers without entries. `rope_dim` counts the rotated values of a head, or `rope_share` is their share.
    """

    heads: Key
    head_dim: Key
    q_lora_rank: Key
    out_groups: Key
    out_rank: Key
    window: Key
    norm_eps: Key
    types: Key
    ratios: Key
    sparse_rate: Key
    heavy_rate: Key
    index_heads: Key
    index_head_dim: Key
    index_top_k: Key
    theta: Key
    compress_theta: Key
    rope_dim: Key
    rope_share: Key


@dataclass(frozen=True)
class StreamsRule:
    """A residual stream that is several (`engine.spec.streams`)."""

    count: Key
    iterations: Key
    eps: Key


@dataclass(frozen=True)
class DeltaRule:
    """A gated delta net.

    With `channelwise` it decays by a factor of its own in every key channel, with `low_rank` too, and then that factor
    and the output's gate come through as many values as a head has. The logarithm of a factor is never below `bound`
    where config.json says that it is `bounded`.
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

    A list `types` gives a name for every layer, those of recurrent ones being in `names`, or a list `marks` a number,
    that of recurrent ones being 0; without them `numbers` lists the recurrent layers, counted from 1; without any it is
    all but one of every `interval`: the last, or the one after `offset` others.
    """

    mixer: DeltaRule | LinearRule | StateRule
    names: tuple[str, ...]
    types: Key = LAYER_TYPES
    marks: Key = NO_LAYERS
    numbers: Key = NO_LAYERS
    interval: Key | int = 0
    offset: Key | None = None


Part = Literal["recurrent", "attention", "experts", "dense"]


@dataclass(frozen=True)
class SinglePartRule:
    """A model whose layers have one part each: a list `types`, or a string `pattern` of a letter a layer, says which.

    `meanings` are the names and letters of each kind of part.
    """

    types: Key
    pattern: Key
    meanings: Mapping[Part, tuple[str, ...]]


@dataclass(frozen=True)
class StreamRule:
    """A stream that is normed where parts read it: by what it is multiplied then, and what each kind of part makes."""

    attention: tuple[Key, Key]
    recurrent: tuple[Key, Key]
    ffn: tuple[Key, Key]


@dataclass(frozen=True)
class GroupRule:
    """Groups of experts compete first. `when` names a field and the value that switches it on; None: always on."""

    groups: Key
    top_groups: Key
    group_top: int
    when: tuple[str, str] | None = None


@dataclass(frozen=True)
class SharedRule:
    """Shared experts: their joint width is `width` times `count`.

    `combination` is "sum", or "average" where the sum with the routed experts' output is halved.
    """

    width: Key
    count: Key | int = 1
    gated: bool = False
    combination: Key | str = "sum"


@dataclass(frozen=True)
class ActivationRule:
    """The clamped gate of gpt-oss, in dense parts as in experts; a family without one uses silu."""

    alpha: Key
    limit: Key


@dataclass(frozen=True)
class MoeRule:
    """Routed experts.

    A layer has them if a list `types` calls it sparse, or a list `layers` names its number. Without such a list it must
    not be among the first `first_dense` nor come after `last` (-1: the last of all), it must be the last of every
    `step`, or the one after `offset` others, and it must not be listed in `dense_layers`. A model of fewer than
    `fewest` has none at all.
    Where config.json names the `scoring`, `scorings` are the names that are known, and ours.

    With a `limit` silu sees nothing beyond it. In the first `by_token` layers, or in those that a list `by_token_types`
    calls so, a table says which experts a token goes to.
    """

    count: Key
    top_k: Key
    width: Key
    scoring: Key | str = "softmax"
    scorings: Mapping[str, str] = field(default_factory=dict)
    normalize: Key | bool = False
    jitter: Key | float = 0.0
    scale: Key | float = 1.0
    groups: GroupRule | None = None
    linear_bias: bool = False
    choice_bias: Key | bool = False
    expert_bias: bool = False
    shared: SharedRule | None = None
    latent: Key | int = 0
    scaled_input: bool = False
    apart: bool = False
    bias: bool = False
    normed: bool = False
    expert_scale: bool = False
    zero: Key | int = 0  # further experts, which return what they see
    clamped: ActivationRule | None = None
    first_dense: Key | int = 0
    last: Key | int = -1
    step: Key | int = 1
    offset: Key | None = None
    fewest: int = 1
    dense_layers: Key = NO_LAYERS
    types: Key = NO_LAYERS
    layers: Key = NO_LAYERS
    enabled: Key | bool = True
    limit: Key | float = 0.0
    by_token: Key | int = 0
    by_token_types: Key = NO_LAYERS


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
